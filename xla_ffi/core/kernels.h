// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The vector code of the core, built once per instruction set and chosen at run time, so that a
// package built on one machine runs, fast, on another.
#ifndef STRATA_CORE_KERNELS_H_
#define STRATA_CORE_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "core/types.h"

namespace strata::core {

// Reduces `count` elements of all inputs, in rank order, and writes the result to every output.
// The elements begin at index in_begin of each input and out_begin of each output; those of less
// than a byte begin with a byte. With `stream`, stores go past the caches and are fenced before the
// call returns. Bits do not depend on the instruction set nor on the split.
using ReduceFn = void (*)(const void* const* in, int num_in, int64_t in_begin, void* const* out,
                          int num_out, int64_t out_begin, int64_t count, bool stream);

// Rows that are copied from one buffer to some others. All but the number of rows is in bytes.
struct CopyRows {
  const void* in;
  void* const* out;
  int num_out;
  int64_t in_begin, out_begin;
  int64_t num_rows, run;          // each row is contiguous
  int64_t in_stride, out_stride;  // from one row to the next
};

struct KernelSet {
  const char* name;
  bool (*supported)();                         // by this machine
  ReduceFn (*find_reduce)(DType, ReduceKind);  // null where the pair has no meaning
  void (*copy_rows)(const CopyRows& rows, bool stream);
  void (*stream_copy)(void* dst, const void* src, size_t num_bytes);  // past the caches, fenced
};

namespace baseline {
extern const KernelSet kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const KernelSet kKernels;
}
namespace avx512 {
extern const KernelSet kKernels;
}
#endif

// The set in use; the best one until SelectKernels was called.
const KernelSet& Kernels();

// Chooses by name ("avx512", "avx2", "baseline"), "" for the best. False when this machine cannot.
bool SelectKernels(const char* name);

}  // namespace strata::core

#endif  // STRATA_CORE_KERNELS_H_
