// SPDX-License-Identifier: Apache-2.0
// A store of processes that reach one directory, of this machine or a shared one: each key is a file. Nothing stays
// open between calls.
#pragma once

#include "comm/store.hpp"

namespace tpfsdp {

// Makes the directory, and parents that are missing, with mode 0700. Throws INVALID_ARGUMENT for a directory that is a
// symbolic link, another user's, or writable by others. Every call throws IO or OUT_OF_MEMORY (also where a disk is
// full), and leaves nothing half written.
// discard() removes a directory that is the job's own: the store's files, and then the directory. Files of others stay,
// and with them the directory.
enum class Directory { kOfUser, kOfJob };
std::shared_ptr<Store> open_file_store(const std::string &directory, Directory owner = Directory::kOfUser);

}  // namespace tpfsdp
