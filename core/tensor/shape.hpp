// SPDX-License-Identifier: Apache-2.0
// Shapes of dense row-major tensors, with arithmetic that cannot overflow silently.
#pragma once

#include "tensor/dtype.hpp"

#include <string>
#include <vector>

namespace tpfsdp {

using Shape = std::vector<int64_t>;

constexpr int32_t kMaxNdim = 64;  // NumPy's; more is a record that was never filled

int64_t element_count(const Shape &shape);   // 1 for a scalar; throws on a negative extent or overflow
std::string shape_text(const Shape &shape);  // "(3, 4)", "(3)", "()"
Shape shape_of(const tpfsdp_view &view);
bool has_shape(const tpfsdp_view &view, const Shape &shape) noexcept;  // without a copy
// The shape of an (array, ndim) pair of arguments; refuses a bad ndim, a NULL array, negative extents, overflow.
Shape checked_shape(const int64_t *extents, int32_t ndim, const char *what);
Shape dense_strides(const Shape &shape);  // row-major, in elements

bool is_known_device(tpfsdp_device_type device) noexcept;

// Refuses, naming the fault and `what`: bad ndim, dtype, size, strides that are not dense row-major (UNSUPPORTED), NULL
// data of a tensor with elements.
void check_view(const tpfsdp_view &view, const char *what);

// Refuses memory that the CPU cannot read (UNSUPPORTED), naming its owner; META, which has none, where it is allowed.
void check_in_host_memory(const tpfsdp_view &view, const std::string &owner, bool allows_meta);

}  // namespace tpfsdp
