// SPDX-License-Identifier: Apache-2.0
#include "module/param.hpp"

#include "base/callback.hpp"
#include "fsdp/param_access.hpp"
#include "guard.hpp"
#include "handle.hpp"
#include "options.hpp"

#include <tpfsdp/param.h>

namespace tpfsdp::capi {
namespace {

Face face_of(tpfsdp_face face) {
  static_assert(TPFSDP_FACE_SHARD == static_cast<int>(Face::kShard) &&
                TPFSDP_FACE_FULL == static_cast<int>(Face::kFull) && TPFSDP_FACE_GRAD == static_cast<int>(Face::kGrad));
  if (face < TPFSDP_FACE_SHARD || face > TPFSDP_FACE_GRAD)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "face is ", face, "; SHARD (1), FULL (2) or GRAD (3) is needed");
  return static_cast<Face>(face);
}

Ref<Param> create(Ref<Tensor> values, tpfsdp_bool requires_grad) {
  return make<Param>(std::move(values), as_bool(requires_grad, "requires_grad"));
}

}  // namespace
}  // namespace tpfsdp::capi

using namespace tpfsdp;
using namespace tpfsdp::capi;

extern "C" {

tpfsdp_status tpfsdp_param_create(const tpfsdp_view *values, tpfsdp_bool requires_grad, tpfsdp_param **out_param,
                                  tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    required(out_param, "out_param");
    const auto param = create(make<Tensor>(required(values, "values"), nullptr), requires_grad);
    *out_param = owned<tpfsdp_param>(param.get());
  });
}

tpfsdp_status tpfsdp_param_create_from_tensor(tpfsdp_tensor *tensor, tpfsdp_bool requires_grad,
                                              tpfsdp_param **out_param, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    required(out_param, "out_param");
    *out_param = owned<tpfsdp_param>(create(hold<Tensor>(tensor, "tensor"), requires_grad).get());
  });
}

tpfsdp_status tpfsdp_param_get_info(tpfsdp_param *param, tpfsdp_param_info *out_info,
                                    tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    Param &p = entry.get<Param>(param, "param");
    tpfsdp_param_info info{};
    info.ndim = static_cast<int32_t>(p.shape().size());
    info.dtype = info.compute_dtype = info.reduce_dtype = p.dtype();
    if (p.unit) {
      const ParamLayout &at = unit_of(p).layout.params[static_cast<size_t>(p.index_in_unit)];
      info.compute_dtype = at.full_dtype;
      info.reduce_dtype = at.reduce_dtype;
    }
    info.requires_grad = p.requires_grad();
    info.is_sharded = p.unit != nullptr;
    info.is_unsharded = p.has(Face::kFull);
    info.has_grad = p.has(Face::kGrad);
    info.shard_dim = describe_shard(p).shard_dim;
    info.place_count = p.place_count();
    info.id = p.id();
    info.global_shape = p.shape().data();
    info.unit = borrowed<tpfsdp_unit>(p.unit);
    info.name = p.name_for_caller();
    write_info(out_info, info, "out_info");
  });
}

tpfsdp_status tpfsdp_param_get_view(tpfsdp_param *param, tpfsdp_face face, tpfsdp_view *out_view,
                                    tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    const Param &p = entry.get<Param>(param, "param");
    required(out_view, "out_view") = view_of_face(p, face_of(face));
  });
}

tpfsdp_status tpfsdp_param_to_tensor(tpfsdp_param *param, tpfsdp_face face, tpfsdp_tensor **out_tensor,
                                     tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    Param &p = entry.get<Param>(param, "param");
    required(out_tensor, "out_tensor");
    *out_tensor = owned<tpfsdp_tensor>(tensor_of_face(p, face_of(face)).get());
  });
}

tpfsdp_status tpfsdp_param_get_shard_info(tpfsdp_param *param, tpfsdp_shard_info *out_info,
                                          tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    Param &p = entry.get<Param>(param, "param");
    const ShardDescription at = describe_shard(p);
    tpfsdp_shard_info info{};
    info.ndim = static_cast<int32_t>(p.shape().size());
    info.global_shape = p.shape().data();
    info.local_shape = at.local_shape;
    info.offsets = at.offsets;
    info.shard_dim = at.shard_dim;
    info.is_ragged = at.flat_offset >= 0;
    info.flat_offset = at.flat_offset;
    info.mesh = borrowed<tpfsdp_mesh>(at.mesh);
    write_info(out_info, info, "out_info");
  });
}

tpfsdp_status tpfsdp_param_set_requires_grad(tpfsdp_param *param, tpfsdp_bool requires_grad,
                                             tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Param &p = entry.get<Param>(param, "param");
    set_requires_grad(p, as_bool(requires_grad, "requires_grad"));
  });
}

tpfsdp_status tpfsdp_param_set_tensor(tpfsdp_param *param, tpfsdp_tensor *tensor,
                                      tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Param &p = entry.get<Param>(param, "param");
    set_tensor(p, hold<Tensor>(tensor, "tensor"));
  });
}

tpfsdp_status tpfsdp_param_set_grad(tpfsdp_param *param, const tpfsdp_view *grad,
                                    tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Param &p = entry.get<Param>(param, "param");
    if (grad) check_view(*grad, "grad");
    set_gradient(sharded(p), grad);
  });
}

tpfsdp_status tpfsdp_param_get_grad_buffer(tpfsdp_param *param, tpfsdp_bool accumulate, tpfsdp_view *out_view,
                                           tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Param &p = entry.get<Param>(param, "param");
    required(out_view, "out_view");
    *out_view = grad_buffer(p, as_bool(accumulate, "accumulate"));
  });
}

tpfsdp_status tpfsdp_param_grad_ready(tpfsdp_param *param, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Param &p = entry.get<Param>(param, "param");
    commit_gradient(unit_of(p), static_cast<size_t>(p.index_in_unit));
  });
}

tpfsdp_status tpfsdp_param_add_grad(tpfsdp_param *param, const tpfsdp_view *grad,
                                    tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    Param &p = entry.get<Param>(param, "param");
    check_view(required(grad, "grad"), "grad");
    add_gradient(unit_of(p), static_cast<size_t>(p.index_in_unit), *grad);
  });
}

tpfsdp_status tpfsdp_param_set_grad_reduced_callback(tpfsdp_param *param, const tpfsdp_grad_reduced_callback *callback,
                                                     tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    using Reduced = Callback<tpfsdp_grad_reduced_args>;
    const Reduced reduced = callback ? Reduced::copy_of(*callback, "callback") : Reduced();
    Entry entry;
    Param &p = entry.get<Param>(param, "param");
    ShardedParam &target = sharded(p);
    if (!reduced) {
      target.grad_reduced = nullptr;
      return;
    }
    target.grad_reduced = [reduced, &p] {
      tpfsdp_grad_reduced_args args{};
      args.struct_size = sizeof args;
      args.param = borrowed<tpfsdp_param>(&p);
      return reduced(args);
    };
  });
}

}  // extern "C"
