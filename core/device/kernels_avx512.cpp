// SPDX-License-Identifier: Apache-2.0
// The kernels for AVX-512 (F, BW, VL, DQ). Compiled with those flags: nothing here may run before the CPU was asked.
// The conversion instructions of AVX512-BF16 are not used: they flush subnormals.
#if defined(__x86_64__)
#include "device/kernels_simd.hpp"

#include <immintrin.h>

// gcc 12 takes the deliberately undefined operand inside its own intrinsics for ours (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace tpfsdp {
namespace {

struct Avx512 {
  using Float = __m512;
  using Double = __m512d;
  static constexpr int64_t kFloats = 16;

  static __m512i integers(uint32_t value) { return _mm512_set1_epi32(static_cast<int32_t>(value)); }
  static __m256i load_half(const char *data) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(data)); }

  static Float load_f32(const char *data) { return _mm512_loadu_ps(data); }
  static Double load_f64(const char *data) { return _mm512_loadu_pd(data); }
  static Float load_f16(const char *data) { return _mm512_cvtph_ps(load_half(data)); }
  static Float load_bf16(const char *data) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(data)), 16));
  }
  static Float load(float, const char *data) { return load_f32(data); }
  static Double load(double, const char *data) { return load_f64(data); }

  static void store(char *data, Float value) { _mm512_storeu_ps(data, value); }
  static void store(char *data, Double value) { _mm512_storeu_pd(data, value); }
  static void store_f16(char *data, Float value) {
    const __m256i half = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(data), half);
  }
  static void store_bf16(char *data, Float value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), integers(kBf16Odd));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, integers(kBf16Half)), odd), 16);
    const __m512i nan = _mm512_or_si512(_mm512_srli_epi32(bits, 16), integers(0x40));
    const __m512i words = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), rounded, nan);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(data), _mm512_cvtepi32_epi16(words));
  }

  static Float all(float value) { return _mm512_set1_ps(value); }
  static Double all(double value) { return _mm512_set1_pd(value); }
  static Float add(Float left, Float right) { return _mm512_add_ps(left, right); }
  static Double add(Double left, Double right) { return _mm512_add_pd(left, right); }
  static Float multiply(Float left, Float right) { return _mm512_mul_ps(left, right); }
  static Double multiply(Double left, Double right) { return _mm512_mul_pd(left, right); }

  static Float quiet_bf16(Float value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, is_nan, bits, integers(0x400000)));
  }
  static Float one_nan(Float value) {
    const Float nan = _mm512_castsi512_ps(integers(kF32Nan));
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), value, nan);
  }
  static Double one_nan(Double value) {
    const Double nan = _mm512_castsi512_pd(_mm512_set1_epi64(static_cast<int64_t>(kF64Nan)));
    return _mm512_mask_blend_pd(_mm512_cmp_pd_mask(value, value, _CMP_UNORD_Q), value, nan);
  }

  static constexpr int64_t kStreamBytes = 64;
  static void stream(char *aligned, const char *data) {
    _mm512_stream_si512(reinterpret_cast<__m512i *>(aligned), _mm512_loadu_si512(data));
  }
  static void fence() { _mm_sfence(); }
};

}  // namespace

extern const KernelTable kAvx512Kernels = simd_table<Avx512>("avx512");

}  // namespace tpfsdp
#endif
