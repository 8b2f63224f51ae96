// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The plan of each operation against plain loops over elements.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "core/operation.h"

namespace strata::core {
namespace {

// An array of bits by element, read and written one at a time.
class Array {
 public:
  Array(int bit_width, int64_t num_elements, unsigned seed)
      : bit_width_(bit_width), bytes_((num_elements * bit_width + 7) / 8 + kGuard) {
    std::mt19937 random(seed);
    for (auto& byte : bytes_) byte = static_cast<uint8_t>(random());
    guard_ = std::vector<uint8_t>(bytes_.end() - kGuard, bytes_.end());
  }
  uint64_t Get(int64_t i) const {
    uint64_t value = 0;
    if (bit_width_ < 8) return bytes_[i * bit_width_ / 8] >> (i * bit_width_ % 8) & Mask();
    std::memcpy(&value, &bytes_[i * bit_width_ / 8], std::min(8, bit_width_ / 8));
    return value;
  }
  void Set(int64_t i, uint64_t value) {
    uint8_t* byte = &bytes_[i * bit_width_ / 8];
    if (bit_width_ < 8) {
      const int shift = static_cast<int>(i * bit_width_ % 8);
      *byte = static_cast<uint8_t>((*byte & ~(Mask() << shift)) | value << shift);
    } else {
      std::memcpy(byte, &value, std::min(8, bit_width_ / 8));
    }
  }
  bool GuardIsIntact() const {
    return std::equal(guard_.begin(), guard_.end(), bytes_.end() - kGuard);
  }
  void* data() { return bytes_.data(); }

 private:
  static constexpr int kGuard = 64;
  uint64_t Mask() const { return (uint64_t{1} << bit_width_) - 1; }
  int bit_width_;
  std::vector<uint8_t> bytes_, guard_;
};

// Buffers of all ranks, one operand and one result each, and a run of an operation on them.
struct Job {
  Job(DType dtype, int num_ranks, int64_t num_in, int64_t num_out)
      : num_ranks(num_ranks),
        sources(num_ranks, -1),
        in_parts{{dtype, num_in}},
        out_parts{{dtype, num_out}} {
    for (int rank = 0; rank < num_ranks; ++rank) {
      in.emplace_back(BitWidth(dtype), num_in, 1 + rank);
      out.emplace_back(BitWidth(dtype), num_out, 100 + rank);
    }
  }
  std::string operator()(const Operation& operation, int num_threads = 2) {
    std::vector<const void*> in_pointers;
    std::vector<void*> out_pointers;
    for (auto& array : in) in_pointers.push_back(array.data());
    for (auto& array : out) out_pointers.push_back(array.data());
    Work work;
    work.Clear();
    const std::string error = operation.plan(
        {spec, num_ranks, sources, in_parts, out_parts, in_pointers.data(), out_pointers.data()},
        work);
    if (!error.empty()) return error;
    work.Plan();
    std::vector<std::thread> threads;
    for (int i = 0; i < num_threads; ++i) threads.emplace_back([&] { work.Run(); });
    for (auto& thread : threads) thread.join();
    for (auto& array : out) EXPECT_TRUE(array.GuardIsIntact());
    return "";
  }
  int num_ranks;
  OperationSpec spec;
  std::vector<int> sources;
  std::vector<Part> in_parts, out_parts;
  std::vector<Array> in, out;
};

// The block of arrays [a, b, c], cut along b in the operand or joined along b in the result.
Block MiddleBlock(int64_t a, int64_t b, int64_t c, bool cut, bool joined, int num_ranks) {
  Block block;
  const int64_t in_b = cut ? b * num_ranks : b, out_b = joined ? b * num_ranks : b;
  block.rows.loops = {{a, in_b * c, out_b * c}};
  block.rows.run = b * c;
  block.in_step = cut ? b * c : 0;
  block.out_step = joined ? b * c : 0;
  EXPECT_TRUE(block.rows.Measure());
  return block;
}

struct Shape {
  DType dtype;
  int64_t a, b, c;
};
const Shape kShapes[] = {{DType::kS32, 3, 5, 7},     {DType::kU8, 4, 1, 1},
                         {DType::kS4, 3, 3, 1},      {DType::kU2, 5, 1, 3},
                         {DType::kS4, 2, 2, 4},      {DType::kC128, 2, 3, 2},
                         {DType::kBF16, 1, 9, 1},    {DType::kS32, 700, 1, 64},
                         {DType::kF32, 2, 20000, 3}, {DType::kS32, 0, 4, 4}};

class Moves : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Moves, testing::Values(1, 2, 3, 8));

TEST_P(Moves, AllGather) {
  for (const Shape& s : kShapes) {
    const int n = GetParam();
    Job run(s.dtype, n, s.a * s.b * s.c, n * s.a * s.b * s.c);
    run.spec.blocks = {MiddleBlock(s.a, s.b, s.c, false, true, n)};
    ASSERT_EQ(run(kAllGather), "");
    for (int r = 0; r < n; ++r) {
      for (int64_t i = 0; i < n * s.a * s.b * s.c; ++i) {
        const int64_t a = i / (n * s.b * s.c), rest = i % (n * s.b * s.c);
        ASSERT_EQ(run.out[r].Get(i),
                  run.in[rest / (s.b * s.c)].Get(a * s.b * s.c + rest % (s.b * s.c)))
            << Name(s.dtype) << " " << i;
      }
    }
  }
}

TEST_P(Moves, AllToAllFromTheFirstToTheMiddleDimension) {
  for (const Shape& s : kShapes) {
    const int n = GetParam();
    const int64_t size = s.a * s.b * s.c;  // of a block
    Job run(s.dtype, n, n * size, n * size);
    // Operand [n a, b, c] to result [a, n b, c].
    Block block;
    block.rows.loops = {{s.a, s.b * s.c, n * s.b * s.c}};
    block.rows.run = s.b * s.c;
    block.in_step = size;
    block.out_step = s.b * s.c;
    ASSERT_TRUE(block.rows.Measure());
    run.spec.blocks = {block};
    ASSERT_EQ(run(kAllToAll), "");
    for (int r = 0; r < n; ++r) {
      for (int64_t a = 0; a < s.a; ++a) {
        for (int64_t i = 0; i < n * s.b * s.c; ++i) {
          const int64_t source = i / (s.b * s.c), at = i % (s.b * s.c);
          ASSERT_EQ(run.out[r].Get(a * n * s.b * s.c + i),
                    run.in[source].Get(r * size + a * s.b * s.c + at));
        }
      }
    }
  }
}

TEST_P(Moves, PermuteAndBroadcast) {
  for (const Shape& s : kShapes) {
    const int n = GetParam();
    const int64_t size = s.a * s.b * s.c;
    Job permute(s.dtype, n, size, size), broadcast(s.dtype, n, size, size);
    permute.spec.blocks = broadcast.spec.blocks = {{OneRow(size)}};
    for (int r = 1; r < n; ++r) permute.sources[r] = r - 1;
    ASSERT_EQ(permute(kCollectivePermute), "");
    ASSERT_EQ(broadcast(kCollectiveBroadcast), "");
    for (int r = 0; r < n; ++r) {
      for (int64_t i = 0; i < size; ++i) {
        ASSERT_EQ(permute.out[r].Get(i), r == 0 ? 0 : permute.in[r - 1].Get(i));
        ASSERT_EQ(broadcast.out[r].Get(i), broadcast.in[0].Get(i));
      }
    }
  }
}

TEST_P(Moves, ReduceScatter) {
  for (const Shape& s : kShapes) {
    if (s.dtype != DType::kS32 && s.dtype != DType::kS4 && s.dtype != DType::kU2) continue;
    const int n = GetParam();
    Job run(s.dtype, n, n * s.a * s.b * s.c, s.a * s.b * s.c);
    run.spec.blocks = {MiddleBlock(s.a, s.b, s.c, true, false, n)};
    ASSERT_EQ(run(kReduceScatter), "");
    const uint64_t mask = (uint64_t{1} << BitWidth(s.dtype)) - 1;
    for (int r = 0; r < n; ++r) {
      for (int64_t i = 0; i < s.a * s.b * s.c; ++i) {
        const int64_t a = i / (s.b * s.c), at = i % (s.b * s.c);
        uint64_t sum = 0;
        for (auto& in : run.in) sum += in.Get((a * n + r) * s.b * s.c + at);
        ASSERT_EQ(run.out[r].Get(i), sum & mask) << Name(s.dtype) << " " << i;
      }
    }
  }
}

TEST(Operations, AllToAllOfSeparateBuffers) {
  Job run(DType::kS32, 2, 5, 5);
  run.spec.is_tuple = true;
  run.in_parts.push_back(run.in_parts[0]);
  run.out_parts = run.in_parts;
  for (int i = 0; i < 2; ++i) {  // [part][rank]
    run.in.emplace_back(32, 5, 50 + i);
    run.out.emplace_back(32, 5, 60 + i);
  }
  ASSERT_EQ(run(kAllToAll), "");
  for (int rank : {0, 1}) {
    for (int source : {0, 1}) {
      for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(run.out[2 * source + rank].Get(i), run.in[2 * rank + source].Get(i));
      }
    }
  }
}

TEST(Operations, ATransposingBlock) {
  Job run(DType::kBF16, 2, 12, 24);  // [3, 4] row-major to [3, 8] column-major
  Block block;
  block.rows.loops = {{4, 1, 3}, {3, 4, 1}};
  block.rows.run = 1;
  block.out_step = 12;
  ASSERT_TRUE(block.rows.Measure());
  run.spec.blocks = {block};
  ASSERT_EQ(run(kAllGather), "");
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 8; ++j)
      EXPECT_EQ(run.out[1].Get(j * 3 + i), run.in[j / 4].Get(i * 4 + j % 4));
  }
}

TEST(Operations, BlocksOutsideTheBuffersAreErrors) {
  for (const Operation* operation : {&kAllReduce, &kAllGather, &kReduceScatter, &kAllToAll,
                                     &kCollectivePermute, &kCollectiveBroadcast}) {
    Job run(DType::kS32, 2, 8, 8);
    run.spec.blocks = {{OneRow(9)}};
    EXPECT_NE(run(*operation).find("blocks end at element 9"), std::string::npos)
        << operation->name;
    run.spec.blocks = {};
    EXPECT_NE(run(*operation), "") << operation->name;
  }
}

TEST(Operations, AReductionWithoutMeaningIsAnError) {
  for (const Operation* operation : {&kAllReduce, &kReduceScatter}) {
    Job run(DType::kF32, 2, 8, 8);
    run.spec.kind = ReduceKind::kXor;
    run.spec.blocks = {{OneRow(4)}};
    EXPECT_EQ(run(*operation), "xor of float32 has no meaning");
  }
}

}  // namespace
}  // namespace strata::core
