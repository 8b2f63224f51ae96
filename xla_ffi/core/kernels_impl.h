// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The kernels themselves. Each kernels_<isa>.cc defines STRATA_ISA and includes this file under
// its own compiler flags. Everything is internal to the translation unit and no inline function
// of the C++ library is used: the linker would merge such a function with another file's, and
// code for one instruction set would run on a machine that lacks it.
//
// A block of the result is reduced into a buffer that stays in the first-level cache, then copied
// to all outputs. Loops are plain so that the compiler vectorises them for any type.
#include <cstdint>
#include <cstring>

#include "core/copies_impl.h"
#include "core/elements.h"
#include "core/kernels.h"
#include "core/reduce_ops.h"

#ifndef STRATA_ISA
#error "define STRATA_ISA before including kernels_impl.h"
#endif
#define STRATA_STRING_(x) #x
#define STRATA_STRING(x) STRATA_STRING_(x)

namespace strata::core::STRATA_ISA {
namespace {

// Elements of a block. 2,048 accumulators of 4 bytes fill a quarter of a 32 KiB first-level cache,
// which leaves room for the lines of the inputs in flight.
constexpr int kBlock = 2048;

template <typename Op, typename A>
void Combine(A* __restrict acc, const A* __restrict x, int count) {
  for (int i = 0; i < count; ++i) acc[i] = Op::Apply(acc[i], x[i]);
}

// Combines what is there with 1, 3 or 7 more inputs, in their order, at once: more streams from
// memory at a time, and fewer passes over the result. Returns how many it took.
template <typename Op, typename T>
int Fold(const T* __restrict so_far, const void* const* more, int num_more, int64_t offset,
         T* __restrict to, int count) {
  auto input = [&](int i) { return static_cast<const T*>(more[i]) + offset; };
  if (num_more >= 7) {
    const T* __restrict a = input(0), * __restrict b = input(1), * __restrict c = input(2), * __restrict d = input(3), * __restrict e = input(4), * __restrict f = input(5), * __restrict g = input(6);
    for (int i = 0; i < count; ++i) {
      const T low = Op::Apply(Op::Apply(Op::Apply(so_far[i], a[i]), b[i]), c[i]);
      to[i] = Op::Apply(Op::Apply(Op::Apply(Op::Apply(low, d[i]), e[i]), f[i]), g[i]);
    }
    return 7;
  }
  if (num_more >= 3) {
    const T* __restrict a = input(0), * __restrict b = input(1), * __restrict c = input(2);
    for (int i = 0; i < count; ++i) {
      to[i] = Op::Apply(Op::Apply(Op::Apply(so_far[i], a[i]), b[i]), c[i]);
    }
    return 3;
  }
  const T* __restrict a = input(0);
  for (int i = 0; i < count; ++i) to[i] = Op::Apply(so_far[i], a[i]);
  return 1;
}

// Stores each result twice at once: half the loads that two copies of it would take.
template <typename Op, typename T>
void CombineToTwo(const T* __restrict a, const T* __restrict b, T* __restrict to,
                  T* __restrict also_to, int count) {
  for (int i = 0; i < count; ++i) {
    const T value = Op::Apply(a[i], b[i]);
    to[i] = value;
    also_to[i] = value;
  }
}

// Two ranks, and one or two outputs that are aligned to cache lines: reduces a line in registers
// and streams it, a third faster than through a block where memory is the limit. (With more ranks
// the line does not stay in registers, and a block is faster.) Returns how many elements are done,
// all but less than a line.
template <typename T, typename Op, int kNumOut>
int64_t StreamTwo(const T* first, const T* second, T* out, T* also_out, int64_t count) {
  constexpr int kLine = kLineBytes / sizeof(T);
  int64_t at = 0;
  for (; at + kLine <= count; at += kLine) {
    T line[kLine];
    for (int i = 0; i < kLine; ++i) line[i] = Op::Apply(first[at + i], second[at + i]);
    StreamLine(out + at, line);
    if constexpr (kNumOut == 2) StreamLine(also_out + at, line);
  }
  return at;
}

bool AlignedToLine(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kLineBytes == 0;
}

// For types that are reduced as themselves.
template <typename T, typename Op>
void Reduce(const void* const* in, int num_in, int64_t in_begin, void* const* out, int num_out,
            int64_t out_begin, int64_t count, bool stream) {
  auto input = [&](int rank) { return static_cast<const T*>(in[rank]) + in_begin; };
  auto output = [&](int i) { return static_cast<T*>(out[i]) + out_begin; };
  int64_t at = 0;
  if (stream && num_in == 2 && AlignedToLine(output(0))) {
    if (num_out == 1) {
      at = StreamTwo<T, Op, 1>(input(0), input(1), output(0), nullptr, count);
    } else if (num_out == 2 && AlignedToLine(output(1))) {
      at = StreamTwo<T, Op, 2>(input(0), input(1), output(0), output(1), count);
    }
  }
  // Two, because a fold does not read what it writes.
  alignas(64) T blocks[2][kBlock];
  for (; at < count; at += kBlock) {
    const int here = static_cast<int>(count - at < kBlock ? count - at : kBlock);
    const T* block = input(0) + at;
    int num_written = 0;
    if (num_in == 2 && num_out > 1 && !stream) {
      CombineToTwo<Op>(block, input(1) + at, output(0) + at, output(1) + at, here);
      block = output(0) + at;
      num_written = 2;
    } else {
      for (int rank = 1; rank < num_in;) {
        const int num_more = num_in - rank;
        const bool is_last = num_more == 1 || num_more == 3 || num_more == 7;
        T* to = block == blocks[0] ? blocks[1] : blocks[0];
        if (is_last && !stream) {
          to = output(0) + at;
          num_written = 1;
        }
        rank += Fold<Op>(block, in + rank, num_more, in_begin + at, to, here);
        block = to;
      }
    }
    Share(out + num_written, num_out - num_written, (out_begin + at) * sizeof(T), block,
          here * sizeof(T), stream);
  }
  if (stream) StreamFence();
}

// How a type that is reduced as another one is read and written.
template <typename Acc>
struct Codec {
  int bits;
  void (*load)(const void* from, Acc* to, int count);
  void (*store)(const Acc* from, void* to, int count);
};

template <typename Acc, typename Op>
void ReduceCoded(const Codec<Acc>& codec, const void* const* in, int num_in, int64_t in_begin,
                 void* const* out, int num_out, int64_t out_begin, int64_t count, bool stream) {
  alignas(64) Acc acc[kBlock], loaded[kBlock];
  alignas(64) unsigned char block[kBlock * sizeof(Acc)];
  for (int64_t at = 0; at < count; at += kBlock) {
    const int here = static_cast<int>(count - at < kBlock ? count - at : kBlock);
    const int64_t offset = (in_begin + at) * codec.bits / 8;
    auto input = [&](int rank) { return static_cast<const char*>(in[rank]) + offset; };
    codec.load(input(0), acc, here);
    for (int rank = 1; rank < num_in; ++rank) {
      codec.load(input(rank), loaded, here);
      Combine<Op>(acc, loaded, here);
    }
    codec.store(acc, block, here);
    const size_t num_bytes = (static_cast<size_t>(here) * codec.bits + 7) / 8;
    Share(out, num_out, (out_begin + at) * codec.bits / 8, block, num_bytes, stream);
  }
  if (stream) StreamFence();
}

template <typename Element, typename Op>
void ReduceAs(const void* const* in, int num_in, int64_t in_begin, void* const* out, int num_out,
              int64_t out_begin, int64_t count, bool stream) {
  static constexpr Codec<typename Element::Acc> kCodec = {Element::kBits, Element::Load,
                                                          Element::Store};
  ReduceCoded<typename Element::Acc, Op>(kCodec, in, num_in, in_begin, out, num_out, out_begin,
                                         count, stream);
}

template <typename Element, typename Op>
constexpr ReduceFn kReduce = ReduceAs<Element, Op>;
template <typename T, typename Op>
constexpr ReduceFn kReduce<Plain<T>, Op> = Reduce<T, Op>;

template <typename Element>
ReduceFn FindFor(ReduceKind kind) {
  using Acc = typename Element::Acc;
  constexpr bool kOrdered = !IsComplex<Acc>::value;
  constexpr bool kBitwise = kOrdered && !kIsFloat<Acc>;
  switch (kind) {
    case ReduceKind::kSum:
      return kReduce<Element, Sum>;
    case ReduceKind::kProduct:
      return kReduce<Element, Product>;
    case ReduceKind::kMax:
      if constexpr (kOrdered) return kReduce<Element, Extreme<true>>;
      break;
    case ReduceKind::kMin:
      if constexpr (kOrdered) return kReduce<Element, Extreme<false>>;
      break;
    case ReduceKind::kAnd:
      if constexpr (kBitwise) return kReduce<Element, And>;
      break;
    case ReduceKind::kOr:
      if constexpr (kBitwise) return kReduce<Element, Or>;
      break;
    case ReduceKind::kXor:
      if constexpr (kBitwise) return kReduce<Element, Xor>;
      break;
  }
  return nullptr;
}

// Truth values are bytes of 0 and 1, in which a sum is an or and a product is an and.
ReduceFn FindForPred(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum:
    case ReduceKind::kMax:
    case ReduceKind::kOr:
      return kReduce<Plain<uint8_t>, Or>;
    case ReduceKind::kProduct:
    case ReduceKind::kMin:
    case ReduceKind::kAnd:
      return kReduce<Plain<uint8_t>, And>;
    case ReduceKind::kXor:
      return kReduce<Plain<uint8_t>, Xor>;
  }
  return nullptr;
}

ReduceFn Find(DType dtype, ReduceKind kind) {
  switch (dtype) {
    case DType::kPred:
      return FindForPred(kind);
    case DType::kS2:
      return FindFor<Packed<2, true>>(kind);
    case DType::kU2:
      return FindFor<Packed<2, false>>(kind);
    case DType::kS4:
      return FindFor<Packed<4, true>>(kind);
    case DType::kU4:
      return FindFor<Packed<4, false>>(kind);
    case DType::kS8:
      return FindFor<Plain<int8_t>>(kind);
    case DType::kU8:
      return FindFor<Plain<uint8_t>>(kind);
    case DType::kS16:
      return FindFor<Plain<int16_t>>(kind);
    case DType::kU16:
      return FindFor<Plain<uint16_t>>(kind);
    case DType::kS32:
      return FindFor<Plain<int32_t>>(kind);
    case DType::kU32:
      return FindFor<Plain<uint32_t>>(kind);
    case DType::kS64:
      return FindFor<Plain<int64_t>>(kind);
    case DType::kU64:
      return FindFor<Plain<uint64_t>>(kind);
    case DType::kF8E5M2:
      return FindFor<Float8<F8E5M2>>(kind);
    case DType::kF8E4M3FN:
      return FindFor<Float8<F8E4M3FN>>(kind);
    case DType::kF8E4M3B11FNUZ:
      return FindFor<Float8<F8E4M3B11FNUZ>>(kind);
    case DType::kF8E4M3FNUZ:
      return FindFor<Float8<F8E4M3FNUZ>>(kind);
    case DType::kF8E5M2FNUZ:
      return FindFor<Float8<F8E5M2FNUZ>>(kind);
    case DType::kF8E4M3:
      return FindFor<Float8<F8E4M3>>(kind);
    case DType::kF8E3M4:
      return FindFor<Float8<F8E3M4>>(kind);
    case DType::kF4E2M1FN:
    case DType::kF8E8M0FNU:
      return nullptr;  // moved, never reduced
    case DType::kF16:
      return FindFor<Float16>(kind);
    case DType::kBF16:
      return FindFor<BFloat16>(kind);
    case DType::kF32:
      return FindFor<Plain<float>>(kind);
    case DType::kF64:
      return FindFor<Plain<double>>(kind);
    case DType::kC64:
      return FindFor<Plain<Complex<float>>>(kind);
    case DType::kC128:
      return FindFor<Plain<Complex<double>>>(kind);
  }
  return nullptr;
}

bool Supported() {
#if defined(__AVX512F__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#elif defined(__AVX2__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#else
  return true;
#endif
}

}  // namespace

const KernelSet kKernels = {STRATA_STRING(STRATA_ISA), Supported, Find, Copy, FencedStreamCopy};

}  // namespace strata::core::STRATA_ISA
