// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The pages of the arena. The unit is a piece of 2 MiB; a piece is resident once some of it was
// handed out or populated, whether or not anybody touched all of it.
//
// Population beside allocation and discarding: the populator chooses a piece under the lock, asks
// the kernel for its pages without it, and then marks the piece resident under the lock again,
// whatever became of it. Meanwhile
// * the piece may be handed out and written: harmless, populating never changes what is in a page;
// * the piece may be handed out, freed and discarded: the kernel then may bring pages back that the
//   books do not know, until the populator marks the piece and enforces the limits itself. Trim,
//   which promises that nothing is left, waits for it;
// * no piece with a block in it is ever discarded, whatever the populator does, since used_bytes is
//   read and the pages go under the lock that handing out needs. Live data cannot be lost.
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/arena_internal.h"

namespace strata::core {

using platform::kPieceBytes;

namespace {

// Kept free pages may add a fifth to the most that was ever in use, plus 32 MiB (the granularity of
// small arenas): resident memory stays within 1.25 of what libc's allocator, which returns every
// large block at once, has at its peak.
constexpr size_t kResidentShare = 5;
constexpr size_t kResidentSlackBytes = size_t{32} << 20;

// Pages populated ahead: an eighth of what is in use, from one piece to 64 MiB (one large array:
// 7.5 ms with huge pages, 35 to 51 ms without).
constexpr size_t kAheadShare = 8;
constexpr size_t kMostAheadBytes = size_t{64} << 20;

constexpr double kIdleTrimS = 60;

constexpr size_t kNoPiece = SIZE_MAX;

// The arena that fork handlers act upon. Release and acquire: a forking thread that sees the arena
// sees it made.
std::atomic<Arena*> fork_arena{nullptr};
std::once_flag fork_handlers_once;

}  // namespace

void Arena::SetResident(size_t index, bool resident) {
  Piece& piece = pieces_[index];
  piece.resident = resident;
  if (resident) piece.epoch = static_cast<uint8_t>(piece.epoch == UINT8_MAX ? 1 : piece.epoch + 1);
  if (shown_pieces_ != nullptr) {
    // Release pairs with the load in PageMapper: who sees the number finds pages, or makes them.
    shown_pieces_[index].store(resident ? piece.epoch : 0, std::memory_order_release);
  }
}

void Arena::ShowPieces(std::atomic<uint8_t>* pieces, std::function<void()> changed) {
  Lock lock(*this);
  shown_pieces_ = pieces;
  pieces_changed_ = std::move(changed);
  for (size_t index = 0; index < top_piece_; ++index) {
    if (pieces_[index].resident) pieces[index].store(pieces_[index].epoch);
  }
  pieces_changed_();
}

bool Arena::AddUse(size_t offset, size_t num_bytes) {
  bool all_resident = true;
  for (size_t at = offset, end = offset + num_bytes; at < end;) {
    const size_t index = at / kPieceBytes;
    const size_t share = std::min(end, (index + 1) * kPieceBytes) - at;
    Piece& piece = pieces_[index];
    if (!piece.resident) {
      all_resident = false;
      SetResident(index, true);
      kept_ += kPieceBytes;
    }
    piece.used_bytes += static_cast<uint32_t>(share);
    kept_ -= share;
    at += share;
  }
  top_piece_ = std::max(top_piece_, (offset + num_bytes - 1) / kPieceBytes + 1);
  if (!all_resident && pieces_changed_) pieces_changed_();
  return all_resident;
}

void Arena::RemoveUse(size_t offset, size_t num_bytes) {
  for (size_t at = offset, end = offset + num_bytes; at < end;) {
    const size_t index = at / kPieceBytes;
    const size_t share = std::min(end, (index + 1) * kPieceBytes) - at;
    pieces_[index].used_bytes -= static_cast<uint32_t>(share);
    kept_ += share;
    at += share;
  }
}

size_t Arena::ResidentLimit() const {
  return peak_in_use_ + peak_in_use_ / kResidentShare + kResidentSlackBytes;
}

void Arena::EnforceLimits() {
  const size_t resident_limit = ResidentLimit();
  const size_t room = resident_limit > in_use_ ? resident_limit - in_use_ : 0;
  const size_t limit = std::min(keep_limit_, room);
  if (kept_ > limit) DiscardDownTo(limit);
}

size_t Arena::DiscardDownTo(size_t kept_bytes) {
  // In a child the pages of a file are the parent's, and private ones go when the child does.
  if (forked_) return 0;
  const auto discardable = [this](size_t index) {
    return pieces_[index].resident && pieces_[index].used_bytes == 0;
  };
  size_t discarded = 0;
  // Highest addresses first: best fit takes the lowest, so these are needed last.
  for (size_t end = top_piece_; end > 0 && kept_ > kept_bytes;) {
    size_t first = end - 1;
    if (discardable(first)) {
      size_t run = kPieceBytes;
      while (first > 0 && kept_ - run > kept_bytes && discardable(first - 1)) {
        --first;
        run += kPieceBytes;
      }
      // Refused for memory that is locked (mlockall); such pages stay kept.
      if (region_->Discard(first * kPieceBytes, run).empty()) {
        for (size_t index = first; index < end; ++index) SetResident(index, false);
        kept_ -= run;
        discarded += run;
      }
    }
    end = first;
  }
  while (top_piece_ > 0 && !pieces_[top_piece_ - 1].resident) --top_piece_;
  counts_.discarded_bytes += discarded;
  return discarded;
}

size_t Arena::Trim() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (forked_) return 0;
  population_wanted_ = false;
  quiet_.wait(lock, [this] { return !populating_; });  // one piece: under 2 ms
  return DiscardDownTo(0);
}

size_t Arena::Tick(double now_s) {
  {
    Lock lock(*this);
    if (counts_.allocations != ticked_allocations_) {
      ticked_allocations_ = counts_.allocations;
      idle_since_s_ = now_s;
    }
    if (kept_ == 0 || now_s - idle_since_s_ < kIdleTrimS) return 0;
    idle_since_s_ = now_s;
  }
  return Trim();
}

void Arena::SetKeepBytes(int64_t keep_bytes, int num_processes) {
  const size_t limit = keep_bytes < 0
                           ? platform::MemoryLimitBytes() / 4 / static_cast<size_t>(num_processes)
                           : static_cast<size_t>(keep_bytes);
  Lock lock(*this);
  keep_limit_ = limit;
  EnforceLimits();
}

void Arena::WantPopulation() {
  if (!population_works_ || NextPieceToPopulate() == kNoPiece) return;
  population_wanted_ = true;
  if (!populator_.joinable()) {
    // A new thread has its creator's mask: signals belong to the application's threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      populator_ = std::thread([this] { PopulateLoop(); });
    } catch (const std::system_error&) {
      population_works_ = false;  // no thread to be had: arrays get their pages when touched
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  wake_.notify_one();
}

// The next piece to hold arrays that best fit would put behind the last block, as long as few
// enough are ready there.
size_t Arena::NextPieceToPopulate() const {
  const auto last = std::prev(blocks_.end());
  if (last->second.asked_bytes != 0) return kNoPiece;
  if (kept_ + kPieceBytes > keep_limit_) return kNoPiece;
  if (in_use_ + kept_ + kPieceBytes > ResidentLimit()) return kNoPiece;
  const size_t ahead = std::min(std::max(in_use_ / kAheadShare, kPieceBytes), kMostAheadBytes);
  const size_t end =
      std::min((last->first + ahead + kPieceBytes - 1) / kPieceBytes, pieces_.size());
  for (size_t index = last->first / kPieceBytes; index < end; ++index) {
    if (!pieces_[index].resident) return index;
  }
  return kNoPiece;
}

void Arena::PopulateLoop() {
  pthread_setname_np(pthread_self(), "strata-pages");
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || population_wanted_; });
    if (stopping_) return;
    const size_t index = NextPieceToPopulate();
    if (index == kNoPiece || !EnsureCommitted((index + 1) * kPieceBytes)) {
      population_wanted_ = false;
      continue;
    }
    populating_ = true;
    lock.unlock();
    const platform::Populated result = region_->Populate(index * kPieceBytes, kPieceBytes);
    lock.lock();
    populating_ = false;
    if (result == platform::Populated::kYes) {
      counts_.populated_bytes += kPieceBytes;
    } else {
      population_wanted_ = false;
      population_works_ = result != platform::Populated::kUnsupported;
    }
    // Also after a failure: some of its pages may be there. Not if it was handed out meanwhile.
    if (!pieces_[index].resident) {
      SetResident(index, true);
      if (pieces_changed_) pieces_changed_();
      kept_ += kPieceBytes - pieces_[index].used_bytes;
      top_piece_ = std::max(top_piece_, index + 1);
    }
    EnforceLimits();
    quiet_.notify_all();
  }
}

Arena::~Arena() {
  Arena* self = this;
  // Relaxed on failure: another arena's registration is left alone and nothing of it is read.
  fork_arena.compare_exchange_strong(self, nullptr, std::memory_order_acq_rel,
                                     std::memory_order_relaxed);
  {
    Lock lock(*this);
    stopping_ = true;
    wake_.notify_one();
  }
  if (populator_.joinable()) populator_.join();
}

void Arena::HandleForks() {
  fork_arena.store(this, std::memory_order_release);  // pairs with the load in BeforeFork
  std::call_once(fork_handlers_once,
                 [] { pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild); });
}

void Arena::BeforeFork() {
  // Acquire pairs with the store in HandleForks.
  Arena* const arena = fork_arena.load(std::memory_order_acquire);
  if (arena == nullptr) return;
  arena->mutex_.lock();  // so that the child finds the books between two operations
  Lock::forking_arena = arena;
}

void Arena::AfterForkInParent() {
  Arena* const arena = std::exchange(Lock::forking_arena, nullptr);
  if (arena != nullptr) arena->mutex_.unlock();
}

void Arena::AfterForkInChild() {
  Arena* const arena = std::exchange(Lock::forking_arena, nullptr);
  if (arena == nullptr) return;
  arena->forked_ = true;  // also: the populator does not exist here, and nothing may wait for it
  arena->population_wanted_ = false;
  arena->populating_ = false;
  // Private memory is the child's own copy already. A child of a child has no file any more, and
  // what it has is private.
  arena->region_->MapPrivateOver(arena->committed_);
  arena->mutex_.unlock();
}

}  // namespace strata::core
