// SPDX-License-Identifier: Apache-2.0
// Ranks of a test: each has its comm and calls the table as the library would.
#ifndef TPFSDP_TESTS_UNIT_HOST_RANKS_HPP
#define TPFSDP_TESTS_UNIT_HOST_RANKS_HPP

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "services.hpp"

namespace host_test {

struct Options {
  int32_t arrival_ms = 20000;
  int32_t progress_ms = 20000;
  int32_t join_ms = 20000;
  std::string name = "world";
};

/// Floats that all ranks have mapped.
struct CommonMemory {
  float *data = nullptr;            ///< to write
  const float *readable = nullptr;  ///< to read
  tpfsdp_backend_region *region = nullptr;
};

/// One rank on one comm. The short forms wait; each returns the status and leaves the error in `call`.
class Rank {
 public:
  Rank(int rank, int world, Store *store);
  ~Rank();
  Rank(const Rank &) = delete;
  Rank &operator=(const Rank &) = delete;

  tpfsdp_status join(const Options &options = {});
  tpfsdp_status shutdown();
  void leave();

  tpfsdp_status submit(const tpfsdp_backend_op &op, bool may_wait = true);
  tpfsdp_status complete(int64_t sequence, bool may_wait = true);
  tpfsdp_status run(const tpfsdp_backend_op &op);  ///< submit, complete
  tpfsdp_status wait_read(int64_t sequence, bool may_wait = true);
  void fail(tpfsdp_status status, const char *text);  ///< post_failure, give_up
  tpfsdp_status reset(int64_t windows = 0);           ///< until all have reset
  tpfsdp_status window();                             ///< publish_step, wait_step
  tpfsdp_status barrier();
  tpfsdp_status make_common(int64_t floats, CommonMemory *out, bool may_wait = true);
  tpfsdp_status wait_released(const CommonMemory &memory, bool may_wait = true);

  Call call;
  tpfsdp_backend_comm *comm = nullptr;
  int64_t last = 0;  ///< sequence of the last submit
  int rank;
  int world;
};

/// Runs `body` as `world` ranks on threads, joined to one comm; shuts nothing down, leaves at the end.
void run_ranks(int world, const std::function<void(Rank &)> &body, const Options &options = {});

/// Operations over float tensors that keep their own pieces.
struct Op {
  tpfsdp_backend_op op{};
  std::vector<tpfsdp_backend_piece> pieces;
  operator const tpfsdp_backend_op &() {
    op.pieces = pieces.data();
    op.piece_count = static_cast<int64_t>(pieces.size());
    return op;
  }
};
/// Each rank gives `counts[rank]` floats, in rank order in output.
Op all_gather(const Rank &rank, const float *input, float *output, const std::vector<int64_t> &counts,
              tpfsdp_backend_region *region = nullptr);
/// Rank r gets `counts[r]` floats of the sum, from their place in rank order.
Op reduce_scatter(const Rank &rank, const float *input, float *output, const std::vector<int64_t> &counts,
                  tpfsdp_backend_region *region = nullptr);
Op all_reduce(const float *input, float *output, int64_t count, tpfsdp_backend_region *region = nullptr);
Op broadcast(int source, const float *input, float *output, int64_t count, tpfsdp_backend_region *region = nullptr);
Op barrier_op();
/// Of `count` floats in memory of all ranks. kind: SHARED_GATHER or MAPPED_GATHER.
Op gather_in(const CommonMemory &memory, tpfsdp_backend_kind kind, int64_t count, int32_t unit = -1);

}  // namespace host_test

#endif
