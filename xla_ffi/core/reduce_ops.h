// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The seven operations on two elements, for every type that is reduced as itself.
//
// Included by each kernel file, hence everything is internal to its translation unit.
#ifndef STRATA_CORE_REDUCE_OPS_H_
#define STRATA_CORE_REDUCE_OPS_H_

#include <cstdint>
#include <cstring>

#include "core/elements.h"

namespace {

template <typename T>
struct IsComplex {
  static constexpr bool value = false;
};
template <typename A>
struct IsComplex<Complex<A>> {
  static constexpr bool value = true;
};
template <typename T>
constexpr bool kIsFloat = static_cast<T>(0.5) != static_cast<T>(0);
template <>
constexpr bool kIsFloat<Complex<float>> = false;
template <>
constexpr bool kIsFloat<Complex<double>> = false;

// An unsigned type of the same size: sums and products of signed integers wrap.
template <typename T>
struct Bits;
template <>
struct Bits<int8_t> {
  using U = uint8_t;
};
template <>
struct Bits<uint8_t> {
  using U = uint8_t;
};
template <>
struct Bits<int16_t> {
  using U = uint16_t;
};
template <>
struct Bits<uint16_t> {
  using U = uint16_t;
};
template <>
struct Bits<int32_t> {
  using U = uint32_t;
};
template <>
struct Bits<uint32_t> {
  using U = uint32_t;
};
template <>
struct Bits<int64_t> {
  using U = uint64_t;
};
template <>
struct Bits<uint64_t> {
  using U = uint64_t;
};
template <>
struct Bits<float> {
  using U = uint32_t;
  using S = int32_t;
  static constexpr U kInfinity = 0x7f800000u;
};
template <>
struct Bits<double> {
  using U = uint64_t;
  using S = int64_t;
  static constexpr U kInfinity = 0x7ff0000000000000u;
};

struct Sum {
  template <typename A>
  static A Apply(A a, A b) {
    if constexpr (IsComplex<A>::value) {
      return {a.re + b.re, a.im + b.im};
    } else if constexpr (kIsFloat<A>) {
      return a + b;
    } else {
      return static_cast<A>(static_cast<typename Bits<A>::U>(a) +
                            static_cast<typename Bits<A>::U>(b));
    }
  }
};

// The value as it is, rounded. GCC 12 vectorizes the products and sums of a complex multiplication
// as one instruction that rounds once (vfmaddsub, with AVX-512), also with -ffp-contract=off.
template <typename T>
inline T Rounded(T value) {
#if defined(__x86_64__)
  asm("" : "+x"(value));
#elif defined(__aarch64__)
  asm("" : "+w"(value));
#endif
  return value;
}

struct Product {
  template <typename A>
  static A Apply(A a, A b) {
    if constexpr (IsComplex<A>::value) {
      return {Rounded(a.re * b.re) - Rounded(a.im * b.im),
              Rounded(a.re * b.im) + Rounded(a.im * b.re)};
    } else if constexpr (kIsFloat<A>) {
      return a * b;
    } else {
      // 16-bit factors promote to int, whose product may overflow.
      return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    }
  }
};

// As XLA's maximum and minimum: NaN wins (the lower rank's), and -0 is below +0. On the bits,
// since comparisons of denormals under denormals-are-zero would call them equal.
template <bool kMax>
struct Extreme {
  template <typename A>
  static A Apply(A a, A b) {
    if constexpr (kIsFloat<A>) {
      using U = typename Bits<A>::U;
      using S = typename Bits<A>::S;
      constexpr U kNoSign = ~U{0} >> 1;
      U x, y;
      std::memcpy(&x, &a, sizeof x);
      std::memcpy(&y, &b, sizeof y);
      const S x_order = static_cast<S>(x) < 0 ? static_cast<S>(x ^ kNoSign) : static_cast<S>(x);
      const S y_order = static_cast<S>(y) < 0 ? static_cast<S>(y ^ kNoSign) : static_cast<S>(y);
      U chosen = (kMax ? x_order > y_order : x_order < y_order) ? x : y;
      chosen = (y & kNoSign) > Bits<A>::kInfinity ? y : chosen;
      chosen = (x & kNoSign) > Bits<A>::kInfinity ? x : chosen;
      A result;
      std::memcpy(&result, &chosen, sizeof result);
      return result;
    } else {
      return (kMax ? a > b : a < b) ? a : b;
    }
  }
};

struct And {
  template <typename A>
  static A Apply(A a, A b) {
    return static_cast<A>(a & b);
  }
};
struct Or {
  template <typename A>
  static A Apply(A a, A b) {
    return static_cast<A>(a | b);
  }
};
struct Xor {
  template <typename A>
  static A Apply(A a, A b) {
    return static_cast<A>(a ^ b);
  }
};

}  // namespace

#endif  // STRATA_CORE_REDUCE_OPS_H_
