// SPDX-License-Identifier: Apache-2.0
// The kernels in plain C++, for any CPU; what the other levels must equal bit for bit.
#include "device/float_formats.hpp"
#include "device/kernel_table.hpp"

#include <cstring>

namespace tpfsdp {
namespace {

float widen(float value) { return value; }
double widen(double value) { return value; }

// Sums of a block are kept on the stack, so that each source is read in one sweep that vectorises.
constexpr int64_t kBlock = 256;

template <class Real, class Element, auto Widen>
void sum(const void *const *inputs, int32_t input_count, Real scale, bool accumulate, void *output, int64_t count) {
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t length = count - start < kBlock ? count - start : kBlock;
    Real total[kBlock];
    for (int64_t i = 0; i < length; ++i) total[i] = Widen(load<Element>(inputs[0], start + i));
    for (int32_t rank = 1; rank < input_count; ++rank) {
      for (int64_t i = 0; i < length; ++i) total[i] = total[i] + Widen(load<Element>(inputs[rank], start + i));
    }
    for (int64_t i = 0; i < length; ++i) total[i] = total[i] * scale;
    if (accumulate) {
      for (int64_t i = 0; i < length; ++i) total[i] = load<Real>(output, start + i) + total[i];
    }
    for (int64_t i = 0; i < length; ++i) store<Real>(output, start + i, one_nan(total[i]));
  }
}

template <class Target, class Source, auto Convert>
void convert(void *target, const void *source, int64_t count) {
  for (int64_t i = 0; i < count; ++i) store<Target>(target, i, Convert(load<Source>(source, i)));
}

void stream_bytes(void *target, const void *source, int64_t size_bytes) {
  std::memcpy(target, source, static_cast<size_t>(size_bytes));
}

constexpr float (*kSame)(float) = widen;
constexpr double (*kSameDouble)(double) = widen;

}  // namespace

extern const KernelTable kBaselineKernels = {
    .level = "baseline",
    .sum_f32 = sum<float, float, kSame>,
    .sum_bf16 = sum<float, uint16_t, f32_from_bf16>,
    .sum_f16 = sum<float, uint16_t, f32_from_f16>,
    .sum_f64 = sum<double, double, kSameDouble>,
    .f32_from_bf16 = convert<float, uint16_t, f32_from_bf16>,
    .f32_from_f16 = convert<float, uint16_t, f32_from_f16>,
    .bf16_from_f32 = convert<uint16_t, float, bf16_from_f32>,
    .f16_from_f32 = convert<uint16_t, float, f16_from_f32>,
    .stream_bytes = stream_bytes,
};

}  // namespace tpfsdp
