// SPDX-License-Identifier: Apache-2.0
#include "device/reduce_integers.hpp"

#include "base/error.hpp"
#include "device/element.hpp"

namespace tpfsdp {
namespace {

// In unsigned arithmetic of at least 32 bits, where wrapping is defined.
template <class T>
T wrapped_sum(T left, T right) {
  return static_cast<T>(static_cast<uint64_t>(left) + static_cast<uint64_t>(right));
}

template <class T>
T divided(T sum, int64_t divisor) {
  if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(static_cast<int64_t>(sum) / divisor);
  } else {
    return static_cast<T>(static_cast<uint64_t>(sum) / static_cast<uint64_t>(divisor));
  }
}

template <class T, class Combine, class Finish>
void fold(const void *const *inputs, int32_t input_count, void *output, int64_t count, bool accumulate,
          Combine &&combine, Finish &&finish) {
  for (int64_t i = 0; i < count; ++i) {
    T result = load<T>(inputs[0], i);
    for (int32_t rank = 1; rank < input_count; ++rank) result = combine(result, load<T>(inputs[rank], i));
    result = finish(result);
    store<T>(output, i, accumulate ? wrapped_sum(load<T>(output, i), result) : result);
  }
}

int64_t whole_divisor(double divisor) {
  const bool is_in_range = divisor >= 1.0 && divisor < 0x1p62;
  if (!is_in_range || static_cast<double>(static_cast<int64_t>(divisor)) != divisor)
    fail(TPFSDP_ERR_UNSUPPORTED, "an average of integers divides by ", divisor, "; only a whole number can be used");
  return static_cast<int64_t>(divisor);
}

}  // namespace

void reduce_integers(tpfsdp_reduce_op op, const void *const *inputs, int32_t input_count, tpfsdp_dtype dtype,
                     void *output, int64_t count, double divisor, bool accumulate) {
  const int64_t whole = op == TPFSDP_REDUCE_AVG ? whole_divisor(divisor) : 1;
  with_integer(dtype, [&]<class T>(T) {
    const auto same = [](T value) { return value; };
    switch (op) {
      case TPFSDP_REDUCE_MIN:
        return fold<T>(inputs, input_count, output, count, accumulate, [](T a, T b) { return b < a ? b : a; }, same);
      case TPFSDP_REDUCE_MAX:
        return fold<T>(inputs, input_count, output, count, accumulate, [](T a, T b) { return b > a ? b : a; }, same);
      case TPFSDP_REDUCE_AVG:
        return fold<T>(inputs, input_count, output, count, accumulate, wrapped_sum<T>,
                       [whole](T sum) { return divided(sum, whole); });
      default: return fold<T>(inputs, input_count, output, count, accumulate, wrapped_sum<T>, same);
    }
  });
}

}  // namespace tpfsdp
