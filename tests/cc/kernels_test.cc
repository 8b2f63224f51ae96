// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Every kernel of every instruction set that this machine has, against plain loops.
#include "core/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/elements.h"
#include "platform/threads.h"

namespace strata::core {
namespace {

constexpr const char* kIsas[] = {"baseline", "avx2", "avx512"};
constexpr int kRankCounts[] = {1, 2, 3, 4, 8};
constexpr int64_t kSizes[] = {0, 1, 7, 63, 64, 65, 1000, 2048, 2049, 6001};

std::vector<const char*> IsasOfThisMachine() {
  std::vector<const char*> names;
  for (const char* name : kIsas) {
    if (SelectKernels(name)) names.push_back(name);
  }
  return names;
}

size_t NumBytes(DType dtype, int64_t count) { return (count * BitWidth(dtype) + 7) / 8; }

// Buffers of all ranks with room behind them that must stay untouched.
struct Ranks {
  Ranks(DType dtype, int num_ranks, int64_t count, uint32_t seed) {
    std::mt19937 random(seed);
    const size_t num_bytes = NumBytes(dtype, count);
    for (int r = 0; r < num_ranks; ++r) {
      std::vector<unsigned char> bytes(num_bytes + 64, 0xa5);
      for (size_t i = 0; i < num_bytes; ++i) bytes[i] = static_cast<unsigned char>(random());
      if (dtype == DType::kPred) {
        for (size_t i = 0; i < num_bytes; ++i) bytes[i] &= 1;
      }
      // No NaN from the inputs: which of two NaNs a sum hands on is the compiler's choice. Without
      // the top bit of its exponent a number is below 2.
      if (dtype >= DType::kF16) {
        const size_t width = BitWidth(dtype) / 8 / (dtype >= DType::kC64 ? 2 : 1);
        for (size_t i = width - 1; i < num_bytes; i += width) bytes[i] &= 0xbf;
      }
      // The padding of a last byte of packed elements reads as zeros everywhere.
      const int used_bits = static_cast<int>(count * BitWidth(dtype) % 8);
      if (used_bits != 0) bytes[num_bytes - 1] &= (1 << used_bits) - 1;
      inputs.push_back(bytes);
      outputs.emplace_back(num_bytes + 64, 0x5a);
    }
    for (int r = 0; r < num_ranks; ++r) {
      in.push_back(inputs[r].data());
      out.push_back(outputs[r].data());
    }
  }
  std::vector<std::vector<unsigned char>> inputs, outputs;
  std::vector<const void*> in;
  std::vector<void*> out;
};

TEST(Kernels, AllRanksGetTheSameBitsFromEveryInstructionSet) {
  const auto isas = IsasOfThisMachine();
  platform::ScopedFpMode fp_mode;
  for (int d = 0; d < kNumDTypes; ++d) {
    for (int k = 0; k < kNumReduceKinds; ++k) {
      const DType dtype = static_cast<DType>(d);
      const ReduceKind kind = static_cast<ReduceKind>(k);
      for (int num_ranks : kRankCounts) {
        for (int64_t count : {0, 1, 65, 2049}) {
          std::vector<unsigned char> first;
          for (const char* isa : isas) {
            ASSERT_TRUE(SelectKernels(isa));
            const ReduceFn reduce = Kernels().find_reduce(dtype, kind);
            if (reduce == nullptr) continue;
            for (bool stream : {false, true}) {
              Ranks ranks(dtype, num_ranks, count, 17);
              reduce(ranks.in.data(), num_ranks, 0, ranks.out.data(), num_ranks, 0, count, stream);
              if (first.empty()) first = ranks.outputs[0];
              for (int r = 0; r < num_ranks; ++r) {
                ASSERT_EQ(ranks.outputs[r], first)
                    << Name(kind) << " of " << Name(dtype) << ", " << isa << ", rank " << r
                    << " of " << num_ranks << ", " << count << " elements, stream " << stream;
                ASSERT_EQ(ranks.outputs[r].back(), 0x5a);
              }
            }
          }
        }
      }
    }
  }
  SelectKernels("");
}

TEST(Kernels, ASplitGivesTheSameBits) {
  for (int d = 0; d < kNumDTypes; ++d) {
    const DType dtype = static_cast<DType>(d);
    const ReduceFn reduce = Kernels().find_reduce(dtype, ReduceKind::kSum);
    if (reduce == nullptr) continue;
    Ranks whole(dtype, 3, 6001, 5), split(dtype, 3, 6001, 5);
    reduce(whole.in.data(), 3, 0, whole.out.data(), 3, 0, 6001, false);
    reduce(split.in.data(), 3, 3200, split.out.data(), 3, 3200, 2801, true);
    reduce(split.in.data(), 3, 0, split.out.data(), 3, 0, 64, false);
    reduce(split.in.data(), 3, 64, split.out.data(), 3, 64, 3136, true);
    EXPECT_EQ(whole.outputs, split.outputs) << Name(dtype);
  }
}

TEST(Kernels, InputsAreNotWritten) {
  Ranks ranks(DType::kF32, 4, 5000, 3);
  const auto before = ranks.inputs;
  Kernels().find_reduce(DType::kF32, ReduceKind::kSum)(ranks.in.data(), 4, 0, ranks.out.data(), 4,
                                                       0, 5000, true);
  EXPECT_EQ(ranks.inputs, before);
}

template <typename T>
T Oracle(ReduceKind kind, T a, T b) {
  switch (kind) {
    case ReduceKind::kSum:
      return static_cast<T>(a + b);
    case ReduceKind::kProduct:
      return static_cast<T>(a * b);
    case ReduceKind::kMax:
      return a > b ? a : b;
    default:
      return a < b ? a : b;
  }
}

template <typename T>
void CheckAgainstOracle(DType dtype) {
  for (const char* isa : IsasOfThisMachine()) {
    ASSERT_TRUE(SelectKernels(isa));
    for (auto kind : {ReduceKind::kSum, ReduceKind::kProduct, ReduceKind::kMax, ReduceKind::kMin}) {
      for (int num_ranks : kRankCounts) {
        for (int64_t count : kSizes) {
          Ranks ranks(dtype, num_ranks, count, 11);
          std::mt19937 random(23);
          for (int r = 0; r < num_ranks; ++r) {
            T* values = reinterpret_cast<T*>(ranks.inputs[r].data());
            for (int64_t i = 0; i < count; ++i) {
              values[i] = static_cast<T>(static_cast<int>(random() % 200) - 100) / 8;
            }
          }
          Kernels().find_reduce(dtype, kind)(ranks.in.data(), num_ranks, 0, ranks.out.data(),
                                             num_ranks, 0, count, false);
          for (int64_t i = 0; i < count; ++i) {
            T want = static_cast<const T*>(ranks.in[0])[i];
            for (int r = 1; r < num_ranks; ++r) {
              want = Oracle(kind, want, static_cast<const T*>(ranks.in[r])[i]);
            }
            for (int r = 0; r < num_ranks; ++r) {
              ASSERT_EQ(static_cast<const T*>(ranks.out[r])[i], want)
                  << isa << " " << Name(kind) << " " << Name(dtype) << " element " << i;
            }
          }
        }
      }
    }
  }
  SelectKernels("");
}

TEST(Kernels, Float32InRankOrder) { CheckAgainstOracle<float>(DType::kF32); }
TEST(Kernels, Float64InRankOrder) { CheckAgainstOracle<double>(DType::kF64); }
TEST(Kernels, Int8) { CheckAgainstOracle<int8_t>(DType::kS8); }
TEST(Kernels, Uint16) { CheckAgainstOracle<uint16_t>(DType::kU16); }
TEST(Kernels, Int32) { CheckAgainstOracle<int32_t>(DType::kS32); }
TEST(Kernels, Uint64) { CheckAgainstOracle<uint64_t>(DType::kU64); }

TEST(Kernels, MaxAndMinOrderZerosNansAndDenormals) {
  const float nan = std::nanf(""), tiny = 1e-40f, inf = INFINITY;
  struct Case {
    float a, b, max, min;
  };
  const Case cases[] = {{0.f, -0.f, 0.f, -0.f}, {-0.f, 0.f, 0.f, -0.f}, {nan, 1.f, nan, nan},
                        {1.f, nan, nan, nan},   {tiny, 0.f, tiny, 0.f}, {-inf, -1.f, -1.f, -inf},
                        {inf, 2.f, inf, 2.f},   {-nan, inf, nan, nan}};
  platform::ScopedFpMode fp_mode;  // denormals-are-zero must not matter
  for (const char* isa : IsasOfThisMachine()) {
    ASSERT_TRUE(SelectKernels(isa));
    for (const Case& c : cases) {
      std::vector<float> a(100, c.a), b(100, c.b), x(100), y(100);
      const void* in[] = {a.data(), b.data()};
      void* out[] = {x.data(), y.data()};
      Kernels().find_reduce(DType::kF32, ReduceKind::kMax)(in, 2, 0, out, 2, 0, 100, false);
      auto same = [](float got, float want) {
        return std::isnan(want) ? std::isnan(got) : std::memcmp(&got, &want, 4) == 0;
      };
      EXPECT_TRUE(same(x[99], c.max)) << isa << " max " << c.a << " " << c.b << ": " << x[99];
      Kernels().find_reduce(DType::kF32, ReduceKind::kMin)(in, 2, 0, out, 2, 0, 100, false);
      EXPECT_TRUE(same(y[3], c.min)) << isa << " min " << c.a << " " << c.b << ": " << y[3];
    }
  }
  SelectKernels("");
}

TEST(Kernels, NoMeaning) {
  for (auto kind : {ReduceKind::kMax, ReduceKind::kMin, ReduceKind::kAnd}) {
    EXPECT_EQ(Kernels().find_reduce(DType::kC64, kind), nullptr);
  }
  EXPECT_EQ(Kernels().find_reduce(DType::kF32, ReduceKind::kXor), nullptr);
  EXPECT_FALSE(SelectKernels("mmx"));
}

TEST(Elements, HalfRoundsToNearestEven) {
  // Every half survives, and so does every float half way between two: to the even one.
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float value = Float16::Decode(static_cast<uint16_t>(half));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Float16::Decode(Float16::Encode(value))));
      continue;
    }
    ASSERT_EQ(Float16::Encode(value), half);
    if ((half & 0x7fff) >= 0x7bff) continue;
    const float next = Float16::Decode(static_cast<uint16_t>(half + 1));
    const float middle = (value + next) / 2;
    ASSERT_EQ(Float16::Encode(middle), (half & 1) != 0 ? half + 1 : half) << value;
    ASSERT_EQ(Float16::Encode(std::nextafter(middle, next)), half + 1) << value;
    ASSERT_EQ(Float16::Encode(std::nextafter(middle, value)), half) << value;
  }
  EXPECT_EQ(Float16::Encode(65519.f), 0x7bff);
  EXPECT_EQ(Float16::Encode(65520.f), 0x7c00);
  EXPECT_EQ(Float16::Encode(-1e30f), 0xfc00);
}

template <typename Format>
void CheckFloat8(float largest, float next, bool has_infinity) {
  for (int code = 0; code < 256; ++code) {
    const float value = Format::Decode(static_cast<uint8_t>(code));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Format::Decode(Format::Encode(value))));
    } else {
      EXPECT_EQ(Format::Encode(value), code) << value;
    }
  }
  EXPECT_EQ(Format::Decode(Format::kMaxFinite), largest);
  const float middle = (largest + next) / 2;
  EXPECT_EQ(Format::Decode(Format::Encode(std::nextafter(middle, 0.f))), largest);
  const float over = Format::Decode(Format::Encode(std::nextafter(middle, INFINITY)));
  EXPECT_TRUE(has_infinity ? std::isinf(over) : std::isnan(over)) << over;
  const float infinite = Format::Decode(Format::Encode(-INFINITY));
  EXPECT_TRUE(has_infinity ? infinite == -INFINITY : std::isnan(infinite));
}

TEST(Elements, Float8) {
  CheckFloat8<F8E5M2>(57344, 65536, true);
  CheckFloat8<F8E4M3FN>(448, 480, false);
  CheckFloat8<F8E4M3B11FNUZ>(30, 32, false);
  CheckFloat8<F8E4M3FNUZ>(240, 256, false);
  CheckFloat8<F8E5M2FNUZ>(57344, 65536, false);
  CheckFloat8<F8E4M3>(240, 256, true);
  CheckFloat8<F8E3M4>(15.5, 16, true);
}

TEST(Elements, Float8TiesGoToEven) {
  EXPECT_EQ(F8E4M3FN::Encode(464.f), 0x7e);
  EXPECT_EQ(F8E5M2::Encode(61440.f), 0x7c);
  EXPECT_EQ(F8E4M3FN::Encode(1.0625f), F8E4M3FN::Encode(1.f));
  EXPECT_EQ(F8E4M3FN::Encode(1.1875f), F8E4M3FN::Encode(1.25f));
  EXPECT_EQ(F8E4M3FNUZ::Encode(-1e-9f), 0);
  EXPECT_EQ(F8E4M3FN::Encode(-1e-9f), 0x80);
}

TEST(Elements, PackedIntegersKeepTheirSign) {
  const uint8_t byte[] = {0xe1, 0x07};  // 1, -2, 7, 0 as int4
  int8_t values[4];
  Packed<4, true>::Load(byte, values, 4);
  EXPECT_EQ(std::vector<int8_t>(values, values + 4), (std::vector<int8_t>{1, -2, 7, 0}));
  uint8_t back[2] = {};
  Packed<4, true>::Store(values, back, 3);
  EXPECT_EQ(back[0], 0xe1);
  EXPECT_EQ(back[1], 0x07);
  Packed<2, false>::Load(byte, values, 4);
  EXPECT_EQ(std::vector<int8_t>(values, values + 4), (std::vector<int8_t>{1, 0, 2, 3}));
}

}  // namespace
}  // namespace strata::core
