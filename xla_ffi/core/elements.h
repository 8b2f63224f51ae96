// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// How an element of each type lies in memory, and the type it is reduced as: 16-bit and 8-bit
// floats as float, packed integers as bytes, all others as themselves.
//
// Included by each kernel file, hence everything is internal to its translation unit.
#ifndef STRATA_CORE_ELEMENTS_H_
#define STRATA_CORE_ELEMENTS_H_

#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "core/float8.h"

namespace {

template <typename A>
struct Complex {
  A re, im;
};

template <typename T>
struct Plain {
  using Acc = T;
  static constexpr int kBits = 8 * sizeof(T);
};

struct BFloat16 {
  using Acc = float;
  static constexpr int kBits = 16;
  static void Load(const void* from, float* to, int count) {
    const uint16_t* src = static_cast<const uint16_t*>(from);
    for (int i = 0; i < count; ++i) {
      const uint32_t bits = static_cast<uint32_t>(src[i]) << 16;
      std::memcpy(&to[i], &bits, sizeof bits);
    }
  }
  static void Store(const float* from, void* to, int count) {
    uint16_t* dst = static_cast<uint16_t*>(to);
    for (int i = 0; i < count; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &from[i], sizeof bits);
      const uint32_t nan = (bits >> 16) | 0x40;  // quiet
      const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
      dst[i] = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
    }
  }
};

struct Float16 {
  using Acc = float;
  static constexpr int kBits = 16;
  // Integer arithmetic only: flush-to-zero must not touch small halves.
  static float Decode(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    uint32_t exponent = (half >> 10) & 31, mantissa = half & 0x3ff, bits;
    if (exponent == 31) {
      bits = 0x7f800000 | (mantissa << 13) | (mantissa != 0 ? 0x400000 : 0);
    } else if (exponent != 0) {
      bits = ((exponent + 112) << 23) | (mantissa << 13);
    } else if (mantissa == 0) {
      bits = 0;
    } else {
      const int shift = __builtin_clz(mantissa) - 21;
      bits = (static_cast<uint32_t>(113 - shift) << 23) | (((mantissa << shift) & 0x3ff) << 13);
    }
    bits |= sign;
    float value;
    std::memcpy(&value, &bits, sizeof bits);
    return value;
  }
  static uint16_t Encode(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00 | static_cast<uint16_t>((bits >> 13) & 0x1ff);
    if (bits >= 0x47800000) return sign | 0x7c00;  // 65,536 and above
    if (bits < 0x33000000) return sign;            // under 2^-25
    int shift = 13;
    uint32_t mantissa = bits, base = 112u << 10;
    if (bits < 0x38800000) {  // under 2^-14: a subnormal half
      shift = 126 - static_cast<int>(bits >> 23);
      mantissa = (bits & 0x7fffff) | 0x800000;
      base = 0;
    }
    const uint32_t half = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1), middle = 1u << (shift - 1);
    const uint32_t up = rest > middle || (rest == middle && (half & 1) != 0) ? 1 : 0;
    return static_cast<uint16_t>(sign | (half - base + up));
  }
  static void Load(const void* from, float* to, int count) {
    const uint16_t* src = static_cast<const uint16_t*>(from);
    int i = 0;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8) {
      _mm256_storeu_ps(to + i,
                       _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i))));
    }
#endif
    for (; i < count; ++i) to[i] = Decode(src[i]);
  }
  static void Store(const float* from, void* to, int count) {
    uint16_t* dst = static_cast<uint16_t*>(to);
    int i = 0;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (; i < count; ++i) dst[i] = Encode(from[i]);
  }
};

template <typename Format>
struct Float8 {
  using Acc = float;
  static constexpr int kBits = 8;
  static void Load(const void* from, float* to, int count) {
    const uint8_t* src = static_cast<const uint8_t*>(from);
    for (int i = 0; i < count; ++i) to[i] = Format::Decode(src[i]);
  }
  static void Store(const float* from, void* to, int count) {
    uint8_t* dst = static_cast<uint8_t*>(to);
    for (int i = 0; i < count; ++i) dst[i] = Format::Encode(from[i]);
  }
};

template <int kWidth, bool kSigned>
struct Packed {
  using Acc = int8_t;
  static constexpr int kBits = kWidth;
  static constexpr int kPerByte = 8 / kWidth;
  static void Load(const void* from, int8_t* to, int count) {
    const uint8_t* src = static_cast<const uint8_t*>(from);
    for (int i = 0; i < count; ++i) {
      const uint8_t high =
          static_cast<uint8_t>(src[i / kPerByte] << (8 - kWidth * (i % kPerByte + 1)));
      to[i] = kSigned ? static_cast<int8_t>(static_cast<int8_t>(high) >> (8 - kWidth))
                      : static_cast<int8_t>(high >> (8 - kWidth));
    }
  }
  static void Store(const int8_t* from, void* to, int count) {
    uint8_t* dst = static_cast<uint8_t*>(to);
    constexpr uint8_t kMask = (1 << kWidth) - 1;
    for (int i = 0; i < count; i += kPerByte) {
      uint8_t byte = 0;
      for (int k = 0; k < kPerByte && i + k < count; ++k) {
        byte = static_cast<uint8_t>(byte | (from[i + k] & kMask) << (kWidth * k));
      }
      dst[i / kPerByte] = byte;
    }
  }
};

}  // namespace

#endif  // STRATA_CORE_ELEMENTS_H_
