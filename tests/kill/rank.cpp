// SPDX-License-Identifier: Apache-2.0
// One rank of a small training, which meets a fault or lives with one of its peers'. tools/kill_matrix.py starts the
// ranks of a job and judges what they tell.
//
//   RANK=R WORLD_SIZE=W TPFSDP_STORE=file:DIR kill_rank FAULT PHASE VICTIM
//
// Phases: join, shard, lazy_init, gather, forward, reduce, window, step, shutdown. Faults: none, kill, stop, exit,
// exception, error, slow, slow90, memory, fork, interrupt, close, reopen.
#include "kill/faults.hpp"
#include "support/chain.hpp"

#include <sys/prctl.h>

namespace {

using kill_rank::Event;
using kill_rank::Faults;
using kill_rank::now_ns;
using kill_rank::Plan;

constexpr int kSteps = 4;
constexpr int32_t kJoinMs = 3000, kArrivalMs = 10000, kLongArrivalMs = 120000;

// Of the last call of the library.
int64_t entered_ns = 0, returned_ns = 0;
// Files of the host that the library took for its own.
int64_t host_mappings = 0;

void tell(const api::Error &error) {
  Event("error")
      .add("status", std::string(tpfsdp_error_status_name(error.status)))
      .add("rank", error.rank)
      .add("entered", entered_ns)
      .add("returned", returned_ns)
      .add("text", std::string(error.what()))
      .write();
}

api::Owned<tpfsdp_context> join(const Plan &plan, Faults &faults) {
  tpfsdp_log_callback log{};
  log.call = [](void *, const tpfsdp_log_args *args) -> tpfsdp_status {
    Event("log").add("text", std::string(args->message)).write();
    return TPFSDP_OK;
  };
  tpfsdp_interrupt_callback interrupt{};
  interrupt.user = &faults;
  interrupt.call = [](void *user, const tpfsdp_interrupt_args *) { return static_cast<Faults *>(user)->interrupt(); };
  tpfsdp_context_options options = TPFSDP_INIT(tpfsdp_context_options);
  options.join_timeout_ms = kJoinMs;
  options.arrival_timeout_ms = plan.fault == "slow90" ? kLongArrivalMs : kArrivalMs;
  options.log = &log;
  options.interrupt = &interrupt;
  tpfsdp_context *context = nullptr;
  API(tpfsdp_context_create, &options, &context);
  return api::Owned<tpfsdp_context>(context);
}

void train(const Plan &plan, chain::Chain &model, Faults &faults) {
  // In the first step what peers show is not yet mapped everywhere.
  const int struck = plan.fault == "reopen" ? 0 : 1;
  int step = 0;
  model.at = [&](const std::string &point) {
    if (faults.has_host_files()) host_mappings += kill_rank::count_mappings(kill_rank::kHostFile);
    if (step != struck) return;
    if (point == "forward b1") faults.at("gather");
    if (point == "in forward b1") faults.at("forward");
    if (point == "in backward b1") faults.at("reduce");
    if (point == "end") faults.at("window");
  };
  while (step < kSteps) {
    try {
      if (step == 0) faults.at("lazy_init");
      if (step == 2) faults.at("step");
      model.step(step);
      ++step;
    } catch (const kill_rank::StepGivenUp &) {
      model.reset();
    } catch (const api::Error &error) {
      if (tpfsdp_error_status_class(error.status) != TPFSDP_ERROR_CLASS_STEP) throw;
      tell(error);
      model.reset();
    }
  }
}

// Of the shards of this rank: with those of its peers they are all parameters. Reading them needs no memory.
std::string hash_of(const chain::Chain &model) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const toy::Layer<float> &layer : model.layers) {
    for (tpfsdp_param *param : {layer.weight, layer.bias}) {
      const tpfsdp_view shard = api::face(param, TPFSDP_FACE_SHARD);
      const auto *bytes = static_cast<const unsigned char *>(shard.data);
      for (int64_t i = 0; i < shard.size_bytes; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
    }
  }
  return std::to_string(hash);
}

// A shutdown that was interrupted goes on when it is called again.
void shut_down(tpfsdp_context *context) {
  try {
    API(tpfsdp_context_shutdown, context);
  } catch (const api::Error &error) {
    if (error.status != TPFSDP_ERR_CANCELLED) throw;
    tell(error);
    API(tpfsdp_context_shutdown, context);
  }
}

tpfsdp_status live(const Plan &plan, Faults &faults) {
  try {
    faults.at("join");
    const api::Owned<tpfsdp_context> context = join(plan, faults);
    faults.context = context.get();
    faults.at("shard");
    chain::Chain model(context.get(), plan.rank);
    faults.root = model.root();
    train(plan, model, faults);
    Event("values").add("hash", hash_of(model)).write();
    faults.at("shutdown");
    shut_down(context.get());
    return TPFSDP_OK;
  } catch (const api::Error &error) {
    tell(error);
    return error.status;
  }
}

}  // namespace

int main(int argc, char **argv) {
  const char *rank = std::getenv("RANK");
  if (argc != 4 || !rank) {
    std::fprintf(stderr, "kill_rank FAULT PHASE VICTIM, with RANK, WORLD_SIZE and TPFSDP_STORE set\n");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const Plan plan{argv[1], argv[2], std::atoi(argv[3]), std::atoi(rank)};
  Faults faults(plan);
  api::around_call = [](bool begins) { (begins ? entered_ns : returned_ns) = now_ns(); };
  const auto before = static_cast<int64_t>(kill_rank::open_descriptors().size());
  const tpfsdp_status status = live(plan, faults);
  const int64_t files_lost = faults.take_back_host_files();
  Event("end")
      .add("status", std::string(tpfsdp_error_status_name(status)))
      .add("before", before)
      .add("after", static_cast<int64_t>(kill_rank::open_descriptors().size()))
      .add("mappings", kill_rank::count_mappings("memfd:tpfsdp"))
      .add("host_mappings", host_mappings)
      .add("host_files_lost", files_lost)
      .add("child_faults", faults.child_faults())
      .write();
  return 0;
}
