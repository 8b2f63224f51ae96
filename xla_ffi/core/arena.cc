// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/arena.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "core/arena_internal.h"

namespace strata::core {
namespace {

constexpr size_t kGranuleBytes = 4096;  // the base page of x86-64: blocks never share one
constexpr size_t kMostReserveBytes = size_t{1} << 40;  // 1 TiB, of 128 TiB that a process has
constexpr size_t kCommitStepBytes = size_t{64} << 20;  // 16,384 system calls for all of 1 TiB

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

bool IsPowerOfTwo(size_t value) { return value != 0 && (value & (value - 1)) == 0; }

size_t DefaultReserveBytes() {
  return std::min({platform::PhysicalMemoryBytes() * 2, kMostReserveBytes,
                   platform::AddressSpaceLeftBytes() / 2});
}

}  // namespace

thread_local Arena* Arena::Lock::forking_arena = nullptr;

Arena::Lock::Lock(const Arena& arena) : lock_(arena.mutex_, std::defer_lock) {
  if (forking_arena != &arena) lock_.lock();
}

std::string Arena::Create(const ArenaOptions& options, std::unique_ptr<Arena>* arena) {
  const auto backing = options.shared ? platform::Backing::kMemfd : platform::Backing::kAnonymous;
  const size_t wanted = options.reserve_bytes <= 0 ? DefaultReserveBytes()
                                                   : static_cast<size_t>(options.reserve_bytes);
  std::unique_ptr<platform::Region> region;
  const std::string error = platform::Region::Reserve(
      backing, wanted, kSmallestReserveBytes, &region, static_cast<uintptr_t>(options.address));
  if (!error.empty()) {
    return "arena: asked for " + std::to_string(wanted) +
           " bytes of address space; the system refused that and every smaller size down to " +
           std::to_string(std::min(wanted, kSmallestReserveBytes)) + ": " + error +
           ". Raise `ulimit -v` and `ulimit -f`, or ask for less.";
  }
  arena->reset(new Arena(std::move(region), options.shared));
  (*arena)->huge_pages_ =
      (*arena)->region_->AdviseHugePages(options.huge_pages) && options.huge_pages;
  (*arena)->population_works_ = options.populate;
  (*arena)->SetKeepBytes(options.keep_bytes, options.num_processes);
  return "";
}

Arena::Arena(std::unique_ptr<platform::Region> region, bool shared)
    : region_(std::move(region)),
      shared_(shared),
      begin_(reinterpret_cast<uintptr_t>(region_->base())),
      capacity_(region_->num_bytes()),
      pieces_(capacity_ / platform::kPieceBytes) {
  blocks_.insert(MakeBlock(0, capacity_));
  PutFree(blocks_.begin());
}

void* Arena::Allocate(size_t num_bytes, size_t alignment) noexcept {
  if (num_bytes < kSmallestRequestBytes) {
    small_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  Lock lock(*this);
  if (forked_) {
    ++counts_.fallback_forked;
    return nullptr;
  }
  if (!IsPowerOfTwo(alignment)) {
    ++counts_.fallback_bad_alignment;
    return nullptr;
  }
  if (num_bytes > capacity_) {
    ++counts_.fallback_exhausted;
    return nullptr;
  }
  try {
    return Place(num_bytes, alignment);
  } catch (const std::bad_alloc&) {  // no memory for the bookkeeping
    ++counts_.fallback_exhausted;
    return nullptr;
  }
}

void* Arena::Place(size_t num_bytes, size_t alignment) {
  const size_t needed = RoundUp(num_bytes, kGranuleBytes);
  size_t start = 0;
  auto fit = free_.lower_bound({needed, 0});
  // The first fits unless the alignment is above 4096, which XLA never asks for.
  for (; fit != free_.end(); ++fit) {
    const size_t before = (alignment - (begin_ + fit->offset) % alignment) % alignment;
    start = fit->offset + before;
    if (before < fit->num_bytes && fit->num_bytes - before >= needed) break;
  }
  if (fit == free_.end()) {
    ++counts_.fallback_exhausted;
    return nullptr;
  }
  const FreeKey found = *fit;
  const size_t head = start - found.offset;
  size_t taken = needed;
  size_t tail = found.num_bytes - head - needed;
  if (tail < kSmallestRequestBytes) {  // nobody could use it
    taken += tail;
    tail = 0;
  }
  if (!EnsureCommitted(start + taken)) {
    ++counts_.fallback_commit_failed;
    return nullptr;
  }
  // All memory for the books first: from here on nothing can fail halfway.
  BlockMap::node_type used, rest;
  if (head > 0) used = MakeBlock(start, taken);
  if (tail > 0) rest = MakeBlock(start + taken, tail);

  auto block = blocks_.find(found.offset);
  TakeFree(block);
  if (head > 0) {
    block->second.num_bytes = head;
    PutFree(block);
    block = blocks_.insert(std::move(used)).position;
  } else {
    block->second.num_bytes = taken;
  }
  if (tail > 0) PutFree(blocks_.insert(std::move(rest)).position);

  block->second.asked_bytes = num_bytes;
  block->second.generation = ++counts_.allocations;
  in_use_ += taken;
  peak_in_use_ = std::max(peak_in_use_, in_use_);
  if (AddUse(start, taken)) {
    ++counts_.hits;
  } else {
    ++counts_.fresh;
    EnforceLimits();
    WantPopulation();
  }
  return region_->base() + start;
}

bool Arena::EnsureCommitted(size_t end) {
  if (end <= committed_) return true;
  // A limit (`ulimit -d`, strict overcommit) may refuse the step and yet allow what is needed.
  for (size_t step : {kCommitStepBytes, platform::kPieceBytes}) {
    const size_t target = std::min(RoundUp(end, step), capacity_);
    if (region_->Commit(committed_, target - committed_).empty()) {
      committed_ = target;
      return true;
    }
  }
  return false;
}

void Arena::Free(void* pointer) noexcept {
  Lock lock(*this);
  auto block = blocks_.find(reinterpret_cast<uintptr_t>(pointer) - begin_);
  if (block == blocks_.end() || block->second.asked_bytes == 0) {
    ++counts_.invalid_frees;
    return;
  }
  if (block->second.num_holds > 0) {
    if (!block->second.freed) quarantined_ += block->second.num_bytes;
    block->second.freed = true;
    return;
  }
  Return(block);
}

char* Arena::Hold(const void* pointer) {
  if (!Contains(pointer)) return nullptr;
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - begin_;
  Lock lock(*this);
  const auto block = std::prev(blocks_.upper_bound(offset));
  if (offset - block->first >= block->second.asked_bytes) return nullptr;
  ++block->second.num_holds;
  return region_->base() + block->first;
}

void Arena::Release(char* pointer) {
  Lock lock(*this);
  const auto block = blocks_.find(reinterpret_cast<uintptr_t>(pointer) - begin_);
  if (block == blocks_.end() || block->second.num_holds == 0) return;
  if (--block->second.num_holds > 0 || !block->second.freed) return;
  block->second.freed = false;
  quarantined_ -= block->second.num_bytes;
  Return(block);
}

void Arena::Return(BlockMap::iterator block) {
  ++counts_.frees;
  in_use_ -= block->second.num_bytes;
  RemoveUse(block->first, block->second.num_bytes);
  block->second.asked_bytes = 0;
  const auto next = std::next(block);
  if (next != blocks_.end() && next->second.asked_bytes == 0) {
    TakeFree(next);
    block->second.num_bytes += next->second.num_bytes;
    blocks_.erase(next);
  }
  if (block != blocks_.begin()) {
    const auto previous = std::prev(block);
    if (previous->second.asked_bytes == 0) {
      TakeFree(previous);
      previous->second.num_bytes += block->second.num_bytes;
      blocks_.erase(block);
      block = previous;
    }
  }
  PutFree(block);
  EnforceLimits();
}

std::optional<Arena::Use> Arena::Find(const void* pointer) const {
  if (!Contains(pointer)) return std::nullopt;
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - begin_;
  Lock lock(*this);
  const auto block = std::prev(blocks_.upper_bound(offset));  // there is always one at 0
  if (offset - block->first >= block->second.asked_bytes) return std::nullopt;
  return Use{region_->base() + block->first, block->second.asked_bytes, block->second.generation};
}

Arena::BlockMap::node_type Arena::MakeBlock(size_t offset, size_t num_bytes) {
  FreeSet tickets;
  tickets.insert({num_bytes, offset});
  BlockMap blocks;
  Block& block = blocks[offset];
  block.num_bytes = num_bytes;
  block.ticket = tickets.extract(tickets.begin());
  return blocks.extract(blocks.begin());
}

void Arena::PutFree(BlockMap::iterator block) {
  block->second.ticket.value() = {block->second.num_bytes, block->first};
  free_.insert(std::move(block->second.ticket));
}

void Arena::TakeFree(BlockMap::iterator block) {
  block->second.ticket = free_.extract(FreeKey{block->second.num_bytes, block->first});
}

ArenaStats Arena::Stats() const {
  Lock lock(*this);
  ArenaStats stats = counts_;
  stats.reserved_bytes = capacity_;
  stats.committed_bytes = committed_;
  stats.in_use_bytes = in_use_;
  stats.peak_in_use_bytes = peak_in_use_;
  stats.kept_bytes = kept_;
  stats.quarantined_bytes = quarantined_;
  stats.keep_limit_bytes = keep_limit_;
  stats.num_blocks = blocks_.size();
  stats.num_free_blocks = free_.size();
  stats.fallback_small = small_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace strata::core
