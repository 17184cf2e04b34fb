// SPDX-License-Identifier: Apache-2.0
// The kernels for AVX2 with F16C. Compiled with those flags: nothing here may run before the CPU was asked.
#if defined(__x86_64__)
#include "device/kernels_simd.hpp"

#include <immintrin.h>

namespace tpfsdp {
namespace {

struct Avx2 {
  using Float = __m256;
  using Double = __m256d;
  static constexpr int64_t kFloats = 8;

  static __m256i integers(uint32_t value) { return _mm256_set1_epi32(static_cast<int32_t>(value)); }
  static __m128i load_half(const char *data) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(data)); }

  static Float load_f32(const char *data) { return _mm256_loadu_ps(reinterpret_cast<const float *>(data)); }
  static Double load_f64(const char *data) { return _mm256_loadu_pd(reinterpret_cast<const double *>(data)); }
  static Float load_f16(const char *data) { return _mm256_cvtph_ps(load_half(data)); }
  static Float load_bf16(const char *data) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(data)), 16));
  }
  static Float load(float, const char *data) { return load_f32(data); }
  static Double load(double, const char *data) { return load_f64(data); }

  static void store(char *data, Float value) { _mm256_storeu_ps(reinterpret_cast<float *>(data), value); }
  static void store(char *data, Double value) { _mm256_storeu_pd(reinterpret_cast<double *>(data), value); }
  static void store_f16(char *data, Float value) {
    const __m128i half = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i *>(data), half);
  }
  static void store_bf16(char *data, Float value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), integers(kBf16Odd));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, integers(kBf16Half)), odd), 16);
    const __m256i nan = _mm256_or_si256(_mm256_srli_epi32(bits, 16), integers(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, nan, is_nan);
    const __m256i packed = _mm256_packus_epi32(words, words);  // each half twice within its lane
    _mm_storeu_si128(reinterpret_cast<__m128i *>(data), _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
  }

  static Float all(float value) { return _mm256_set1_ps(value); }
  static Double all(double value) { return _mm256_set1_pd(value); }
  static Float add(Float left, Float right) { return _mm256_add_ps(left, right); }
  static Double add(Double left, Double right) { return _mm256_add_pd(left, right); }
  static Float multiply(Float left, Float right) { return _mm256_mul_ps(left, right); }
  static Double multiply(Double left, Double right) { return _mm256_mul_pd(left, right); }

  static Float quiet_bf16(Float value) {
    const Float is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    return _mm256_or_ps(value, _mm256_and_ps(is_nan, _mm256_castsi256_ps(integers(0x400000))));
  }
  static Float one_nan(Float value) {
    const Float nan = _mm256_castsi256_ps(integers(kF32Nan));
    return _mm256_blendv_ps(value, nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  }
  static Double one_nan(Double value) {
    const Double nan = _mm256_castsi256_pd(_mm256_set1_epi64x(static_cast<int64_t>(kF64Nan)));
    return _mm256_blendv_pd(value, nan, _mm256_cmp_pd(value, value, _CMP_UNORD_Q));
  }

  static constexpr int64_t kStreamBytes = 32;
  static void stream(char *aligned, const char *data) {
    const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(data));
    _mm256_stream_si256(reinterpret_cast<__m256i *>(aligned), value);
  }
  static void fence() { _mm_sfence(); }
};

}  // namespace

extern const KernelTable kAvx2Kernels = simd_table<Avx2>("avx2");

}  // namespace tpfsdp
#endif
