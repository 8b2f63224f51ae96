// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/types.h"

namespace strata::core {

const char* Name(DType dtype) {
  static constexpr const char* kNames[kNumDTypes] = {
      "bool",    "int2",    "uint2",     "int4",           "uint4",       "int8",
      "uint8",   "int16",   "uint16",    "int32",          "uint32",      "int64",
      "uint64",  "f8_e5m2", "f8_e4m3fn", "f8_e4m3b11fnuz", "f8_e4m3fnuz", "f8_e5m2fnuz",
      "f8_e4m3", "f8_e3m4", "f4_e2m1fn", "f8_e8m0fnu",     "float16",     "bfloat16",
      "float32", "float64", "complex64", "complex128"};
  return kNames[static_cast<int>(dtype)];
}

const char* Name(ReduceKind kind) {
  static constexpr const char* kNames[kNumReduceKinds] = {"sum", "product", "max", "min",
                                                          "and", "or",      "xor"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace strata::core
