// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The arena's blocks: placing, merging, finding, and refusing. arena_pages_test.cc has its pages.
#include "core/arena.h"

#include <gtest/gtest.h>
#include <stdint.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace strata::core {
namespace {

constexpr size_t kKiB = 1 << 10;
constexpr size_t kMiB = size_t{1} << 20;

std::unique_ptr<Arena> MakeArena(size_t reserve_bytes, bool shared = false) {
  ArenaOptions options;
  options.reserve_bytes = static_cast<int64_t>(reserve_bytes);
  options.shared = shared;
  std::unique_ptr<Arena> arena;
  EXPECT_EQ(Arena::Create(options, &arena), "");
  return arena;
}

class ArenaTest : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Backing, ArenaTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Memfd" : "Anonymous"; });

TEST_P(ArenaTest, AlignsAndHandsOutWritableMemory) {
  const auto arena = MakeArena(256 * kMiB, GetParam());
  std::vector<char*> blocks;
  for (size_t alignment = 1; alignment <= 16 * kMiB; alignment *= 2) {
    const size_t num_bytes = 16 * kKiB + alignment % 4099;
    auto* const block = static_cast<char*>(arena->Allocate(num_bytes, alignment));
    ASSERT_NE(block, nullptr) << alignment;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % std::max(alignment, size_t{64}), 0u);
    EXPECT_TRUE(arena->Contains(block));
    memset(block, static_cast<int>(blocks.size()), num_bytes);
    blocks.push_back(block);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(blocks[i][16 * kKiB], static_cast<char>(i));
    arena->Free(blocks[i]);
  }
  EXPECT_EQ(arena->Stats().num_blocks, 1u);
  EXPECT_EQ(arena->Stats().in_use_bytes, 0u);
}

TEST_P(ArenaTest, FreeNeighboursMergeInEveryOrder) {
  std::vector<int> order = {0, 1, 2, 3};
  const auto arena = MakeArena(64 * kMiB, GetParam());
  do {
    void* blocks[4];
    for (void*& block : blocks) block = arena->Allocate(100 * kKiB, 64);
    for (int index : order) arena->Free(blocks[index]);
    ASSERT_EQ(arena->Stats().num_blocks, 1u);
    ASSERT_EQ(arena->Stats().num_free_blocks, 1u);
    void* const all = arena->Allocate(64 * kMiB, 64);
    ASSERT_EQ(all, arena->base());
    arena->Free(all);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(ArenaBlocksTest, BestFitTakesTheSmallestHole) {
  const auto arena = MakeArena(64 * kMiB);
  void* const large_hole = arena->Allocate(4 * kMiB, 64);
  void* const wall = arena->Allocate(kMiB, 64);
  void* const small_hole = arena->Allocate(2 * kMiB, 64);
  void* const wall2 = arena->Allocate(kMiB, 64);
  arena->Free(large_hole);
  arena->Free(small_hole);
  EXPECT_EQ(arena->Allocate(kMiB + 512 * kKiB, 64), small_hole);
  EXPECT_EQ(arena->Allocate(3 * kMiB, 64), large_hole);
  EXPECT_NE(wall, nullptr);
  EXPECT_NE(wall2, nullptr);
}

TEST(ArenaBlocksTest, FindsInteriorPointers) {
  const auto arena = MakeArena(64 * kMiB);
  auto* const first = static_cast<char*>(arena->Allocate(100000, 64));
  auto* const second = static_cast<char*>(arena->Allocate(50000, 64));
  for (size_t offset : {size_t{0}, size_t{1}, size_t{99999}}) {
    const auto use = arena->Find(first + offset);
    ASSERT_TRUE(use);
    EXPECT_EQ(use->base, first);
    EXPECT_EQ(use->num_bytes, 100000u);
  }
  EXPECT_FALSE(arena->Find(first + 100000));  // padding belongs to nobody
  EXPECT_EQ(arena->Find(second + 49999)->base, second);
  EXPECT_FALSE(arena->Find(second + 10 * kMiB));
  EXPECT_FALSE(arena->Find(arena->base() - 1));
  EXPECT_FALSE(arena->Find(arena->base() + 64 * kMiB));
  EXPECT_FALSE(arena->Find(nullptr));
  int local = 0;
  EXPECT_FALSE(arena->Contains(&local));
  EXPECT_TRUE(arena->Contains(arena->base() + 64 * kMiB - 1));
  EXPECT_FALSE(arena->Contains(arena->base() + 64 * kMiB));

  const uint64_t generation = arena->Find(first)->generation;
  EXPECT_NE(generation, arena->Find(second)->generation);
  arena->Free(first);
  EXPECT_FALSE(arena->Find(first));
  ASSERT_EQ(arena->Allocate(100000, 64), first);
  EXPECT_GT(arena->Find(first)->generation, generation);
}

TEST(ArenaBlocksTest, RefusesAndCounts) {
  const auto arena = MakeArena(32 * kMiB);
  EXPECT_EQ(arena->Allocate(16 * kKiB - 1, 64), nullptr);
  EXPECT_EQ(arena->Allocate(0, 64), nullptr);
  EXPECT_EQ(arena->Stats().fallback_small, 2u);

  EXPECT_EQ(arena->Allocate(kMiB, 0), nullptr);
  EXPECT_EQ(arena->Allocate(kMiB, 96), nullptr);
  EXPECT_EQ(arena->Stats().fallback_bad_alignment, 2u);

  EXPECT_EQ(arena->Allocate(32 * kMiB + 1, 64), nullptr);
  EXPECT_EQ(arena->Allocate(SIZE_MAX, 64), nullptr);
  EXPECT_EQ(arena->Allocate(SIZE_MAX - 4094, 64), nullptr);
  EXPECT_EQ(arena->Allocate(kMiB, size_t{1} << 63), nullptr);
  void* const most = arena->Allocate(31 * kMiB, 64);
  EXPECT_NE(most, nullptr);
  EXPECT_EQ(arena->Allocate(2 * kMiB, 64), nullptr);
  EXPECT_EQ(arena->Stats().fallback_exhausted, 5u);

  void* const last = arena->Allocate(kMiB, 64);
  EXPECT_NE(last, nullptr);
  EXPECT_EQ(arena->Stats().num_free_blocks, 0u);
  arena->Free(most);
  arena->Free(last);
  EXPECT_EQ(arena->Stats().num_blocks, 1u);

  arena->Free(last);               // twice
  arena->Free(arena->base() + 5);  // inside nothing
  EXPECT_EQ(arena->Stats().invalid_frees, 2u);
  EXPECT_EQ(arena->Stats().num_blocks, 1u);
  EXPECT_EQ(arena->Stats().allocations, 2u);
  EXPECT_EQ(arena->Stats().frees, 2u);
}

TEST(ArenaBlocksTest, DefaultsFollowTheMachine) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a reservation of this size has a shadow of its size";
#else
  std::unique_ptr<Arena> arena;
  ASSERT_EQ(Arena::Create(ArenaOptions(), &arena), "");
  const ArenaStats stats = arena->Stats();
  EXPECT_GE(stats.reserved_bytes, Arena::kSmallestReserveBytes);
  EXPECT_LE(stats.reserved_bytes, 2 * platform::PhysicalMemoryBytes());
  EXPECT_EQ(stats.keep_limit_bytes, platform::MemoryLimitBytes() / 4);
  EXPECT_EQ(stats.committed_bytes, 0u);
#endif
}

// Blocks with a pattern in them, so that two that overlap or lose their pages are seen.
struct Patterned {
  uint64_t* words;
  size_t num_words;
  uint64_t seed;

  static Patterned Make(Arena* arena, size_t num_bytes, size_t alignment, uint64_t seed) {
    auto* const words = static_cast<uint64_t*>(arena->Allocate(num_bytes, alignment));
    const size_t num_words = num_bytes / 8;
    // Every page and the ends; all words would take a sanitizer too long.
    for (size_t i = 0; words != nullptr && i < num_words; i += 256) words[i] = seed ^ i;
    if (words != nullptr) words[num_words - 1] = seed;
    return {words, num_words, seed};
  }
  bool Intact() const {
    for (size_t i = 0; i < num_words - 1; i += 256) {
      if (words[i] != (seed ^ i)) return false;
    }
    return words[num_words - 1] == seed;
  }
};

TEST_P(ArenaTest, ChurnOnFourThreads) {
  const auto arena = MakeArena(512 * kMiB, GetParam());
  arena->SetKeepBytes(static_cast<int64_t>(8 * kMiB));  // discards all the time
  std::atomic<int> num_broken{0};
  std::atomic<int> num_refused{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      std::vector<Patterned> alive;
      for (uint64_t i = 0; i < 5000; ++i) {
        if (alive.size() < 12 && random() % 5 < 3) {
          const size_t num_bytes = (16 * kKiB) << (random() % 7);  // up to 1 MiB, and as much again
          const size_t alignment = size_t{64} << (random() % 9);
          const Patterned block = Patterned::Make(arena.get(), num_bytes + random() % num_bytes,
                                                  alignment, random() | 1);
          if (block.words == nullptr) {
            ++num_refused;
          } else {
            alive.push_back(block);
          }
        } else if (!alive.empty()) {
          std::swap(alive[random() % alive.size()], alive.back());
          if (!alive.back().Intact()) ++num_broken;
          arena->Free(alive.back().words);
          alive.pop_back();
        }
        if (i % 1000 == 0) arena->Trim();
      }
      for (const Patterned& block : alive) {
        if (!block.Intact()) ++num_broken;
        arena->Free(block.words);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_broken, 0);
  EXPECT_EQ(num_refused, 0);
  const ArenaStats stats = arena->Stats();
  EXPECT_EQ(stats.num_blocks, 1u);
  EXPECT_EQ(stats.in_use_bytes, 0u);
  EXPECT_EQ(stats.allocations, stats.frees);
  EXPECT_EQ(stats.allocations, stats.hits + stats.fresh);
  EXPECT_EQ(stats.invalid_frees, 0u);
  EXPECT_GT(stats.discarded_bytes, 0u);
  EXPECT_LE(stats.kept_bytes, 8 * kMiB + platform::kPieceBytes);
}

}  // namespace
}  // namespace strata::core
