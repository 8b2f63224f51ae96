// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The memory through which the processes of one host agree: the control segment, mapped at one
// address in all of them.
//
// Each process has a board and writes only there, so nothing is ever locked and a process that is
// killed or stopped at any instruction holds up nobody else's writing. To meet in an operation, a
// process posts a record under the operation's key and then looks for the records of the others.
// Both in sequentially consistent order: of two that post at the same time at least one sees the
// other.
//
// The counters of work that all share are those of the record of the group's first process.
#ifndef STRATA_CORE_CONTROL_H_
#define STRATA_CORE_CONTROL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/operation.h"
#include "core/work.h"

namespace strata::core {

inline constexpr uint64_t kControlMagic = 0x0001'6174'6172'7473;  // "strata", layout 1
inline constexpr int kMaxProcesses = 64;  // a host; masks of them are 64 bits
// Open operations of one process. XLA starts what is independent at once, so a program with more
// such collectives would have to be seen whole; more wait until a record is free.
inline constexpr int kNumRecords = 1024;
inline constexpr int kWindow = 16;  // places of a key, from its hash on
inline constexpr int kNumMailboxes = 256;
inline constexpr size_t kMailboxBytes = size_t{64} << 10;
inline constexpr size_t kMaxPieces = size_t{1} << 19;  // of 2 MiB, in the largest arena: 1 TiB
inline constexpr int kInlinePointers = 32;
inline constexpr int kDescribedParts = 4;

enum RecordState : uint32_t {
  kPosted = 1,
  kLeft = 2,    // the owner will not look at the operation again
  kFailed = 4,  // the owner gave up; `why` says so
};

// What one process brings to one operation. Written by its owner before the key is, but for the
// state, and the counters, which are everybody's.
struct alignas(64) Record {
  std::atomic<uint32_t> state;
  std::atomic<uint32_t> closed;       // no unit may be claimed any more
  std::atomic<uint32_t> finished;     // all units are done
  std::atomic<uint32_t> num_workers;  // threads of the owner in units, for messages
  uint32_t pull;                      // each process writes its own ranks' results
  uint32_t staged;                    // all operands are copies: nobody needs to wait for readers
  int32_t num_ranks, num_in, num_out;
  uint64_t number;  // counts the records that the owner took
  uint64_t fingerprint, parts_hash;
  int32_t operation, kind;
  Part parts[kDescribedParts];  // the first operands, for messages
  WorkCounters counters;
  // Operands [part][rank of this process], then results. In `more` where there are too many.
  const void* pointers[kInlinePointers];
  const void* const* more;
  char label[120];
  char why[392];
};

// One process's.
struct Board {
  alignas(64) std::atomic<uint32_t> bell;  // counts the times that somebody rang
  std::atomic<uint32_t> sleeping;          // its engine sleeps, or is about to
  std::atomic<uint32_t> num_watched;       // meetings that it would look at
  alignas(64) std::atomic<uint32_t> page_bell;
  std::atomic<uint32_t> page_sleeping;
  alignas(64) std::atomic<uint32_t> exiting;  // it ends in good order
  std::atomic<uint32_t> overflowed;           // records may be outside the window of their key
  alignas(64) std::atomic<uint64_t> keys[kNumRecords];  // 0: free
  Record records[kNumRecords];
  // By piece of its arena: 0 while it has no pages, else another number than when it last had.
  std::atomic<uint8_t> pieces[kMaxPieces];
  alignas(4096) char mailboxes[kNumMailboxes][kMailboxBytes];
};

struct alignas(4096) Control {
  std::atomic<uint64_t> magic;
  uint32_t num_processes;

  Board& board(int slot) { return reinterpret_cast<Board*>(this + 1)[slot]; }

  static size_t NumBytes(int num_processes) {
    return sizeof(Control) + static_cast<size_t>(num_processes) * sizeof(Board);
  }
};

static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");

}  // namespace strata::core

#endif  // STRATA_CORE_CONTROL_H_
