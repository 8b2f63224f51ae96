// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The arena's pages: keeping, giving back, getting them ahead of use, and what a fork sees.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/arena.h"

namespace strata::core {
namespace {

constexpr size_t kKiB = 1 << 10;
constexpr size_t kMiB = size_t{1} << 20;

std::unique_ptr<Arena> MakeArena(size_t reserve_bytes, bool shared, int64_t keep_bytes = -1) {
  ArenaOptions options;
  options.reserve_bytes = static_cast<int64_t>(reserve_bytes);
  options.keep_bytes = keep_bytes;
  options.shared = shared;
  std::unique_ptr<Arena> arena;
  EXPECT_EQ(Arena::Create(options, &arena), "");
  return arena;
}

size_t ResidentBytes(const Arena& arena, size_t num_bytes) {
  const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(num_bytes / page_bytes);
  EXPECT_EQ(mincore(arena.base(), num_bytes, pages.data()), 0);
  size_t resident = 0;
  for (unsigned char page : pages) resident += (page & 1) * page_bytes;
  return resident;
}

bool WaitFor(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

class ArenaPagesTest : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Backing, ArenaPagesTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Memfd" : "Anonymous"; });

TEST_P(ArenaPagesTest, KeepsPagesAndServesFromThem) {
  const auto arena = MakeArena(64 * kMiB, GetParam());
  void* const first = arena->Allocate(8 * kMiB, 64);
  memset(first, 1, 8 * kMiB);
  EXPECT_EQ(arena->Stats().fresh, 1u);
  EXPECT_EQ(arena->Stats().hits, 0u);
  arena->Free(first);
  EXPECT_GE(arena->Stats().kept_bytes, 8 * kMiB);
  EXPECT_GE(ResidentBytes(*arena, 64 * kMiB), 8 * kMiB);
  EXPECT_EQ(arena->Allocate(6 * kMiB, 64), first);
  EXPECT_EQ(arena->Stats().hits, 1u);
  EXPECT_EQ(arena->Stats().fresh, 1u);
}

TEST_P(ArenaPagesTest, KeepLimitGivesHighestPagesBack) {
  const auto arena = MakeArena(64 * kMiB, GetParam(), 6 * kMiB);
  void* const low = arena->Allocate(10 * kMiB, 64);
  void* const high = arena->Allocate(10 * kMiB, 64);
  memset(low, 1, 10 * kMiB);
  memset(high, 1, 10 * kMiB);
  arena->Free(low);
  EXPECT_TRUE(WaitFor([&] { return arena->Stats().kept_bytes <= 6 * kMiB; }));
  arena->Free(high);
  EXPECT_TRUE(WaitFor([&] { return arena->Stats().kept_bytes <= 6 * kMiB; }));
  EXPECT_LE(ResidentBytes(*arena, 64 * kMiB), 6 * kMiB);
  EXPECT_GE(ResidentBytes(*arena, 6 * kMiB), 6 * kMiB);  // the lowest are those that stay
  EXPECT_GE(arena->Stats().discarded_bytes, 14 * kMiB);
  EXPECT_EQ(arena->Stats().peak_in_use_bytes, 20 * kMiB);

  arena->SetKeepBytes(0);
  EXPECT_TRUE(WaitFor([&] { return arena->Stats().kept_bytes == 0; }));
  EXPECT_EQ(ResidentBytes(*arena, 64 * kMiB), 0u);
}

TEST_P(ArenaPagesTest, TrimGivesAllFreePagesBackAndNoOthers) {
  const auto arena = MakeArena(64 * kMiB, GetParam());
  auto* const left = static_cast<char*>(arena->Allocate(5 * kMiB, 64));
  auto* const alive = static_cast<char*>(arena->Allocate(3 * kMiB, 64));
  auto* const right = static_cast<char*>(arena->Allocate(7 * kMiB, 64));
  memset(left, 1, 5 * kMiB);
  memset(alive, 2, 3 * kMiB);
  memset(right, 3, 7 * kMiB);
  arena->Free(left);
  arena->Free(right);
  EXPECT_GE(arena->Trim(), 10 * kMiB);
  EXPECT_LE(arena->Stats().kept_bytes, 2 * platform::kPieceBytes);
  EXPECT_LE(ResidentBytes(*arena, 64 * kMiB), 3 * kMiB + 2 * platform::kPieceBytes);
  for (size_t i = 0; i < 3 * kMiB; ++i) ASSERT_EQ(alive[i], 2);
  arena->Free(alive);
  arena->Trim();
  EXPECT_EQ(arena->Stats().kept_bytes, 0u);
  EXPECT_EQ(ResidentBytes(*arena, 64 * kMiB), 0u);
  EXPECT_EQ(arena->Trim(), 0u);
}

TEST_P(ArenaPagesTest, TrimWaitsForPopulation) {
  const auto arena = MakeArena(64 * kMiB, GetParam());
  for (int i = 0; i < 100; ++i) {
    arena->Free(arena->Allocate(8 * kMiB, 64));  // starts population
    std::this_thread::sleep_for(std::chrono::microseconds(i * 5));
    arena->Trim();
    ASSERT_EQ(arena->Stats().kept_bytes, 0u);
    ASSERT_EQ(ResidentBytes(*arena, 64 * kMiB), 0u) << i;
  }
}

TEST_P(ArenaPagesTest, TickTrimsAfterAMinuteWithoutAllocations) {
  const auto arena = MakeArena(64 * kMiB, GetParam());
  EXPECT_EQ(arena->Tick(5000), 0u);
  arena->Free(arena->Allocate(8 * kMiB, 64));
  EXPECT_EQ(arena->Tick(5010), 0u);
  EXPECT_EQ(arena->Tick(5069), 0u);
  arena->Free(arena->Allocate(8 * kMiB, 64));
  EXPECT_EQ(arena->Tick(5071), 0u);
  EXPECT_EQ(arena->Tick(5130), 0u);
  EXPECT_GE(arena->Tick(5132), 8 * kMiB);
  EXPECT_EQ(arena->Stats().kept_bytes, 0u);
  EXPECT_EQ(arena->Tick(6000), 0u);
}

TEST_P(ArenaPagesTest, PopulatesAheadWithinItsBounds) {
  const auto arena = MakeArena(256 * kMiB, GetParam());
  void* const block = arena->Allocate(64 * kMiB, 64);
  memset(block, 1, 64 * kMiB);
  if (!WaitFor([&] { return arena->Stats().populated_bytes >= 8 * kMiB; })) {
    GTEST_SKIP() << "this kernel does not populate pages on request (before Linux 5.14)";
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(ResidentBytes(*arena, 256 * kMiB), 64 * kMiB + 8 * kMiB);  // an eighth
  EXPECT_EQ(arena->Stats().kept_bytes, 8 * kMiB);
  arena->Allocate(8 * kMiB, 64);
  EXPECT_EQ(arena->Stats().hits, 1u);
}

TEST_P(ArenaPagesTest, PopulatesNothingBeyondTheKeepLimit) {
  const auto arena = MakeArena(256 * kMiB, GetParam(), 0);
  void* const block = arena->Allocate(64 * kMiB, 64);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(arena->Stats().populated_bytes, 0u);
  arena->Free(block);
  EXPECT_EQ(arena->Stats().kept_bytes, 0u);
}

// Holes that nothing fits into must not make resident memory grow without end.
TEST_P(ArenaPagesTest, ResidentMemoryFollowsThePeakInUse) {
  const auto arena = MakeArena(512 * kMiB, GetParam());
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(arena->Allocate(16 * kMiB, 64));
  for (int i = 0; i < 16; i += 2) arena->Free(blocks[i]);
  EXPECT_EQ(arena->Stats().discarded_bytes, 0u);
  for (int i = 0; i < 7; ++i) arena->Allocate(17 * kMiB, 64);
  const ArenaStats stats = arena->Stats();
  EXPECT_EQ(stats.in_use_bytes, 8 * 16 * kMiB + 7 * 17 * kMiB);
  EXPECT_LE(stats.in_use_bytes + stats.kept_bytes, 256 * kMiB * 6 / 5 + 32 * kMiB);
  EXPECT_GT(stats.discarded_bytes, 0u);
}

// Allocation, discarding and population at once; a page that is lost or shared breaks a pattern.
TEST_P(ArenaPagesTest, PopulationRacesWithAllocationAndTrim) {
  const auto arena = MakeArena(256 * kMiB, GetParam());
  std::atomic<bool> stop{false};
  std::atomic<int> num_broken{0};
  std::thread trimmer([&] {
    while (!stop) {
      arena->Trim();
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 400; ++i) {
        const size_t num_bytes = 2 * kMiB + static_cast<size_t>(i % 7) * 700 * kKiB;
        auto* const block = static_cast<char*>(arena->Allocate(num_bytes, 64));
        const char mark = static_cast<char>(i * 2 + t);
        for (size_t at = 0; at < num_bytes; at += 4096) block[at] = mark;
        std::this_thread::yield();
        for (size_t at = 0; at < num_bytes; at += 4096) num_broken += block[at] != mark;
        arena->Free(block);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  stop = true;
  trimmer.join();
  EXPECT_EQ(num_broken, 0);
  arena->Trim();
  EXPECT_EQ(arena->Stats().kept_bytes, 0u);
  EXPECT_EQ(ResidentBytes(*arena, 256 * kMiB), 0u);  // the books know every page
}

TEST_P(ArenaPagesTest, CommitThatIsRefusedIsCounted) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's own memory is above any limit of data";
#else
  if (GetParam()) GTEST_SKIP() << "`ulimit -d` does not limit shared memory";
  const auto arena = MakeArena(512 * kMiB, GetParam());
  rlimit before;
  getrlimit(RLIMIT_DATA, &before);
  rlimit lowered = before;
  lowered.rlim_cur = 100 * kMiB;
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &lowered), 0);
  void* const refused = arena->Allocate(200 * kMiB, 64);
  void* const served = arena->Allocate(4 * kMiB, 64);
  setrlimit(RLIMIT_DATA, &before);
  EXPECT_EQ(refused, nullptr);
  EXPECT_NE(served, nullptr);
  EXPECT_EQ(arena->Stats().fallback_commit_failed, 1u);
  void* const later = arena->Allocate(200 * kMiB, 64);
  EXPECT_NE(later, nullptr);
#endif
}

// Runs `body` in a forked child; its result is the child's exit status, -1 for a death by signal.
[[maybe_unused]] int InChild(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    _exit(body());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_P(ArenaPagesTest, ForkedChildReadsAndNeverWritesItsParents) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not support fork beside threads";
#else
  const auto arena = MakeArena(64 * kMiB, GetParam());
  arena->HandleForks();
  auto* const block = static_cast<char*>(arena->Allocate(4 * kMiB, 64));
  auto* const other = static_cast<char*>(arena->Allocate(4 * kMiB, 64));
  memset(block, 1, 4 * kMiB);
  memset(other, 2, 4 * kMiB);
  const int result = InChild([&] {
    for (size_t i = 0; i < 4 * kMiB; ++i) {
      if (block[i] != 1 || other[i] != 2) return 1;
    }
    memset(block, 9, 4 * kMiB);
    if (block[5] != 9) return 2;
    const ArenaStats before = arena->Stats();
    if (arena->Allocate(kMiB, 64) != nullptr) return 3;
    if (arena->Stats().fallback_forked != before.fallback_forked + 1) return 4;
    arena->Free(block);
    arena->Free(other);
    if (arena->Trim() != 0 || arena->Tick(1e6) != 0) return 5;
    arena->SetKeepBytes(0);
    if (arena->Stats().frees != before.frees + 2) return 6;
    // A child of the child reads what the child wrote.
    return InChild([&] { return block[5] == 9 && other[5] == 2 ? 0 : 1; }) == 0 ? 0 : 7;
  });
  EXPECT_EQ(result, 0);
  for (size_t i = 0; i < 4 * kMiB; ++i) {
    ASSERT_EQ(block[i], 1);
    ASSERT_EQ(other[i], 2);
  }
  arena->Free(block);
  ASSERT_NE(arena->Allocate(4 * kMiB, 64), nullptr);  // the parent's arena goes on
  EXPECT_EQ(arena->Stats().fallback_forked, 0u);
#endif
}

TEST_P(ArenaPagesTest, ForkBesideThreadsThatAllocate) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not support fork beside threads";
#else
  const auto arena = MakeArena(128 * kMiB, GetParam());
  arena->HandleForks();
  std::atomic<bool> stop{false};
  std::thread churn([&] {
    for (int i = 0; !stop; ++i) {
      arena->Free(arena->Allocate(kMiB + static_cast<size_t>(i % 13) * kMiB, 64));
      if (i % 20 == 0) arena->Trim();
    }
  });
  void* const block = arena->Allocate(kMiB, 64);
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(InChild([&] {
                arena->Free(block);  // hangs if the child inherited a locked mutex
                return arena->Stats().invalid_frees == 0 ? 0 : 1;
              }),
              0);
  }
  stop = true;
  churn.join();
#endif
}

TEST(ArenaFileTest, IsClosedOnExecAndCannotShrink) {
  const auto arena = MakeArena(64 * kMiB, true);
  ASSERT_GE(arena->fd(), 0);
  EXPECT_NE(fcntl(arena->fd(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(ftruncate(arena->fd(), 0), 0);
  const std::string command = "test ! -e /proc/self/fd/" + std::to_string(arena->fd());
  EXPECT_EQ(system(command.c_str()), 0);  // a shell that this process starts does not have it
  EXPECT_EQ(MakeArena(64 * kMiB, false)->fd(), -1);
}

TEST(ArenaFileTest, SharedPagesAreThoseOfTheFile) {
  const auto arena = MakeArena(64 * kMiB, true);
  auto* const block = static_cast<char*>(arena->Allocate(kMiB, 64));
  block[100] = 42;
  char seen = 0;
  ASSERT_EQ(pread(arena->fd(), &seen, 1, block + 100 - arena->base()), 1);
  EXPECT_EQ(seen, 42);
}

}  // namespace
}  // namespace strata::core
