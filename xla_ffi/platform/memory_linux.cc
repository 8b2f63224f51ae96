// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>

#include "platform/memory.h"

// Younger than the C library of the oldest supported distributions; values from linux/mman.h (5.14)
// and linux/memfd.h (6.3).
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000  // linux/mman.h, since 4.17
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

namespace strata::platform {
namespace {

std::string Failed(const char* call, size_t num_bytes) {
  const int error = errno;
  return std::string(call) + " of " + std::to_string(num_bytes) +
         " bytes: " + std::strerror(error) + " (errno " + std::to_string(error) + ")";
}

// ftruncate that reports EFBIG where `ulimit -f` would kill the process by SIGXFSZ. The signal goes
// to the calling thread, so blocking it here and taking it away reaches no other thread.
int TruncateQuietly(int fd, size_t num_bytes) {
  sigset_t xfsz, before;
  sigemptyset(&xfsz);
  sigaddset(&xfsz, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &xfsz, &before);
  const int result = ftruncate(fd, static_cast<off_t>(num_bytes));
  const int error = errno;
  const timespec no_wait = {0, 0};
  if (result != 0 && error == EFBIG && sigismember(&before, SIGXFSZ) == 0) {
    sigtimedwait(&xfsz, nullptr, &no_wait);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return result;
}

// A number in a file; SIZE_MAX where there is no file or no number ("max").
size_t ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? static_cast<size_t>(value) : SIZE_MAX;
}

}  // namespace

int OpenMemoryFile(size_t num_bytes) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = memfd_create("strata_jax", kFlags | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create("strata_jax", kFlags);  // before Linux 6.3
  if (fd < 0) return -1;
  if (TruncateQuietly(fd, num_bytes) != 0) {
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
  }
  // A process that shrank the file would kill by SIGBUS all who have it mapped.
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return fd;
}

std::string Region::Reserve(Backing backing, size_t num_bytes, size_t min_bytes,
                            std::unique_ptr<Region>* region, uintptr_t address) {
  num_bytes = std::max(num_bytes / kPieceBytes, size_t{1}) * kPieceBytes;
  min_bytes = std::min(std::max(min_bytes / kPieceBytes, size_t{1}) * kPieceBytes, num_bytes);
  for (;; num_bytes = std::max(num_bytes / 2 / kPieceBytes * kPieceBytes, min_bytes)) {
    std::string error;
    int fd = -1;
    if (backing == Backing::kMemfd && (fd = OpenMemoryFile(num_bytes)) < 0) {
      error = Failed("memfd_create and ftruncate", num_bytes);
    } else {
      // One piece more than asked for, so that the region can start at a piece.
      const size_t spare = address == 0 ? kPieceBytes : 0;
      const int at = address == 0 ? 0 : MAP_FIXED_NOREPLACE;
      char* start =
          static_cast<char*>(mmap(reinterpret_cast<void*>(address), num_bytes + spare, PROT_NONE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | at, -1, 0));
      if (start != MAP_FAILED) {
        const size_t before =
            (kPieceBytes - reinterpret_cast<uintptr_t>(start) % kPieceBytes) % kPieceBytes;
        char* base = start + before;
        if (before > 0) munmap(start, before);
        if (before < spare) munmap(base + num_bytes, spare - before);
        std::unique_ptr<Region> made(new Region(base, num_bytes, fd));
        if (fd < 0 || mmap(base, num_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd,
                           0) == base) {
          *region = std::move(made);
          return "";
        }
        error = Failed("mmap of the shared file", num_bytes);
      } else {
        error = Failed("mmap", num_bytes + kPieceBytes);
        if (fd >= 0) close(fd);
      }
    }
    if (num_bytes <= min_bytes) return error;
  }
}

Region::~Region() {
  munmap(base_, num_bytes_);
  if (fd_ >= 0) close(fd_);
}

std::string Region::Commit(size_t offset, size_t num_bytes) {
  if (mprotect(base_ + offset, num_bytes, PROT_READ | PROT_WRITE) == 0) return "";
  return Failed("mprotect", num_bytes);
}

std::string Region::Discard(size_t offset, size_t num_bytes) {
  if (fd_ >= 0) {
    // madvise would only drop this process's mapping of the pages; the file would keep them.
    if (fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(num_bytes)) == 0) {
      return "";
    }
    return Failed("fallocate", num_bytes);
  }
  if (madvise(base_ + offset, num_bytes, MADV_DONTNEED) == 0) return "";
  return Failed("madvise", num_bytes);
}

Populated Region::Populate(size_t offset, size_t num_bytes) {
  // One piece a call: the kernel holds the lock of the address space meanwhile, and a Commit on
  // another thread waits for it.
  for (size_t done = 0; done < num_bytes; done += kPieceBytes) {
    const size_t step = std::min(kPieceBytes, num_bytes - done);
    while (madvise(base_ + offset + done, step, MADV_POPULATE_WRITE) != 0) {
      if (errno == EINVAL) return Populated::kUnsupported;
      if (errno != EINTR && errno != EAGAIN) return Populated::kFailed;
    }
  }
  return Populated::kYes;
}

bool Region::AdviseHugePages(bool wanted) {
  return madvise(base_, num_bytes_, wanted ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) == 0;
}

bool Region::MapPrivateOver(size_t num_bytes) {
  if (num_bytes == 0 || fd_ < 0) return true;
  constexpr int kFlags = MAP_FIXED | MAP_NORESERVE | MAP_PRIVATE;
  const bool mapped = mmap(base_, num_bytes, PROT_READ | PROT_WRITE, kFlags, fd_, 0) == base_;
  if (!mapped) mmap(base_, num_bytes, PROT_NONE, kFlags | MAP_ANONYMOUS, -1, 0);
  close(fd_);
  fd_ = -1;
  return mapped;
}

size_t PhysicalMemoryBytes() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t CgroupLimitBytes(const std::string& membership, const std::string& root) {
  size_t limit = SIZE_MAX;
  std::ifstream file(membership);
  // Lines are "id:controllers:path" with no controllers in version 2 (cgroups(7)).
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",memory,") == std::string::npos) continue;
    const std::string folder = unified ? root : root + "/memory";
    const char* const name = unified ? "/memory.max" : "/memory.limit_in_bytes";
    // In a container the path may be that of the host, which is not there; its root then is.
    for (std::string path = line.substr(second + 1);; path.erase(path.rfind('/'))) {
      limit = std::min(limit, ReadNumber(folder + path + name));
      if (path.find('/') == std::string::npos) break;
    }
  }
  return limit;
}

size_t MemoryLimitBytes() {
  return std::min(PhysicalMemoryBytes(), CgroupLimitBytes("/proc/self/cgroup", "/sys/fs/cgroup"));
}

size_t AddressSpaceLeftBytes() {
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  const size_t pages = ReadNumber("/proc/self/statm");  // the first number is the total, proc(5)
  const size_t used = pages == SIZE_MAX ? 0 : pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

}  // namespace strata::platform
