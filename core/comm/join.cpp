// SPDX-License-Identifier: Apache-2.0
// How a rank comes to its job: by what the program says, else by what the launcher says.
#include "comm/context.hpp"
#include "comm/file_store.hpp"
#include "comm/launch.hpp"
#include "comm/tcp_store.hpp"

#include <charconv>
#include <string_view>

namespace tpfsdp {

void check_options(const RankOptions &rank, int32_t world_size) {
  if (world_size < 0) fail(TPFSDP_ERR_INVALID_ARGUMENT, "world_size is ", world_size, "; it is at least 1, or 0");
  if (rank.rank < 0) fail(TPFSDP_ERR_INVALID_ARGUMENT, "rank is ", rank.rank, "; ranks count from 0");
  if (world_size > 0 && rank.rank >= world_size)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "rank is ", rank.rank, ", but world_size is ", world_size, ": ranks are 0 to ",
         world_size - 1);
  const auto check_timeout = [](const char *name, int32_t timeout_ms) {
    if (timeout_ms < -1 || timeout_ms == 0)
      fail(TPFSDP_ERR_INVALID_ARGUMENT, name, " is ", timeout_ms, "; it is a number of ms, or -1 for none");
  };
  check_timeout("arrival_timeout_ms", rank.arrival_timeout_ms);
  check_timeout("progress_timeout_ms", rank.progress_timeout_ms);
  check_timeout("join_timeout_ms", rank.join_timeout_ms);
  if (rank.event_capacity < 0)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "event_capacity is ", rank.event_capacity,
         "; it is 0 (none) or a number of events");
  if (rank.memory_budget_bytes < 0)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "memory_budget_bytes is ", rank.memory_budget_bytes,
         "; it is 0 (no bound) or a number of bytes");
}

namespace {

constexpr std::string_view kLocal = "local:", kFile = "file:", kTcp = "tcp:";

constexpr const char *kHowToJoin =
    "create the context without rank and world_size, so that they come from the launcher; for ranks that are threads "
    "use run_ranks, or in each thread store \"local:NAME\"; for a world of one set WORLD_SIZE=1 and RANK=0";

bool takes(std::string_view store, std::string_view kind) {
  return store.starts_with(kind) && store.size() > kind.size();
}

// A program started as one of several ranks that says it is a world of one would train as many models as there are
// ranks, each on its own.
void check_world_of_one(const std::optional<Launch> &launch) {
  if (launch && launch->world_size > 1)
    fail(TPFSDP_ERR_STATE, "launched as rank ", launch->rank, " of ", launch->world_size, " (", launch->source,
         "), but no group was joined: ", kHowToJoin);
}

// What the program did not say.
void fill_from_launch(JoinOptions &options, const std::optional<Launch> &launch) {
  const int32_t rank = options.rank.rank, world_size = options.world_size;
  if (!launch) {
    if (world_size == 0 && rank != 0)
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "rank is ", rank, ", but world_size is not given");
    if (world_size == 0 && !options.store.empty() && options.store != "env")
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "store is \"", options.store,
           "\", but neither world_size is given nor a launch variable set: say rank and world_size, or start the "
           "program with tpfsdp-run");
    if (world_size > 1 && options.store == "env")
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "rank ", rank, " of ", world_size,
           " was asked for with store \"env\", but no launch variable is set: start the program with tpfsdp-run, or "
           "give "
           "\"file:DIR\"");
    return;
  }
  if (world_size != 0 && options.store == "env" && (world_size != launch->world_size || rank != launch->rank))
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "rank ", rank, " of ", world_size, " was asked for with store \"env\", but ",
         launch->source, " say rank ", launch->rank, " of ", launch->world_size);
  if (world_size == 0 && rank != 0 && rank != launch->rank)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "rank is ", rank, ", but ", launch->source, " say ", launch->rank);
  if (world_size != 0) return;
  options.rank.rank = launch->rank;
  options.world_size = launch->world_size;
  if (options.store.empty()) options.store = "env";
}

void tell_listening(const JoinOptions &options, const std::string &host, int32_t port) {
  const Status status = options.listening(cat("tcp:", host, ":", port), port);
  if (status >= 0) return;
  ErrorDetail detail;
  detail.status = TPFSDP_ERR_CALLBACK;
  detail.backend_code = status;
  detail.message = cat("the listening callback of rank 0 failed with status ", status);
  throw Failure(std::move(detail));
}

std::shared_ptr<Store> open_tcp(const JoinOptions &options, std::string_view address) {
  const size_t colon = address.rfind(':');
  TcpStoreOptions tcp;
  tcp.is_server = options.rank.rank == 0;
  const char *begin = address.data() + (colon == std::string_view::npos ? 0 : colon + 1);
  const char *end = address.data() + address.size();
  const auto [stop, error] = std::from_chars(begin, end, tcp.port);
  const bool has_host = colon != std::string_view::npos && colon > 0;
  if (!has_host || stop != end || error != std::errc{} || tcp.port < 0 || tcp.port > 65535)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "store is \"", options.store,
         "\"; it is \"tcp:HOST:PORT\" with a port of 1 to 65535, or 0 on rank 0");
  if (tcp.port == 0 && !(tcp.is_server && options.listening))
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "store is \"", options.store, "\" on rank ", options.rank.rank, ": ",
         tcp.is_server ? "a free port is found only for a `listening` callback, which tells it to the other ranks"
                       : "only rank 0 may leave the port open; give what its `listening` callback was told");
  const std::string host(address.substr(0, colon));
  tcp.host = host;
  if (tcp.host.starts_with('[') && tcp.host.ends_with(']')) tcp.host = tcp.host.substr(1, tcp.host.size() - 2);
  tcp.token = read_job_token();
  if (options.rank.join_timeout_ms >= 0)
    tcp.deadline_ns = monotonic_ns() + int64_t{options.rank.join_timeout_ms} * 1'000'000;
  const int64_t began = monotonic_ns();
  tcp.poll = [interrupt = options.rank.interrupt, began] {
    const auto waited_ms = static_cast<int32_t>((monotonic_ns() - began) / 1'000'000);
    if (interrupt && interrupt(waited_ms, "join", "") < 0)
      fail(TPFSDP_ERR_CANCELLED, "interrupted while this rank waited for its store");
  };
  const auto store = open_tcp_store(std::move(tcp));
  if (options.rank.rank == 0 && options.listening) tell_listening(options, host, store->port());
  return store;
}

Ref<Context> join_processes(JoinOptions &options, const std::optional<Launch> &launch) {
  Directory owner = Directory::kOfUser;
  if (options.store == "env") {
    if (launch->store.empty())
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "launched as rank ", launch->rank, " of ", launch->world_size, " (",
           launch->source,
           "), but nothing tells this launch from another, so that its ranks could meet: set "
           "TPFSDP_STORE=file:DIR to a new directory on every rank, or start the program with tpfsdp-run");
    options.store = launch->store;
    if (!launch->is_store_given) owner = Directory::kOfJob;
  }
  const BackendChoice backend = choose_backend(options.backend, TPFSDP_BACKEND_CAN_USE_PROCESSES);
  options.rank.world_size = options.world_size;
  const std::string_view store = options.store;
  if (takes(store, kTcp)) return join_store(options, open_tcp(options, store.substr(kTcp.size())), backend);
  return join_store(options, open_file_store(std::string(store.substr(kFile.size())), owner), backend);
}

}  // namespace

Ref<Context> join(JoinOptions options) {
  check_options(options.rank, options.world_size);
  const std::string_view store = options.store;
  if (takes(store, kLocal)) {
    if (options.world_size == 0)
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "store is \"", store,
           "\", but world_size is not given: threads of one process say their rank and world_size themselves");
    BackendChoice backend = choose_backend(options.backend, TPFSDP_BACKEND_CAN_USE_THREADS);
    options.rank.world_size = options.world_size;
    auto joined = join_local_store(std::string(store.substr(kLocal.size())), options.rank.rank, options.world_size);
    return join_store(options, std::move(joined), std::move(backend));
  }
  if (!store.empty() && store != "env" && !takes(store, kFile) && !takes(store, kTcp))
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "store is \"", store,
         "\"; it is \"local:NAME\" for threads, \"file:DIR\" or \"tcp:HOST:PORT\" for processes, or \"env\"");
  const std::optional<Launch> launch = read_launch();
  fill_from_launch(options, launch);
  if (options.world_size > 1) {
    if (options.store.empty())
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "world_size is ", options.world_size,
           ", but no store says where the ranks meet: give \"local:NAME\", \"file:DIR\" or \"tcp:HOST:PORT\"");
    return join_processes(options, launch);
  }
  check_world_of_one(launch);
  options.rank.rank = 0;
  options.rank.world_size = 1;
  return join_store(options, make_local_store(), choose_backend(options.backend, 0));
}

}  // namespace tpfsdp
