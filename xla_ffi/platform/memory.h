// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Address space and pages as the arena needs them; the only place that asks the system for either.
//
// What can fail returns a text: empty when it worked, else what failed, with the system's reason.
#ifndef STRATA_PLATFORM_MEMORY_H_
#define STRATA_PLATFORM_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace strata::platform {

// The unit in which pages are discarded and populated: a huge page of x86-64, and of aarch64 with
// 4 KiB pages. A multiple of every base page size of Linux.
inline constexpr size_t kPieceBytes = size_t{2} << 20;

enum class Backing {
  kAnonymous,  // private to this process; a forked child gets a copy
  kMemfd,      // a sparse file in memory that other processes can map
};

enum class Populated { kYes, kFailed, kUnsupported };

// A range of address space that starts and ends at a piece and whose pages come when they are
// touched. Nothing of it can be accessed before Commit.
class Region {
 public:
  // Tries `num_bytes`, then ever smaller sizes down to `min_bytes` while the system refuses
  // (`ulimit -v` and `ulimit -f` do). `address` is where it is to start, at which nothing may be;
  // 0 for anywhere.
  static std::string Reserve(Backing backing, size_t num_bytes, size_t min_bytes,
                             std::unique_ptr<Region>* region, uintptr_t address = 0);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  char* base() const { return base_; }
  size_t num_bytes() const { return num_bytes_; }
  int fd() const { return fd_; }  // -1 where the backing is anonymous

  // Makes a range readable and writable.
  std::string Commit(size_t offset, size_t num_bytes);

  // Gives the pages of a range back to the system; it reads as zeros afterwards.
  std::string Discard(size_t offset, size_t num_bytes);

  // Gets pages for a range ahead of their use. Never changes what is in it.
  Populated Populate(size_t offset, size_t num_bytes);

  // Asks for huge pages, or for none; whether the system took the advice.
  bool AdviseHugePages(bool wanted);

  // For a forked child: puts a private view of the first `num_bytes` of the file over the shared
  // one, so that the child still reads them and can never write its parent's. Where even that is
  // refused the range becomes inaccessible, and the result is false.
  bool MapPrivateOver(size_t num_bytes);

 private:
  Region(char* base, size_t num_bytes, int fd) : base_(base), num_bytes_(num_bytes), fd_(fd) {}

  char* const base_;
  const size_t num_bytes_;
  int fd_;
};

// A sparse file in memory of a fixed size that exec() closes; -1 with errno where it cannot be had.
int OpenMemoryFile(size_t num_bytes);

// Physical memory of the machine.
size_t PhysicalMemoryBytes();

// The least memory limit of a cgroup (version 1 or 2) and its ancestors, SIZE_MAX where there is
// none. `membership` is a file like /proc/self/cgroup, `root` a folder like /sys/fs/cgroup.
size_t CgroupLimitBytes(const std::string& membership, const std::string& root);

// What this process may use: physical memory or the limit of its cgroup, whichever is less.
size_t MemoryLimitBytes();

// What `ulimit -v` leaves of this process's address space; SIZE_MAX where it is not limited.
size_t AddressSpaceLeftBytes();

}  // namespace strata::platform

#endif  // STRATA_PLATFORM_MEMORY_H_
