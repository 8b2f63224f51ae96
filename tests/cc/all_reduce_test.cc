// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The cutting of buffers into units.
#include "core/all_reduce.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <vector>

namespace strata::core {
namespace {

// Two ranks; float buffers of the given lengths, and one of packed 4-bit integers.
void Check(const std::vector<int64_t>& counts, int num_threads) {
  std::vector<std::vector<float>> in(2 * counts.size()), out(2 * counts.size());
  std::vector<const void*> in_pointers;
  std::vector<void*> out_pointers;
  for (size_t part = 0; part < counts.size(); ++part) {
    for (int rank = 0; rank < 2; ++rank) {
      auto& values = in[2 * part + rank];
      values.resize(counts[part]);
      std::iota(values.begin(), values.end(), static_cast<float>(part + 1000 * rank));
      out[2 * part + rank].assign(counts[part] + 1, -1.f);
      in_pointers.push_back(values.data());
      out_pointers.push_back(out[2 * part + rank].data());
    }
  }
  std::vector<uint8_t> packed_in(5001, 0x21),
      packed_out[2] = {std::vector<uint8_t>(5002, 0xee), std::vector<uint8_t>(5002, 0xee)};
  const void* packed_in_pointers[] = {packed_in.data(), packed_in.data()};
  void* packed_out_pointers[] = {packed_out[0].data(), packed_out[1].data()};

  AllReduceWork work;
  work.Clear(2);
  const ReduceFn sum = Kernels().find_reduce(DType::kF32, ReduceKind::kSum);
  for (size_t part = 0; part < counts.size(); ++part) {
    work.Add({sum, 32, counts[part], &in_pointers[2 * part], &out_pointers[2 * part]});
  }
  work.Add({Kernels().find_reduce(DType::kS4, ReduceKind::kSum), 4, 10001, packed_in_pointers,
            packed_out_pointers});
  work.Plan();
  EXPECT_EQ(work.num_bytes(), 4 * std::accumulate(counts.begin(), counts.end(), int64_t{0}) + 5001);
  std::atomic<int> num_last{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&] { num_last += work.Run() ? 1 : 0; });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_last, 1);
  EXPECT_FALSE(work.Run());  // a helper that comes late finds nothing to do
  for (size_t part = 0; part < counts.size(); ++part) {
    for (int rank = 0; rank < 2; ++rank) {
      const auto& got = out[2 * part + rank];
      for (int64_t i = 0; i < counts[part]; ++i) {
        ASSERT_EQ(got[i], in[2 * part][i] + in[2 * part + 1][i]) << "part " << part << " at " << i;
      }
      ASSERT_EQ(got.back(), -1.f) << "written past the end of part " << part;
    }
  }
  for (const auto& got : packed_out) {
    for (int i = 0; i < 5000; ++i) ASSERT_EQ(got[i], 0x42) << i;
    ASSERT_EQ(got[5000], 0x02);
    ASSERT_EQ(got[5001], 0xee);
  }
}

TEST(AllReduceWork, OneSmallBuffer) { Check({5}, 1); }
TEST(AllReduceWork, EmptyBuffersBetween) { Check({0, 3, 0, 0, 100000, 0}, 2); }
TEST(AllReduceWork, ManyOddBuffers) {
  std::vector<int64_t> counts;
  for (int i = 0; i < 300; ++i) counts.push_back(i * 37 % 2011);
  Check(counts, 3);
}
TEST(AllReduceWork, OneLargeBuffer) { Check({3000001}, 4); }
TEST(AllReduceWork, BoundariesAtUnits) { Check({32768, 32768, 32767, 1, 65536}, 2); }

TEST(AllReduceWork, NothingToDo) {
  AllReduceWork work;
  work.Clear(2);
  work.Plan();
  EXPECT_EQ(work.num_units(), 0);
  EXPECT_TRUE(work.Run());
}

}  // namespace
}  // namespace strata::core
