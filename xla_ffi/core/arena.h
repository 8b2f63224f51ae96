// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The allocator behind XLA's arrays: one range of address space whose pages are kept and used
// again.
//
// Blocks are placed by best fit over the whole range and merge with free neighbours. Everything
// that is known about them lives in ordinary process memory, never in the range itself, so another
// process that maps the range cannot break the allocator, nor can a kill at any moment.
//
// arena.cc has the blocks, arena_pages.cc what happens to pages: keeping, giving back, getting them
// ahead of use, and fork.
#ifndef STRATA_CORE_ARENA_H_
#define STRATA_CORE_ARENA_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "platform/memory.h"

namespace strata::core {

struct ArenaOptions {
  // Address space to reserve; 0 or less: twice the physical memory, at most 1 TiB, and at most half
  // of what `ulimit -v` leaves. Costs no memory. Less is taken where the system refuses.
  int64_t reserve_bytes = -1;
  // Free pages to keep for the next arrays; negative: a quarter of what this process may use
  // (physical memory, or the limit of its cgroup), divided by the number of processes that share
  // it.
  int64_t keep_bytes = -1;
  int num_processes = 1;
  bool huge_pages = true;
  bool populate = true;  // get pages ahead of their use
  bool shared = false;   // a file in memory that other processes can map, instead of private memory
  uint64_t address = 0;  // where it is to be, the same in all processes that map it; 0: anywhere
};

struct ArenaStats {
  uint64_t reserved_bytes = 0;
  uint64_t committed_bytes = 0;
  uint64_t in_use_bytes = 0;
  uint64_t peak_in_use_bytes = 0;
  uint64_t kept_bytes = 0;  // free, in pieces of 2 MiB that have been handed out or populated
  uint64_t keep_limit_bytes = 0;
  uint64_t allocations = 0;
  uint64_t frees = 0;
  uint64_t hits = 0;   // allocations served wholly from pages that were there already
  uint64_t fresh = 0;  // the others
  uint64_t populated_bytes = 0;
  uint64_t discarded_bytes = 0;
  uint64_t num_blocks = 0;
  uint64_t num_free_blocks = 0;
  uint64_t quarantined_bytes = 0;  // freed, but held: somebody may still write there
  // Requests that were refused, for libc to serve, by reason.
  uint64_t fallback_small = 0;
  uint64_t fallback_exhausted = 0;
  uint64_t fallback_commit_failed = 0;
  uint64_t fallback_forked = 0;
  uint64_t fallback_bad_alignment = 0;
  uint64_t invalid_frees = 0;  // of an address where no block in use starts; nothing was done
};

// Safe to use from any thread. A process has one (see alloc_hook.h) and never destroys it: arrays
// may be freed until the very end of the process.
class Arena {
 public:
  // Smaller requests are refused: libc is good at them, and no collective is limited by them.
  static constexpr size_t kSmallestRequestBytes = 16 << 10;

  // The address space less than which is not worth having; smaller only if asked for.
  static constexpr size_t kSmallestReserveBytes = size_t{256} << 20;

  static std::string Create(const ArenaOptions& options, std::unique_ptr<Arena>* arena);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Memory of at least `num_bytes` at an address that is a multiple of `alignment`, a power of two,
  // and of 4096. Null, counted with its reason, where something else must serve the request.
  void* Allocate(size_t num_bytes, size_t alignment) noexcept;

  // `pointer` must be what Allocate returned.
  void Free(void* pointer) noexcept;

  // Keeps the block that an address belongs to from being used again, also once it is freed, until
  // Release() was called as often. The block's start; null where no block in use is.
  char* Hold(const void* pointer);
  void Release(char* block);

  // Whether an address is in the range, at any time, used or not. Takes no lock.
  bool Contains(const void* pointer) const noexcept {
    return reinterpret_cast<uintptr_t>(pointer) - begin_ < capacity_;
  }

  struct Use {
    char* base;
    size_t num_bytes;     // as asked for
    uint64_t generation;  // never the same for two uses of an address
  };
  // The use that an address, also one inside a block, belongs to.
  std::optional<Use> Find(const void* pointer) const;

  // Gives all kept pages back and returns how many bytes that were. A piece of 2 MiB that a block
  // shares stays.
  size_t Trim();

  // To be called now and then with a monotonic clock: trims after 60 s without an allocation.
  size_t Tick(double now_s);

  void SetKeepBytes(int64_t keep_bytes, int num_processes = 1);  // as in ArenaOptions

  // From now on `pieces` has, for each piece of 2 MiB, a number other than before whenever it gets
  // pages, and 0 while it has none; `changed` is called, with the lock held, when some got them.
  // Both must live as long as this.
  void ShowPieces(std::atomic<uint8_t>* pieces, std::function<void()> changed);

  // Makes this the arena that fork() in this process takes care of. A forked child reads what is in
  // it, can never write its parent's, may free, and gets new memory elsewhere.
  void HandleForks();

  ArenaStats Stats() const;
  bool shared() const { return shared_; }
  int fd() const { return region_->fd(); }  // -1 unless shared, and in a forked child
  bool huge_pages() const { return huge_pages_; }
  char* base() const { return region_->base(); }

 private:
  struct FreeKey {
    size_t num_bytes, offset;
    bool operator<(const FreeKey& other) const {
      return std::tie(num_bytes, offset) < std::tie(other.num_bytes, other.offset);
    }
  };
  using FreeSet = std::set<FreeKey>;
  struct Block {
    size_t num_bytes = 0;
    size_t asked_bytes = 0;  // 0: free
    uint32_t num_holds = 0;
    bool freed = false;  // while it is held
    uint64_t generation = 0;
    // This block's element of free_, held here while the block is in use, so that Free needs no
    // memory.
    FreeSet::node_type ticket;
  };
  using BlockMap = std::map<size_t, Block>;  // by offset; they cover the range without gaps
  struct Piece {
    uint32_t used_bytes = 0;
    bool resident = false;  // handed out or populated, and not discarded since
    uint8_t epoch = 0;      // how often it became that
  };
  class Lock;

  Arena(std::unique_ptr<platform::Region> region, bool shared);

  // All below need mutex_ held.
  void* Place(size_t num_bytes, size_t alignment);
  void Return(BlockMap::iterator block);
  bool EnsureCommitted(size_t end);
  static BlockMap::node_type MakeBlock(size_t offset, size_t num_bytes);
  void PutFree(BlockMap::iterator block);
  void TakeFree(BlockMap::iterator block);

  bool AddUse(size_t offset, size_t num_bytes);
  void RemoveUse(size_t offset, size_t num_bytes);
  size_t ResidentLimit() const;
  void EnforceLimits();
  size_t DiscardDownTo(size_t kept_bytes);
  void SetResident(size_t index, bool resident);
  void WantPopulation();
  size_t NextPieceToPopulate() const;
  void PopulateLoop();

  static void BeforeFork();
  static void AfterForkInParent();
  static void AfterForkInChild();

  const std::unique_ptr<platform::Region> region_;
  const bool shared_;
  const uintptr_t begin_;
  const size_t capacity_;
  bool huge_pages_ = false;

  // Guards everything below except small_. Held while pages are discarded: nobody may be given a
  // page that is about to vanish. Not held while pages are populated (see arena_pages.cc).
  mutable std::mutex mutex_;
  BlockMap blocks_;
  FreeSet free_;
  std::vector<Piece> pieces_;
  std::atomic<uint8_t>* shown_pieces_ = nullptr;
  std::function<void()> pieces_changed_;
  size_t top_piece_ = 0;  // no piece from here on is resident
  size_t keep_limit_ = 0;
  size_t committed_ = 0;  // offset up to which the range can be accessed
  size_t in_use_ = 0;
  size_t peak_in_use_ = 0;
  size_t kept_ = 0;
  size_t quarantined_ = 0;
  ArenaStats counts_;  // only its counters of events; Stats() fills in the rest
  bool forked_ = false;
  uint64_t ticked_allocations_ = 0;
  double idle_since_s_ = 0;

  bool stopping_ = false;
  bool population_works_ = true;
  bool population_wanted_ = false;
  bool populating_ = false;        // a piece is being populated outside the lock
  std::condition_variable wake_;   // population_wanted_ or stopping_ became true
  std::condition_variable quiet_;  // populating_ became false
  std::thread populator_;

  // A plain count; orders nothing, so all its accesses are relaxed.
  std::atomic<uint64_t> small_{0};
};

}  // namespace strata::core

#endif  // STRATA_CORE_ARENA_H_
