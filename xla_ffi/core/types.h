// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// What operations move and reduce, and how. The core's own names, so that it needs no XLA header.
#ifndef STRATA_CORE_TYPES_H_
#define STRATA_CORE_TYPES_H_

#include <cstdint>

namespace strata::core {

enum class DType : uint8_t {
  kPred,
  kS2,
  kU2,
  kS4,
  kU4,
  kS8,
  kU8,
  kS16,
  kU16,
  kS32,
  kU32,
  kS64,
  kU64,
  kF8E5M2,
  kF8E4M3FN,
  kF8E4M3B11FNUZ,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kF8E4M3,
  kF8E3M4,
  kF4E2M1FN,
  kF8E8M0FNU,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,
  kC128,
};
inline constexpr int kNumDTypes = 28;

// The numbers are part of the custom call's contract with strata_jax/hlo and strata_jax/lowering.
enum class ReduceKind : uint8_t { kSum, kProduct, kMax, kMin, kAnd, kOr, kXor };
inline constexpr int kNumReduceKinds = 7;

// Bits of one element in memory. Types under 8 bits are packed, the first element in the low bits.
constexpr int BitWidth(DType dtype) {
  switch (dtype) {
    case DType::kS2:
    case DType::kU2:
      return 2;
    case DType::kS4:
    case DType::kU4:
    case DType::kF4E2M1FN:
      return 4;
    case DType::kPred:
    case DType::kS8:
    case DType::kU8:
    case DType::kF8E5M2:
    case DType::kF8E4M3FN:
    case DType::kF8E4M3B11FNUZ:
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2FNUZ:
    case DType::kF8E4M3:
    case DType::kF8E3M4:
    case DType::kF8E8M0FNU:
      return 8;
    case DType::kS16:
    case DType::kU16:
    case DType::kF16:
    case DType::kBF16:
      return 16;
    case DType::kS32:
    case DType::kU32:
    case DType::kF32:
      return 32;
    case DType::kS64:
    case DType::kU64:
    case DType::kF64:
    case DType::kC64:
      return 64;
    case DType::kC128:
      return 128;
  }
  return 0;
}

const char* Name(DType dtype);
const char* Name(ReduceKind kind);

}  // namespace strata::core

#endif  // STRATA_CORE_TYPES_H_
