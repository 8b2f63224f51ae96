// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "platform/memory.h"
#include "platform/shared.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000  // linux/mman.h, since 4.17
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // linux/mman.h, since 5.14
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434  // the same on all architectures, since 5.3
#endif

namespace strata::platform {
namespace {

std::string Failed(const std::string& what) {
  const int error = errno;
  return what + ": " + std::strerror(error) + " (errno " + std::to_string(error) + ")";
}

// Between processes: not FUTEX_PRIVATE_FLAG.
void Futex(const std::atomic<uint32_t>& word, int operation, uint32_t value) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a plain word");
  syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

// Whether the other end of a socket is gone. What is not a socket is readable for one reason.
bool IsHungUp(const pollfd& polled) {
  if ((polled.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) return true;
  if ((polled.revents & POLLIN) == 0) return false;
  char byte;
  const ssize_t count = recv(polled.fd, &byte, 1, MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace

bool IsFree(uintptr_t begin, size_t num_bytes) {
  void* const address = reinterpret_cast<void*>(begin);
  void* const mapped =
      mmap(address, num_bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (mapped == MAP_FAILED) return false;
  munmap(mapped, num_bytes);
  return mapped == address;  // an old kernel takes the address as a hint
}

int MakeSharedFile(size_t num_bytes, std::string* error) {
  const int fd = OpenMemoryFile(num_bytes);
  if (fd < 0) *error = Failed("memory file of " + std::to_string(num_bytes) + " bytes");
  return fd;
}

std::string MapShared(int fd, void* address, size_t num_bytes) {
  void* const mapped = mmap(address, num_bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, fd, 0);
  if (mapped != address) {
    std::string error = Failed("mmap of " + std::to_string(num_bytes) + " bytes of a shared file");
    if (mapped != MAP_FAILED) munmap(mapped, num_bytes);
    return error;
  }
  KeepFromForks(mapped, num_bytes);
  return "";
}

void KeepFromForks(void* address, size_t num_bytes) { madvise(address, num_bytes, MADV_DONTFORK); }

void Unmap(void* address, size_t num_bytes) { munmap(address, num_bytes); }

void ReplaceByZeros(void* address, size_t num_bytes) {
  mmap(address, num_bytes, PROT_READ | PROT_WRITE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  KeepFromForks(address, num_bytes);
}

bool MapPages(void* address, size_t num_bytes) {
  while (madvise(address, num_bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno != EINTR && errno != EAGAIN) return false;
  }
  return true;
}

void WaitWhile(const std::atomic<uint32_t>& word, uint32_t value) {
  Futex(word, FUTEX_WAIT, value);
}

void WakeOne(const std::atomic<uint32_t>& word) { Futex(word, FUTEX_WAKE, 1); }

int OpenProcess(int64_t pid) {
  return pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)) : -1;
}

bool IsStopped(int64_t pid) {
  if (pid <= 0) return false;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  // "pid (name) state ...", with anything in the name; proc(5).
  const size_t end = text.rfind(") ");
  return end != std::string::npos && end + 2 < text.size() &&
         (text[end + 2] == 'T' || text[end + 2] == 't');
}

void HangUp(int socket) { shutdown(socket, SHUT_WR); }

void Close(int fd) {
  if (fd >= 0) close(fd);
}

std::vector<size_t> WaitForHangUp(const std::vector<int>& fds) {
  std::vector<pollfd> polled;
  for (int fd : fds) polled.push_back({fd, POLLIN, 0});  // poll() ignores negative ones
  std::vector<size_t> hung_up;
  while (hung_up.empty()) {
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) break;
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].fd >= 0 && polled[i].revents != 0 && IsHungUp(polled[i])) hung_up.push_back(i);
    }
  }
  return hung_up;
}

}  // namespace strata::platform
