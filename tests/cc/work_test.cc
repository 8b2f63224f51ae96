// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The cutting of transfers into units.
#include "core/work.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <vector>

#include "core/types.h"

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

  Work work;
  work.Clear();
  Transfer transfer;
  transfer.num_in = transfer.num_out = 2;
  transfer.is_whole = true;
  transfer.reduce = Kernels().find_reduce(DType::kF32, ReduceKind::kSum);
  transfer.bit_width = 32;
  for (size_t part = 0; part < counts.size(); ++part) {
    transfer.num_elements = counts[part];
    transfer.in = &in_pointers[2 * part];
    transfer.out = &out_pointers[2 * part];
    work.Add(transfer);
  }
  transfer.reduce = Kernels().find_reduce(DType::kS4, ReduceKind::kSum);
  transfer.bit_width = 4;
  transfer.num_elements = 10001;
  transfer.in = packed_in_pointers;
  transfer.out = packed_out_pointers;
  work.Add(transfer);
  work.Plan();
  EXPECT_EQ(work.written_bytes(),
            2 * (4 * std::accumulate(counts.begin(), counts.end(), int64_t{0}) + 5001));
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

TEST(Work, OneSmallBuffer) { Check({5}, 1); }
TEST(Work, EmptyBuffersBetween) { Check({0, 3, 0, 0, 100000, 0}, 2); }
TEST(Work, ManyOddBuffers) {
  std::vector<int64_t> counts;
  for (int i = 0; i < 300; ++i) counts.push_back(i * 37 % 2011);
  Check(counts, 3);
}
TEST(Work, OneLargeBuffer) { Check({3000001}, 4); }
TEST(Work, BoundariesAtUnits) { Check({32768, 32768, 32767, 1, 65536}, 2); }

TEST(Work, NothingToDo) {
  Work work;
  work.Clear();
  work.Plan();
  EXPECT_EQ(work.num_units(), 0);
  EXPECT_TRUE(work.Run());
}

}  // namespace
}  // namespace strata::core
