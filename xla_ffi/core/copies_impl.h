// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Copies, through the caches and past them; a part of kernels_impl.h, under the same rules. A copy
// to several outputs goes block by block, so that all but the first read come from a cache.
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/kernels.h"

#ifndef STRATA_ISA
#error "define STRATA_ISA before including copies_impl.h"
#endif

namespace strata::core::STRATA_ISA {
namespace {

constexpr size_t kLineBytes = 64;

// Stores one cache line past the caches; `to` is aligned to it.
inline void StreamLine(void* to, const void* from) {
#if defined(__AVX512F__)
  _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_loadu_si512(from));
#elif defined(__AVX2__)
  __m256i* dst = static_cast<__m256i*>(to);
  const __m256i* src = static_cast<const __m256i*>(from);
  const __m256i low = _mm256_loadu_si256(src), high = _mm256_loadu_si256(src + 1);
  _mm256_stream_si256(dst, low);
  _mm256_stream_si256(dst + 1, high);
#elif defined(__x86_64__)
  for (int i = 0; i < 4; ++i) {
    _mm_stream_si128(static_cast<__m128i*>(to) + i,
                     _mm_loadu_si128(static_cast<const __m128i*>(from) + i));
  }
#else
  std::memcpy(to, from, kLineBytes);
#endif
}

void StreamCopy(void* to, const void* from, size_t num_bytes) {
  char* dst = static_cast<char*>(to);
  const char* src = static_cast<const char*>(from);
  const size_t head = -reinterpret_cast<uintptr_t>(dst) % kLineBytes;
  if (num_bytes < head + kLineBytes) {
    std::memcpy(dst, src, num_bytes);
    return;
  }
  std::memcpy(dst, src, head);
  size_t at = head;
  for (; at + kLineBytes <= num_bytes; at += kLineBytes) StreamLine(dst + at, src + at);
  std::memcpy(dst + at, src + at, num_bytes - at);
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

// Bytes of a row that are copied to all outputs before the next: they stay in the first-level
// cache.
constexpr int64_t kCopyBlock = 16 << 10;

// Shorter rows are stored through the caches: they would leave lines half written.
constexpr int64_t kStreamRun = 512;

// Rows of a length known to the compiler become plain loads and stores.
template <int64_t kRun>
void CopyShortRows(const char* in, char* out, const CopyRows& rows) {
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    std::memcpy(out + row * rows.out_stride, in + row * rows.in_stride, kRun);
  }
}

void CopyToOne(const char* in, char* out, const CopyRows& rows, bool stream) {
  switch (rows.run) {
    case 1:
      return CopyShortRows<1>(in, out, rows);
    case 2:
      return CopyShortRows<2>(in, out, rows);
    case 4:
      return CopyShortRows<4>(in, out, rows);
    case 8:
      return CopyShortRows<8>(in, out, rows);
    case 16:
      return CopyShortRows<16>(in, out, rows);
    case 32:
      return CopyShortRows<32>(in, out, rows);
    case 64:
      return CopyShortRows<64>(in, out, rows);
  }
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    if (stream) {
      StreamCopy(out + row * rows.out_stride, in + row * rows.in_stride, rows.run);
    } else {
      std::memcpy(out + row * rows.out_stride, in + row * rows.in_stride, rows.run);
    }
  }
}

void Copy(const CopyRows& rows, bool stream) {
  stream = stream && rows.run >= kStreamRun;
  const char* in = static_cast<const char*>(rows.in) + rows.in_begin;
  if (rows.num_out == 1) {
    CopyToOne(in, static_cast<char*>(rows.out[0]) + rows.out_begin, rows, stream);
  } else if (rows.run <= kCopyBlock) {
    CopyRows some = rows;
    const int64_t most = rows.run > 0 ? (kCopyBlock + rows.run - 1) / rows.run : rows.num_rows;
    for (int64_t row = 0; row < rows.num_rows; row += most) {
      some.num_rows = rows.num_rows - row < most ? rows.num_rows - row : most;
      for (int i = 0; i < rows.num_out; ++i) {
        char* out = static_cast<char*>(rows.out[i]) + rows.out_begin;
        CopyToOne(in + row * rows.in_stride, out + row * rows.out_stride, some, stream);
      }
    }
  } else {
    CopyRows piece = rows;
    piece.num_rows = 1;
    for (int64_t row = 0; row < rows.num_rows; ++row) {
      for (int64_t at = 0; at < rows.run; at += kCopyBlock) {
        piece.run = rows.run - at < kCopyBlock ? rows.run - at : kCopyBlock;
        for (int i = 0; i < rows.num_out; ++i) {
          char* out = static_cast<char*>(rows.out[i]) + rows.out_begin;
          CopyToOne(in + row * rows.in_stride + at, out + row * rows.out_stride + at, piece,
                    stream);
        }
      }
    }
  }
  if (stream) StreamFence();
}

// Copies one block of the result to some ranks.
void Share(void* const* out, int num_out, int64_t offset, const void* block, size_t num_bytes,
           bool stream) {
  for (int i = 0; i < num_out; ++i) {
    char* to = static_cast<char*>(out[i]) + offset;
    if (stream) {
      StreamCopy(to, block, num_bytes);
    } else {
      std::memcpy(to, block, num_bytes);
    }
  }
}

}  // namespace
}  // namespace strata::core::STRATA_ISA
