// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Limits of the system: cgroups of both versions, `ulimit -v` and `ulimit -f`.
#include "platform/memory.h"

#include <gtest/gtest.h>
#include <stdint.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace strata::platform {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class CgroupTest : public testing::Test {
 protected:
  CgroupTest() : root_(testing::TempDir() + "strata_cgroup_test") {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  ~CgroupTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::string full = root_ + "/" + path;
    std::filesystem::create_directories(full.substr(0, full.rfind('/')));
    std::ofstream(full) << text;
  }
  size_t Limit() { return CgroupLimitBytes(root_ + "/membership", root_); }

  const std::string root_;
};

TEST_F(CgroupTest, Version2TakesTheLeastOfItsAncestors) {
  Write("membership", "0::/a/b\n");
  Write("a/b/memory.max", "max\n");
  Write("a/memory.max", "1000000\n");
  Write("memory.max", "2000000\n");
  EXPECT_EQ(Limit(), 1000000u);
}

TEST_F(CgroupTest, Version1) {
  Write("membership", "7:cpu:/x\n4:hugetlb,memory:/a/b\n0::/\n");
  Write("memory/a/b/memory.limit_in_bytes", "3000000\n");
  Write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("x/memory.max", "5\n");
  EXPECT_EQ(Limit(), 3000000u);
}

TEST_F(CgroupTest, InAContainerThePathMayBeMissing) {
  Write("membership", "0::/docker/0123\n");
  Write("memory.max", "4000000\n");
  EXPECT_EQ(Limit(), 4000000u);
}

TEST_F(CgroupTest, NoLimit) {
  EXPECT_EQ(Limit(), SIZE_MAX);
  Write("membership", "0::/a\n");
  Write("a/memory.max", "max\n");
  EXPECT_EQ(Limit(), SIZE_MAX);
}

TEST(MemoryLimitTest, IsPlausible) {
  EXPECT_GT(PhysicalMemoryBytes(), 64 * kMiB);
  EXPECT_GT(MemoryLimitBytes(), 0u);
  EXPECT_LE(MemoryLimitBytes(), PhysicalMemoryBytes());
}

// Lowers a limit of this process while it lives.
class ScopedLimit {
 public:
  ScopedLimit(__rlimit_resource_t resource, rlim_t value) : resource_(resource) {
    getrlimit(resource, &before_);
    rlimit lowered = before_;
    lowered.rlim_cur = value;
    setrlimit(resource, &lowered);
  }
  ~ScopedLimit() { setrlimit(resource_, &before_); }

 private:
  const __rlimit_resource_t resource_;
  rlimit before_;
};

TEST(RegionTest, FileSizeLimitTakesLessAndDoesNotKill) {
  ScopedLimit limit(RLIMIT_FSIZE, 100 * kMiB);
  std::unique_ptr<Region> region;
  ASSERT_EQ(Region::Reserve(Backing::kMemfd, 256 * kMiB, 16 * kMiB, &region), "");
  EXPECT_EQ(region->num_bytes(), 64 * kMiB);

  std::unique_ptr<Region> none;
  const std::string error = Region::Reserve(Backing::kMemfd, 512 * kMiB, 256 * kMiB, &none);
  EXPECT_EQ(none, nullptr);
  EXPECT_NE(error.find("File too large"), std::string::npos) << error;
  EXPECT_NE(error.find("268435456"), std::string::npos) << error;
}

TEST(RegionTest, AddressSpaceLimitTakesLess) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's shadow is above any limit of address space";
#else
  EXPECT_EQ(AddressSpaceLeftBytes(), SIZE_MAX);
  ScopedLimit limit(RLIMIT_AS, size_t{4} << 30);
  EXPECT_LT(AddressSpaceLeftBytes(), size_t{4} << 30);
  EXPECT_GT(AddressSpaceLeftBytes(), size_t{1} << 30);
  std::unique_ptr<Region> region;
  ASSERT_EQ(Region::Reserve(Backing::kAnonymous, size_t{16} << 30, 256 * kMiB, &region), "");
  EXPECT_EQ(region->num_bytes(), size_t{2} << 30);
  std::unique_ptr<Region> none;
  const std::string error =
      Region::Reserve(Backing::kAnonymous, size_t{16} << 30, size_t{8} << 30, &none);
  EXPECT_NE(error.find("Cannot allocate memory"), std::string::npos) << error;
#endif
}

TEST(RegionTest, PagesComeGoAndKeepTheirContent) {
  for (Backing backing : {Backing::kAnonymous, Backing::kMemfd}) {
    std::unique_ptr<Region> region;
    ASSERT_EQ(Region::Reserve(backing, 32 * kMiB, 32 * kMiB, &region), "");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(region->base()) % kPieceBytes, 0u);
    ASSERT_EQ(region->Commit(0, 8 * kMiB), "");
    region->base()[3 * kMiB] = 7;
    EXPECT_NE(region->Populate(0, 8 * kMiB), Populated::kFailed);
    EXPECT_EQ(region->base()[3 * kMiB], 7);
    ASSERT_EQ(region->Discard(2 * kMiB, 4 * kMiB), "");
    EXPECT_EQ(region->base()[3 * kMiB], 0);
    EXPECT_NE(region->Commit(0, 64 * kMiB), "");  // beyond its end
  }
}

}  // namespace
}  // namespace strata::platform
