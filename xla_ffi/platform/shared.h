// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Memory, waiting and liveness between processes of one host.
//
// What can fail returns a text: empty when it worked, else what failed, with the system's reason.
#ifndef STRATA_PLATFORM_SHARED_H_
#define STRATA_PLATFORM_SHARED_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace strata::platform {

// Whether nothing is mapped in a range of this process's address space.
bool IsFree(uintptr_t begin, size_t num_bytes);

// A sparse file in memory that no process can shrink, and that exec() closes; -1 with a text.
int MakeSharedFile(size_t num_bytes, std::string* error);

// Maps a file readable and writable at an address at which nothing is. A forked child does not
// have it.
std::string MapShared(int fd, void* address, size_t num_bytes);

// A forked child does not have this range of the address space from now on.
void KeepFromForks(void* address, size_t num_bytes);

void Unmap(void* address, size_t num_bytes);

// Puts private zeros over a mapping, at once for all threads that are reading or writing it.
void ReplaceByZeros(void* address, size_t num_bytes);

// Brings the pages of a range of a mapped file into this process's page tables; false where the
// system cannot. Pages that the file does not have yet are made.
bool MapPages(void* address, size_t num_bytes);

// Sleeps while `word`, which processes share, has `value`; may return at any time.
void WaitWhile(const std::atomic<uint32_t>& word, uint32_t value);
void WakeOne(const std::atomic<uint32_t>& word);

// A descriptor that becomes readable when a process ends; -1 where it cannot be had.
int OpenProcess(int64_t pid);

// Whether a process is stopped, by a signal or a debugger; false where that cannot be known.
bool IsStopped(int64_t pid);

// Lets the other end of a socket see it hung up, as long as it stays open here.
void HangUp(int socket);
void Close(int fd);  // of what may be -1

// Sleeps until one of the descriptors (-1: none) has been hung up by its other end or become
// readable with nothing to read; returns their indices.
std::vector<size_t> WaitForHangUp(const std::vector<int>& fds);

}  // namespace strata::platform

#endif  // STRATA_PLATFORM_SHARED_H_
