// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The 8-bit floating point formats, each described by five facts, with conversion by table.
// Formats: the OCP 8-bit floating point specification (E4M3FN, E5M2), arXiv 2206.02915 (the FNUZ
// forms) and IEEE 754 style E4M3 and E3M4, as in ml_dtypes.
//
// Included by each kernel file, hence everything is internal to its translation unit.
#ifndef STRATA_CORE_FLOAT8_H_
#define STRATA_CORE_FLOAT8_H_

#include <cstdint>
#include <cstring>

namespace {

enum class Specials {
  kIeee,  // the highest exponent is infinity and NaN
  kFn,    // finite, NaN is all ones
  kFnuz,  // finite, unsigned zero; NaN is the sign bit alone
};

template <int kMantissaBits, int kBias, Specials kSpecials>
struct Float8Format {
  static constexpr int kExponentBits = 7 - kMantissaBits;
  static constexpr int kMaxFinite = kSpecials == Specials::kIeee
                                        ? ((1 << kExponentBits) - 1) * (1 << kMantissaBits) - 1
                                    : kSpecials == Specials::kFn ? 0x7e
                                                                 : 0x7f;
  static constexpr uint8_t kNan =
      kSpecials == Specials::kIeee
          ? static_cast<uint8_t>(kMaxFinite + 1 + (1 << (kMantissaBits - 1)))
      : kSpecials == Specials::kFn ? 0x7f
                                   : 0x80;
  static constexpr uint8_t kOverflow =
      kSpecials == Specials::kIeee ? static_cast<uint8_t>(kMaxFinite + 1) : kNan;

  // Value of a code without its sign, as if there were no special codes.
  static constexpr double Magnitude(int code) {
    const int exponent = code >> kMantissaBits;
    const int mantissa = code & ((1 << kMantissaBits) - 1);
    double value = exponent == 0 ? mantissa : mantissa + (1 << kMantissaBits);
    int power = (exponent == 0 ? 1 : exponent) - kBias - kMantissaBits;
    for (; power > 0; --power) value *= 2;
    for (; power < 0; ++power) value /= 2;
    return value;
  }

  struct Tables {
    float value[256];
    float middle[128];  // between code and code + 1, for rounding to nearest even
  };
  static constexpr Tables MakeTables() {
    Tables tables{};
    for (int code = 0; code < 128; ++code) {
      float value = static_cast<float>(Magnitude(code));
      if (code > kMaxFinite) {
        const bool is_infinity = kSpecials == Specials::kIeee && code == kMaxFinite + 1;
        value = is_infinity ? __builtin_inff() : __builtin_nanf("");
      }
      tables.value[code] = value;
      tables.value[code + 128] = -value;
      tables.middle[code] = static_cast<float>((Magnitude(code) + Magnitude(code + 1)) / 2);
    }
    if (kSpecials == Specials::kFnuz) tables.value[128] = __builtin_nanf("");
    return tables;
  }
  static constexpr Tables kTables = MakeTables();

  static float Decode(uint8_t code) { return kTables.value[code]; }

  static uint8_t Encode(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return kSpecials == Specials::kFnuz ? kNan : kNan | sign;
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof bits);
    int code = 0;  // the first code whose middle is not below the value, or the largest one
    for (int step = 64; step > 0; step /= 2) {
      if (code + step <= kMaxFinite && magnitude > kTables.middle[code + step - 1]) code += step;
    }
    const float middle = kTables.middle[code];
    if (magnitude > middle || (magnitude == middle && (code & 1) != 0)) ++code;
    if (code > kMaxFinite) return kSpecials == Specials::kFnuz ? kNan : kOverflow | sign;
    if (kSpecials == Specials::kFnuz && code == 0) return 0;
    return static_cast<uint8_t>(code) | sign;
  }
};

using F8E5M2 = Float8Format<2, 15, Specials::kIeee>;
using F8E4M3FN = Float8Format<3, 7, Specials::kFn>;
using F8E4M3B11FNUZ = Float8Format<3, 11, Specials::kFnuz>;
using F8E4M3FNUZ = Float8Format<3, 8, Specials::kFnuz>;
using F8E5M2FNUZ = Float8Format<2, 16, Specials::kFnuz>;
using F8E4M3 = Float8Format<3, 7, Specials::kIeee>;
using F8E3M4 = Float8Format<4, 3, Specials::kIeee>;

}  // namespace

#endif  // STRATA_CORE_FLOAT8_H_
