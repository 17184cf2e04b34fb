// SPDX-License-Identifier: Apache-2.0
// Blocks all signals on this thread while it lives. Threads that are started meanwhile inherit it, so that the host's
// handlers run on the host's own threads.
#pragma once

#include <pthread.h>

#include <csignal>

namespace tpfsdp {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked &) = delete;
  SignalsBlocked &operator=(const SignalsBlocked &) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace tpfsdp
