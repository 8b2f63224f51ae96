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

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/elements.h"
#include "core/kernels.h"

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

struct Product {
  template <typename A>
  static A Apply(A a, A b) {
    if constexpr (IsComplex<A>::value) {
      return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
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

void StreamCopy(void* to, const void* from, size_t num_bytes) {
#if defined(__x86_64__)
  char* dst = static_cast<char*>(to);
  const char* src = static_cast<const char*>(from);
  const size_t head = -reinterpret_cast<uintptr_t>(dst) & 63;
  if (num_bytes < head + 64) {
    std::memcpy(dst, src, num_bytes);
    return;
  }
  std::memcpy(dst, src, head);
  dst += head;
  src += head;
  size_t left = num_bytes - head;
  for (; left >= 64; left -= 64, dst += 64, src += 64) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), _mm512_loadu_si512(src));
#elif defined(__AVX2__)
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + 32), b);
#else
    for (int k = 0; k < 64; k += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(dst + k),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + k)));
    }
#endif
  }
  std::memcpy(dst, src, left);
#else
  std::memcpy(to, from, num_bytes);
#endif
}

void StreamFence() {
#if defined(__x86_64__)
  _mm_sfence();  // orders the streamed lines before whatever tells another thread of them
#endif
}

void FencedStreamCopy(void* to, const void* from, size_t num_bytes) {
  StreamCopy(to, from, num_bytes);
  StreamFence();
}

template <typename Op, typename A>
void Combine(A* __restrict acc, const A* __restrict x, int count) {
  for (int i = 0; i < count; ++i) acc[i] = Op::Apply(acc[i], x[i]);
}

// Copies one block of the result to all ranks.
void Share(void* const* out, int num_ranks, int64_t offset, const void* block, size_t num_bytes,
           bool stream) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    char* to = static_cast<char*>(out[rank]) + offset;
    if (stream) {
      StreamCopy(to, block, num_bytes);
    } else {
      std::memcpy(to, block, num_bytes);
    }
  }
}

template <typename Op, typename T>
void CombineTo(const T* __restrict a, const T* __restrict b, T* __restrict to, int count) {
  for (int i = 0; i < count; ++i) to[i] = Op::Apply(a[i], b[i]);
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

// For types that are reduced as themselves.
template <typename T, typename Op>
void Reduce(const void* const* in, void* const* out, int num_ranks, int64_t begin, int64_t end,
            bool stream) {
  alignas(64) T acc[kBlock];
  for (int64_t at = begin; at < end; at += kBlock) {
    const int count = static_cast<int>(end - at < kBlock ? end - at : kBlock);
    const int64_t offset = at * sizeof(T);
    auto input = [&](int rank) { return static_cast<const T*>(in[rank]) + at; };
    auto output = [&](int rank) { return static_cast<T*>(out[rank]) + at; };
    const T* block = input(0);
    int num_written = 0;
    for (int rank = 1; rank < num_ranks; ++rank) {
      if (rank == num_ranks - 1 && !stream) {
        CombineToTwo<Op>(block, input(rank), output(0), output(1), count);
        block = output(0);
        num_written = 2;
      } else if (block == acc) {
        Combine<Op>(acc, input(rank), count);
      } else {
        CombineTo<Op>(block, input(rank), acc, count);
        block = acc;
      }
    }
    Share(out + num_written, num_ranks - num_written, offset, block, count * sizeof(T), stream);
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
void ReduceCoded(const Codec<Acc>& codec, const void* const* in, void* const* out, int num_ranks,
                 int64_t begin, int64_t end, bool stream) {
  alignas(64) Acc acc[kBlock], loaded[kBlock];
  alignas(64) unsigned char block[kBlock * sizeof(Acc)];
  for (int64_t at = begin; at < end; at += kBlock) {
    const int count = static_cast<int>(end - at < kBlock ? end - at : kBlock);
    const int64_t offset = at * codec.bits / 8;
    auto input = [&](int rank) { return static_cast<const char*>(in[rank]) + offset; };
    codec.load(input(0), acc, count);
    for (int rank = 1; rank < num_ranks; ++rank) {
      codec.load(input(rank), loaded, count);
      Combine<Op>(acc, loaded, count);
    }
    codec.store(acc, block, count);
    const size_t num_bytes = (static_cast<size_t>(count) * codec.bits + 7) / 8;
    Share(out, num_ranks, offset, block, num_bytes, stream);
  }
  if (stream) StreamFence();
}

template <typename Element, typename Op>
void ReduceAs(const void* const* in, void* const* out, int num_ranks, int64_t begin, int64_t end,
              bool stream) {
  static constexpr Codec<typename Element::Acc> kCodec = {Element::kBits, Element::Load,
                                                          Element::Store};
  ReduceCoded<typename Element::Acc, Op>(kCodec, in, out, num_ranks, begin, end, stream);
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

const KernelSet kKernels = {STRATA_STRING(STRATA_ISA), Supported, Find, FencedStreamCopy};

}  // namespace strata::core::STRATA_ISA
