// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The allocator hook on libraries of our own, bound lazily and at once. The hook is for ever, so
// the tests of a process share one arena and take what others left into account.
#include "core/alloc_hook.h"

#include <dlfcn.h>
#include <errno.h>
#include <gtest/gtest.h>
#include <inttypes.h>
#include <stdlib.h>

#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "hooked_library.h"
#include "platform/symbol_slots.h"

namespace strata::core {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

ArenaOptions SmallOptions() {
  ArenaOptions options;
  options.reserve_bytes = 128 * kMiB;
  return options;
}

struct Library {
  explicit Library(const char* path) : path(path), handle(dlopen(path, RTLD_LAZY | RTLD_LOCAL)) {
    if (handle == nullptr) return;
    allocate = reinterpret_cast<HookedAllocateFn*>(dlsym(handle, "HookedAllocate"));
    free = reinterpret_cast<HookedFreeFn*>(dlsym(handle, "HookedFree"));
    realloc = reinterpret_cast<HookedReallocFn*>(dlsym(handle, "HookedRealloc"));
  }

  void* Allocate(size_t num_bytes) const {
    void* block = nullptr;
    EXPECT_EQ(allocate(&block, 64, num_bytes), 0);
    return block;
  }

  std::string path;
  void* handle;
  HookedAllocateFn* allocate = nullptr;
  HookedFreeFn* free = nullptr;
  HookedReallocFn* realloc = nullptr;
};

std::string ProtectionOf(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin, end;
    char flags[5];
    if (sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &begin, &end, flags) != 3) continue;
    const auto value = reinterpret_cast<uintptr_t>(address);
    if (value >= begin && value < end) return flags;
  }
  return "none";
}

std::vector<platform::Slot> SlotsOf(const Library& library) {
  platform::Imports imports;
  EXPECT_EQ(platform::FindImports(library.path, {"free", "realloc", "posix_memalign"}, &imports),
            "");
  return imports.slots;
}

bool InArena(const void* pointer) {
  return AllocatorArena() != nullptr && AllocatorArena()->Contains(pointer);
}

class AllocHookTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Binding, AllocHookTest,
                         testing::Values(STRATA_HOOKED_LAZY, STRATA_HOOKED_NOW),
                         [](const auto& info) {
                           return std::string(info.param).find("lazy") != std::string::npos ? "Lazy"
                                                                                            : "Now";
                         });

TEST_P(AllocHookTest, RedirectsEverySlotAndRestoresProtection) {
  const Library library(GetParam());
  ASSERT_NE(library.handle, nullptr);
  const auto slots = SlotsOf(library);
  std::vector<std::string> before;
  for (const auto& slot : slots) before.push_back(ProtectionOf(slot.address));
  platform::Imports imports;
  ASSERT_EQ(platform::FindImports(library.path, {"free"}, &imports), "");
  // Whether the libraries are as the test needs them: bound at the first call, or read-only. An
  // environment may bind all at once, and an earlier test may have hooked them.
  const bool read_only = before[0].substr(0, 2) == "r-";
  const bool unbound = imports.Holds(platform::ReadSlot(imports.slots[0].address));
  if (std::string(GetParam()) == STRATA_HOOKED_NOW) {
    EXPECT_TRUE(read_only);
  } else if (getenv("LD_BIND_NOW") == nullptr && AllocatorArena() == nullptr) {
    EXPECT_TRUE(unbound);
    EXPECT_FALSE(read_only);
  }

  const InstallResult result = InstallAllocator(SmallOptions(), library.path);
  ASSERT_EQ(result.error, "");
  EXPECT_EQ(result.num_posix_memalign_slots, 1u);
  EXPECT_GE(result.num_free_slots, 2u);
  EXPECT_GE(result.num_realloc_slots, 2u);
  EXPECT_EQ(result.backing, "anonymous");
  EXPECT_EQ(result.reserved_bytes, 128 * kMiB);
  for (size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(ProtectionOf(slots[i].address), before[i]) << slots[i].symbol;
  }

  for (int way : {kByCall, kByData}) {
    const uint64_t frees = AllocatorArena()->Stats().frees;
    void* const block = library.Allocate(kMiB);
    ASSERT_TRUE(InArena(block));
    memset(block, 1, kMiB);
    errno = 1234;
    library.free(block, way);
    EXPECT_EQ(errno, 1234);
    EXPECT_EQ(AllocatorArena()->Stats().frees, frees + 1) << "way " << way;
    library.free(malloc(100), way);  // the old function still serves libc's pointers
    library.free(nullptr, way);
    EXPECT_EQ(AllocatorArena()->Stats().frees, frees + 1);
  }
  EXPECT_EQ(AllocatorArena()->Stats().invalid_frees, 0u);
}

TEST_P(AllocHookTest, RefusedRequestsAreServedByTheOldFunction) {
  const Library library(GetParam());
  ASSERT_EQ(InstallAllocator(SmallOptions(), library.path).error, "");
  const ArenaStats before = AllocatorArena()->Stats();
  void* const small = library.Allocate(100);
  EXPECT_FALSE(InArena(small));
  void* const large = library.Allocate(200 * kMiB);
  EXPECT_FALSE(InArena(large));
  library.free(small, kByCall);
  library.free(large, kByCall);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const uint64_t num_bad = 0;  // the sanitizers' posix_memalign ends the process on these
#else
  const uint64_t num_bad = 2;
  void* bad = nullptr;
  EXPECT_EQ(library.allocate(&bad, 12, kMiB), EINVAL);
  EXPECT_EQ(library.allocate(&bad, 96, kMiB), EINVAL);
  EXPECT_EQ(library.allocate(&bad, 4, kMiB), EINVAL);  // less than a pointer, says POSIX
  EXPECT_EQ(bad, nullptr);
#endif
  const ArenaStats after = AllocatorArena()->Stats();
  EXPECT_EQ(after.fallback_small, before.fallback_small + 1);
  EXPECT_EQ(after.fallback_exhausted, before.fallback_exhausted + 1);
  EXPECT_EQ(after.fallback_bad_alignment, before.fallback_bad_alignment + num_bad);
}

TEST_P(AllocHookTest, ReallocMovesArenaBlocksOut) {
  const Library library(GetParam());
  ASSERT_EQ(InstallAllocator(SmallOptions(), library.path).error, "");
  for (int way : {kByCall, kByData}) {
    char* const block = static_cast<char*>(library.Allocate(kMiB));
    ASSERT_TRUE(InArena(block));
    memset(block, 7, kMiB);
    char* const moved = static_cast<char*>(library.realloc(block, 2 * kMiB, way));
    ASSERT_NE(moved, nullptr);
    EXPECT_FALSE(InArena(moved));
    EXPECT_FALSE(AllocatorArena()->Find(block));
    EXPECT_EQ(std::string(moved, kMiB), std::string(kMiB, 7));
    char* const again = static_cast<char*>(library.realloc(moved, 100, way));
    EXPECT_EQ(again[99], 7);
    library.free(again, way);
  }
}

TEST_P(AllocHookTest, UninstallWhileBlocksAreAlive) {
  const Library library(GetParam());
  ASSERT_EQ(InstallAllocator(SmallOptions(), library.path).error, "");
  char* const alive = static_cast<char*>(library.Allocate(kMiB));
  ASSERT_TRUE(InArena(alive));
  memset(alive, 9, kMiB);

  ASSERT_EQ(UninstallAllocator(), "");
  ASSERT_EQ(UninstallAllocator(), "");
  void* const plain = library.Allocate(kMiB);
  EXPECT_FALSE(InArena(plain));
  EXPECT_EQ(VerifyAllocator(), 0);  // does not bring posix_memalign back
  void* const plain_too = library.Allocate(kMiB);
  EXPECT_FALSE(InArena(plain_too));
  library.free(plain_too, kByCall);
  EXPECT_EQ(alive[kMiB - 1], 9);
  const uint64_t frees = AllocatorArena()->Stats().frees;
  library.free(alive, kByCall);
  EXPECT_EQ(AllocatorArena()->Stats().frees, frees + 1);

  const InstallResult again = InstallAllocator(SmallOptions(), library.path);
  ASSERT_EQ(again.error, "");
  EXPECT_EQ(again.num_posix_memalign_slots, 1u);
  void* const block = library.Allocate(kMiB);
  EXPECT_TRUE(InArena(block));
  library.free(plain, kByCall);
  library.free(block, kByCall);
}

TEST_P(AllocHookTest, InstallTwiceIsOnce) {
  const Library library(GetParam());
  ASSERT_EQ(InstallAllocator(SmallOptions(), library.path).error, "");
  const Arena* const arena = AllocatorArena();
  ArenaOptions options = SmallOptions();
  options.keep_bytes = 3 * kMiB;
  // By its file name this time.
  const InstallResult second =
      InstallAllocator(options, library.path.substr(library.path.rfind('/') + 1));
  ASSERT_EQ(second.error, "");
  EXPECT_EQ(AllocatorArena(), arena);
  EXPECT_EQ(arena->Stats().keep_limit_bytes, 3 * kMiB);
  void* const block = library.Allocate(kMiB);
  EXPECT_TRUE(InArena(block));
  library.free(block, kByCall);
  library.free(malloc(1), kByCall);  // would never return if our functions called each other

  options.shared = true;
  const std::string error = InstallAllocator(options, library.path).error;
  EXPECT_NE(error.find("memfd"), std::string::npos) << error;
  EXPECT_NE(error.find("anonymous"), std::string::npos) << error;
}

TEST_P(AllocHookTest, VerifyWritesAgainWhatTheLinkerBound) {
  const Library library(GetParam());
  ASSERT_EQ(InstallAllocator(SmallOptions(), library.path).error, "");
  EXPECT_EQ(VerifyAllocator(), 0);
  for (const auto& slot : SlotsOf(library)) {
    void* const ours = platform::ReadSlot(slot.address);
    ASSERT_EQ(platform::WriteSlot(slot.address, platform::ResolveSymbol(slot.symbol.c_str())), "");
    EXPECT_EQ(VerifyAllocator(), 1) << slot.symbol;
    EXPECT_EQ(platform::ReadSlot(slot.address), ours);
  }
}

void ForeignFree(void*) {}

TEST_P(AllocHookTest, VerifyLeavesOtherTools) {
  const Library library(GetParam());
  ASSERT_EQ(InstallAllocator(SmallOptions(), library.path).error, "");
  for (const auto& slot : SlotsOf(library)) {
    if (slot.symbol != "free") continue;
    void* const ours = platform::ReadSlot(slot.address);
    void* const foreign = reinterpret_cast<void*>(ForeignFree);
    ASSERT_EQ(platform::WriteSlot(slot.address, foreign), "");
    EXPECT_EQ(VerifyAllocator(), 0);
    EXPECT_EQ(platform::ReadSlot(slot.address), foreign);
    ASSERT_EQ(platform::WriteSlot(slot.address, ours), "");
  }
}

TEST_P(AllocHookTest, TogglingBesideThreadsThatAllocate) {
  const Library library(GetParam());
  ASSERT_EQ(InstallAllocator(SmallOptions(), library.path).error, "");
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&library, t] {
      for (int i = 0; i < 500; ++i) {
        const size_t num_bytes = 20000 + static_cast<size_t>(t) * 1000;
        auto* const block = static_cast<unsigned char*>(library.Allocate(num_bytes));
        memset(block, t + 1, num_bytes);
        for (size_t at = 0; at < num_bytes; at += 1000) ASSERT_EQ(block[at], t + 1);
        library.free(block, i % 2);
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(UninstallAllocator(), "");
    EXPECT_EQ(InstallAllocator(SmallOptions(), library.path).error, "");
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(AllocatorArena()->Stats().invalid_frees, 0u);
  EXPECT_EQ(AllocatorArena()->Stats().in_use_bytes, 0u);
}

TEST(AllocHookErrorTest, LibraryIsNotLoaded) {
  const std::string error = InstallAllocator(SmallOptions(), "libnothere.so").error;
  EXPECT_NE(error.find("libnothere.so"), std::string::npos) << error;
  EXPECT_NE(error.find("loaded libraries"), std::string::npos) << error;
  EXPECT_NE(error.find("Import jaxlib"), std::string::npos) << error;
}

TEST(AllocHookErrorTest, LibraryHasNoSlots) {
  ASSERT_NE(dlopen(STRATA_HOOKED_NOTHING, RTLD_LAZY), nullptr);
  const std::string error = InstallAllocator(SmallOptions(), STRATA_HOOKED_NOTHING).error;
  EXPECT_NE(error.find("posix_memalign and free"), std::string::npos) << error;
  EXPECT_NE(error.find("found 0 and"), std::string::npos) << error;
}

}  // namespace
}  // namespace strata::core
