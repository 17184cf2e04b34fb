// SPDX-License-Identifier: Apache-2.0
#include "tensor/shape.hpp"

#include "base/error.hpp"

#include <algorithm>

namespace tpfsdp {
namespace {

// What a layout that is refused is called. Extents of 1 say nothing.
const char *layout_name(const Shape &shape, const int64_t *strides) {
  bool is_reversed = false, is_broadcast = false, is_column_major = true;
  int64_t column_stride = 1;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] == 1) continue;
    is_reversed = is_reversed || strides[dim] < 0;
    is_broadcast = is_broadcast || strides[dim] == 0;
    is_column_major = is_column_major && strides[dim] == column_stride;
    column_stride *= shape[dim];  // cannot overflow: the element count fits
  }
  if (is_reversed) return "reversed";
  if (is_broadcast) return "broadcast";
  return is_column_major ? "column-major (transposed)" : "strided (a slice or a permutation)";
}

void check_strides(const Shape &shape, const int64_t *strides, const char *what) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;  // nothing is addressed
  const Shape dense = dense_strides(shape);
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] != 1 && strides[dim] != dense[dim])
      fail(TPFSDP_ERR_UNSUPPORTED, what, " of shape ", shape_text(shape), " is ", layout_name(shape, strides),
           ": its strides are ", shape_text(Shape(strides, strides + shape.size())), ", dense row-major ones are ",
           shape_text(dense), "; make a contiguous copy first");
  }
}

}  // namespace

int64_t element_count(const Shape &shape) {
  int64_t count = 1;
  bool overflows = false, is_empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) fail(TPFSDP_ERR_INVALID_ARGUMENT, "shape ", shape_text(shape), " has a negative extent");
    is_empty = is_empty || extent == 0;
    overflows = overflows || __builtin_mul_overflow(count, extent, &count);
  }
  if (is_empty) return 0;
  if (overflows)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, "shape ", shape_text(shape), " has more elements than fit in int64_t");
  return count;
}

std::string shape_text(const Shape &shape) {
  std::string text = "(";
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (dim) text += ", ";
    text += std::to_string(shape[dim]);
  }
  return text += ')';
}

Shape shape_of(const tpfsdp_view &view) {
  return view.ndim > 0 && view.shape ? Shape(view.shape, view.shape + view.ndim) : Shape();
}

Shape checked_shape(const int64_t *extents, int32_t ndim, const char *what) {
  if (ndim < 0 || ndim > kMaxNdim)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, what, " has ndim ", ndim, "; from 0 to ", kMaxNdim, " are possible");
  if (ndim > 0 && !extents) fail(TPFSDP_ERR_INVALID_ARGUMENT, what, " has ndim ", ndim, ", but its shape is NULL");
  Shape shape;
  if (ndim > 0) shape.assign(extents, extents + ndim);
  for (const int64_t extent : shape) {
    if (extent < 0)
      fail(TPFSDP_ERR_INVALID_ARGUMENT, what, " has shape ", shape_text(shape), "; an extent cannot be negative");
  }
  element_count(shape);
  return shape;
}

Shape dense_strides(const Shape &shape) {
  Shape strides(shape.size());
  int64_t stride = 1;
  for (size_t dim = shape.size(); dim-- > 0;) {
    strides[dim] = stride;
    // Past an extent of 0 nothing is addressed, so any number will do; it must only not overflow.
    if (__builtin_mul_overflow(stride, std::max<int64_t>(shape[dim], 1), &stride)) stride = 1;
  }
  return strides;
}

bool is_known_device(tpfsdp_device_type device) noexcept {
  switch (device) {
    case TPFSDP_DEVICE_CPU:
    case TPFSDP_DEVICE_CUDA:
    case TPFSDP_DEVICE_CUDA_HOST:
    case TPFSDP_DEVICE_ROCM:
    case TPFSDP_DEVICE_ROCM_HOST:
    case TPFSDP_DEVICE_CUDA_MANAGED:
    case TPFSDP_DEVICE_META: return true;
    default: return false;
  }
}

void check_view(const tpfsdp_view &view, const char *what) {
  const Shape shape = checked_shape(view.shape, view.ndim, what);
  if (dtype_bits(view.dtype) == 0)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, what, " has dtype ", view.dtype, ", which is not an element type");
  if (!is_known_device(view.device_type))
    fail(view.device_type == TPFSDP_DEVICE_DEFAULT ? TPFSDP_ERR_INVALID_ARGUMENT : TPFSDP_ERR_UNSUPPORTED, what,
         " is on device type ", view.device_type, "; CPU memory is 1 (TPFSDP_DEVICE_CPU)");
  const int64_t count = element_count(shape);
  const int64_t size_bytes = dtype_bytes(view.dtype, count);
  if (view.size_bytes != size_bytes)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, what, " has size_bytes ", view.size_bytes, ", but shape ", shape_text(shape),
         " of ", dtype_name(view.dtype), " takes ", size_bytes);
  const bool has_memory = view.device_type != TPFSDP_DEVICE_META;
  if (!has_memory && view.data) fail(TPFSDP_ERR_INVALID_ARGUMENT, what, " is on META, where data must be NULL");
  if (has_memory && count > 0 && !view.data)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, what, " of shape ", shape_text(shape), " has NULL data");
  if (view.read_only != 0 && view.read_only != 1)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, what, ".read_only is ", view.read_only, "; it is 0 or 1");
  if (view.reserved != 0)
    fail(TPFSDP_ERR_INVALID_ARGUMENT, what, ".reserved is ", view.reserved, "; it is 0: was the view filled?");
  if (view.strides && view.ndim > 0) check_strides(shape, view.strides, what);
}

void check_in_host_memory(const tpfsdp_view &view, const std::string &owner, bool allows_meta) {
  if (view.device_type == TPFSDP_DEVICE_CPU || (allows_meta && view.device_type == TPFSDP_DEVICE_META)) return;
  fail(TPFSDP_ERR_UNSUPPORTED, "the memory for ", owner, " is on device type ", view.device_type,
       "; this version works on CPU memory (device type ", static_cast<int32_t>(TPFSDP_DEVICE_CPU), ")");
}

bool has_shape(const tpfsdp_view &view, const Shape &shape) noexcept {
  return static_cast<size_t>(view.ndim) == shape.size() && std::equal(shape.begin(), shape.end(), view.shape);
}

}  // namespace tpfsdp
