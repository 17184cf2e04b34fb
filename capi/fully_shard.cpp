// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fully_shard.hpp"

#include "base/callback.hpp"
#include "guard.hpp"
#include "handle.hpp"
#include "options.hpp"

#include <tpfsdp/fully_shard.h>

namespace tpfsdp::capi {
namespace {

ReshardKind reshard_of(const tpfsdp_reshard &reshard) {
  switch (reshard.kind) {
    case TPFSDP_RESHARD_SIZE: return ReshardKind::kSize;
    case TPFSDP_RESHARD_AUTO:
    case TPFSDP_RESHARD_ALWAYS:
    case TPFSDP_RESHARD_NEVER:
      if (reshard.size != 0)
        fail(TPFSDP_ERR_INVALID_ARGUMENT, "reshard_after_forward.size is ", reshard.size, " without kind SIZE");
      return static_cast<ReshardKind>(reshard.kind);
    default:
      fail(TPFSDP_ERR_INVALID_ARGUMENT, "reshard_after_forward.kind is ", reshard.kind,
           "; AUTO (0), ALWAYS (1), NEVER (2) or SIZE (3) is needed");
  }
}

InitMode init_of(tpfsdp_init_mode init) {
  if (init == TPFSDP_INIT_DEFAULT) return InitMode::kVerify;
  if (init < TPFSDP_INIT_VERIFY || init > TPFSDP_INIT_BROADCAST)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "init is ", init, "; VERIFY (1), TRUST (2) or BROADCAST (3) is needed");
  return static_cast<InitMode>(init);
}

UnshardMode unshard_mode_of(tpfsdp_unshard_mode mode) {
  if (mode < TPFSDP_UNSHARD_AUTO || mode > TPFSDP_UNSHARD_MAPPED)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "unshard_mode is ", mode,
         "; AUTO (0), PRIVATE (1), SHARED (2) or MAPPED (3) is needed");
  return static_cast<UnshardMode>(mode);
}

Ownership ownership_of(tpfsdp_layout layout, tpfsdp_granule granule, int32_t size) {
  if (layout < TPFSDP_LAYOUT_DEFAULT || layout > TPFSDP_LAYOUT_CONTIGUOUS)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "layout is ", layout, "; ROWS (1) or CONTIGUOUS (2) is needed");
  if (granule < TPFSDP_GRANULE_DEFAULT || granule > TPFSDP_GRANULE_BLOCK)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "granule is ", granule, "; ELEMENT (1), ROW (2) or BLOCK (3) is needed");
  if (layout != TPFSDP_LAYOUT_CONTIGUOUS && granule != TPFSDP_GRANULE_DEFAULT)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "granule is ", granule, " without layout CONTIGUOUS");
  if ((granule == TPFSDP_GRANULE_BLOCK) != (size > 0) || size < 0)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "granule_size is ", size,
         "; it is a number of rows with granule BLOCK, and 0 without");
  const int64_t rows = granule == TPFSDP_GRANULE_ELEMENT ? 0 : granule == TPFSDP_GRANULE_BLOCK ? size : 1;
  return {layout == TPFSDP_LAYOUT_CONTIGUOUS, rows};
}

MixedPrecision precision_of(const tpfsdp_mixed_precision_policy *given) {
  if (!given) return {};
  const auto read = read_options(given, "tpfsdp_mixed_precision_policy");
  return {read.param_dtype, read.reduce_dtype, read.output_dtype, read.cast_forward_inputs != TPFSDP_TOGGLE_OFF};
}

HostMemory host_memory_of(const tpfsdp_memory_callback *given) {
  if (!given) return {};
  const auto callback = Callback<tpfsdp_memory_args>::copy_of(*given, "host_memory");
  return [callback](bool acquire, Param &param, int64_t size_bytes, void **data) {
    const tpfsdp_stream stream{TPFSDP_DEVICE_CPU, 0, nullptr};
    tpfsdp_memory_args args{};
    args.struct_size = sizeof args;
    args.op = acquire ? TPFSDP_MEMORY_ACQUIRE : TPFSDP_MEMORY_RELEASE;
    args.size_bytes = size_bytes;
    args.alignment_bytes = alignment_for(size_bytes);
    args.device_type = TPFSDP_DEVICE_CPU;
    args.param = borrowed<tpfsdp_param>(&param);
    args.data = data;
    args.stream = &stream;
    return callback(args);
  };
}

}  // namespace
}  // namespace tpfsdp::capi

using namespace tpfsdp;
using namespace tpfsdp::capi;

extern "C" {

tpfsdp_status tpfsdp_fully_shard(tpfsdp_module *const *modules, int64_t module_count, tpfsdp_mesh *mesh,
                                 const tpfsdp_fully_shard_options *options, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    std::vector<Ref<Module>> taken;
    as_count(module_count, modules, "module_count");
    for (int64_t i = 0; i < module_count; ++i) taken.emplace_back(&entry.get<Module>(modules[i], "modules[i]"));
    const Ref<Mesh> over(entry.get_or_null<Mesh>(mesh, "mesh"));
    // Read by the core once it knows whom to tell of a fault in them.
    fully_shard(taken, over, [&] {
      const auto read = read_options(options, "tpfsdp_fully_shard_options");
      ShardOptions shard;
      shard.host_memory = host_memory_of(read.host_memory);
      shard.reshard = reshard_of(read.reshard_after_forward);
      shard.reshard_size = read.reshard_after_forward.size;
      shard.init = init_of(read.init);
      shard.ownership = ownership_of(read.layout, read.granule, read.granule_size);
      shard.precision = precision_of(read.mp_policy);
      shard.unshard_mode = unshard_mode_of(read.unshard_mode);
      const int64_t ignored = as_count(read.ignored_param_count, read.ignored_params, "ignored_param_count");
      for (int64_t i = 0; i < ignored; ++i)
        shard.ignored.push_back(&entry.get<Param>(read.ignored_params[i], "ignored_params[i]"));
      return shard;
    });
  });
}

}  // extern "C"
