// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/alloc_hook.h"

#include <stdlib.h>  // posix_memalign

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "platform/symbol_slots.h"

namespace strata::core {
namespace {

using MemalignFn = int (*)(void**, size_t, size_t);
using FreeFn = void (*)(void*);
using ReallocFn = void* (*)(void*, size_t);

// What the replacements read. The old functions are those that the slots held (libc's, or
// jemalloc's, or a memory profiler's), and libc's until that is known: a call through a slot that
// was just written finds something to call whatever else it sees.
//
// All are stored with release in InstallAllocator before the slots are written, and loaded with
// acquire by the replacements: who sees the arena sees it made.
std::atomic<Arena*> arena{nullptr};
std::atomic<bool> serving{false};
std::atomic<MemalignFn> old_memalign{::posix_memalign};
std::atomic<FreeFn> old_free{::free};
std::atomic<ReallocFn> old_realloc{::realloc};

Arena* ArenaOf(const void* pointer) {
  Arena* const owner = arena.load(std::memory_order_acquire);
  return owner != nullptr && owner->Contains(pointer) ? owner : nullptr;
}

int StrataPosixMemalign(void** out, size_t alignment, size_t num_bytes) {
  // Acquire pairs with the stores in InstallAllocator and UninstallAllocator.
  if (serving.load(std::memory_order_acquire) && alignment >= sizeof(void*)) {
    const int saved_errno = errno;  // posix_memalign does not set it
    void* const block = arena.load(std::memory_order_acquire)->Allocate(num_bytes, alignment);
    errno = saved_errno;
    if (block != nullptr) {
      *out = block;
      return 0;
    }
  }
  return old_memalign.load(std::memory_order_acquire)(out, alignment, num_bytes);
}

void StrataFree(void* pointer) {
  Arena* const owner = ArenaOf(pointer);
  if (owner == nullptr) {
    old_free.load(std::memory_order_acquire)(pointer);
    return;
  }
  const int saved_errno = errno;
  owner->Free(pointer);
  errno = saved_errno;
}

// XLA never reallocates memory that must be aligned. The slots are there, though, and libc aborts
// the process on a pointer that is not its own.
void* StrataRealloc(void* pointer, size_t num_bytes) {
  const ReallocFn libc_realloc = old_realloc.load(std::memory_order_acquire);
  Arena* const owner = ArenaOf(pointer);
  if (owner == nullptr) return libc_realloc(pointer, num_bytes);
  const auto use = owner->Find(pointer);
  void* const moved = num_bytes > 0 ? libc_realloc(nullptr, num_bytes) : nullptr;
  if (num_bytes > 0 && moved == nullptr) return nullptr;
  if (use && moved != nullptr) std::memcpy(moved, pointer, std::min(use->num_bytes, num_bytes));
  owner->Free(pointer);
  return moved;
}

struct Hooked {
  const char* symbol;
  void* replacement;
};

// In the order of patching. An arena block that reached libc's free would abort the process, so
// nothing is allocated from the arena before all ways to free it are redirected.
const Hooked kFree = {"free", reinterpret_cast<void*>(StrataFree)};
const Hooked kRealloc = {"realloc", reinterpret_cast<void*>(StrataRealloc)};
const Hooked kMemalign = {"posix_memalign", reinterpret_cast<void*>(StrataPosixMemalign)};

const Hooked& HookedOf(const std::string& symbol) {
  return symbol == kFree.symbol ? kFree : symbol == kRealloc.symbol ? kRealloc : kMemalign;
}

struct Hook {
  std::mutex mutex;  // guards what follows, and all writing of slots
  std::vector<platform::Imports> libraries;
};

// Never destroyed: the slots outlive every static object of this library.
Hook& TheHook() {
  static Hook* const hook = std::make_unique<Hook>().release();
  return *hook;
}

void* OldFunction(const Hooked& hooked) {
  if (&hooked == &kFree) return reinterpret_cast<void*>(old_free.load(std::memory_order_acquire));
  if (&hooked == &kRealloc) {
    return reinterpret_cast<void*>(old_realloc.load(std::memory_order_acquire));
  }
  return reinterpret_cast<void*>(old_memalign.load(std::memory_order_acquire));
}

// What a library called until now. A slot that was never used points into the library itself; the
// function is then the one that the dynamic linker would bind it to.
void* CalledUntilNow(const platform::Imports& imports, const Hooked& hooked) {
  for (const platform::Slot& slot : imports.slots) {
    if (slot.symbol != hooked.symbol) continue;
    void* const value = platform::ReadSlot(slot.address);
    if (value != nullptr && value != hooked.replacement && !imports.Holds(value)) return value;
  }
  return platform::ResolveSymbol(hooked.symbol);
}

std::string WriteSlots(const platform::Imports& imports, const Hooked& hooked, void* from,
                       void* to) {
  for (const platform::Slot& slot : imports.slots) {
    if (slot.symbol != hooked.symbol) continue;
    if (from != nullptr && platform::ReadSlot(slot.address) != from) continue;
    const std::string error = platform::WriteSlot(slot.address, to);
    if (!error.empty()) {
      return "arena_install: asked to redirect a slot of " + slot.symbol + " in " + imports.path +
             "; the system refused: " + error +
             ". A security policy may forbid to change linked code; start without strata_jax.init()"
             " or allow it.";
    }
  }
  return "";
}

int Verify(const Hook& hook) {
  int num_written = 0;
  for (const platform::Imports& imports : hook.libraries) {
    for (const platform::Slot& slot : imports.slots) {
      const Hooked& hooked = HookedOf(slot.symbol);
      // Relaxed: written only under the mutex that the caller holds.
      if (&hooked == &kMemalign && !serving.load(std::memory_order_relaxed)) continue;
      void* const value = platform::ReadSlot(slot.address);
      // Not what another tool put there: what it calls next is our replacement, and ours calling
      // it in turn would never end.
      const bool bound_again = value == OldFunction(hooked) || imports.Holds(value) ||
                               value == platform::ResolveSymbol(hooked.symbol);
      if (value == hooked.replacement || !bound_again) continue;
      if (platform::WriteSlot(slot.address, hooked.replacement).empty()) ++num_written;
    }
  }
  return num_written;
}

size_t CountSlots(const platform::Imports& imports, const Hooked& hooked) {
  return std::count_if(imports.slots.begin(), imports.slots.end(),
                       [&](const platform::Slot& slot) { return slot.symbol == hooked.symbol; });
}

// The arena, made at the first call; an error text where it is not what was asked for.
std::string EnsureArena(const ArenaOptions& options) {
  Arena* existing = arena.load(std::memory_order_relaxed);  // stored only under the mutex
  if (existing == nullptr) {
    std::unique_ptr<Arena> made;
    const std::string error = Arena::Create(options, &made);
    if (!error.empty()) return error;
    made->HandleForks();
    arena.store(made.release(), std::memory_order_release);  // pairs with the load in ArenaOf
    return "";
  }
  if (existing->shared() != options.shared) {
    const char* const names[] = {"anonymous", "memfd"};
    return std::string("arena_install: asked for an arena backed by ") + names[options.shared] +
           "; this process has one backed by " + names[existing->shared()] +
           ", and arrays may live in it. Keep the kind that the first installation chose, or start"
           " a new process.";
  }
  existing->SetKeepBytes(options.keep_bytes, options.num_processes);
  return "";
}

}  // namespace

InstallResult InstallAllocator(const ArenaOptions& options, const std::string& library,
                               bool serve) {
  Hook& hook = TheHook();
  std::lock_guard<std::mutex> lock(hook.mutex);
  InstallResult result;
  platform::Imports imports;
  result.error =
      platform::FindImports(library, {kFree.symbol, kRealloc.symbol, kMemalign.symbol}, &imports);
  if (!result.error.empty()) {
    result.error = "arena_install: " + result.error + ". Import jaxlib first.";
    return result;
  }
  result.num_free_slots = CountSlots(imports, kFree);
  result.num_realloc_slots = CountSlots(imports, kRealloc);
  result.num_posix_memalign_slots = CountSlots(imports, kMemalign);
  if (result.num_free_slots == 0 || result.num_posix_memalign_slots == 0) {
    result.error = "arena_install: looked for slots of posix_memalign and free in " + imports.path +
                   "; found " + std::to_string(result.num_posix_memalign_slots) + " and " +
                   std::to_string(result.num_free_slots) +
                   ", and needs at least one of each. This build brings its own allocator; use the"
                   " jaxlib wheel from PyPI.";
    return result;
  }
  result.error = EnsureArena(options);
  if (!result.error.empty()) return result;
  const Arena& made = *arena.load(std::memory_order_relaxed);  // stored only under the mutex
  result.reserved_bytes = made.Stats().reserved_bytes;
  result.backing = made.shared() ? "memfd" : "anonymous";
  if (!serve) return result;

  const bool known =
      std::any_of(hook.libraries.begin(), hook.libraries.end(),
                  [&](const platform::Imports& other) { return other.path == imports.path; });
  if (hook.libraries.empty()) {
    old_free.store(reinterpret_cast<FreeFn>(CalledUntilNow(imports, kFree)),
                   std::memory_order_release);
    old_realloc.store(reinterpret_cast<ReallocFn>(CalledUntilNow(imports, kRealloc)),
                      std::memory_order_release);
    old_memalign.store(reinterpret_cast<MemalignFn>(CalledUntilNow(imports, kMemalign)),
                       std::memory_order_release);
  }
  if (!known) {
    for (const Hooked* hooked : {&kFree, &kRealloc}) {
      result.error = WriteSlots(imports, *hooked, nullptr, hooked->replacement);
      if (!result.error.empty()) return result;
    }
    hook.libraries.push_back(std::move(imports));
  }
  Verify(hook);                                    // before the first block of the arena can exist
  serving.store(true, std::memory_order_release);  // pairs with the load in StrataPosixMemalign
  if (!known) {
    result.error = WriteSlots(hook.libraries.back(), kMemalign, nullptr, kMemalign.replacement);
    if (!result.error.empty()) return result;
  }
  Verify(hook);
  return result;
}

std::string UninstallAllocator() {
  Hook& hook = TheHook();
  std::lock_guard<std::mutex> lock(hook.mutex);
  // Also for callers that reach the replacement by another tool's slot.
  serving.store(false, std::memory_order_release);  // pairs with the load in StrataPosixMemalign
  // free and realloc stay redirected for ever. Arrays live in the arena for as long as the
  // application keeps them, into the last moments of the process, and a list of who still frees
  // through which slot cannot be had; libc's free would abort on the first of them. For all other
  // pointers the redirection costs one comparison.
  for (const platform::Imports& imports : hook.libraries) {
    const std::string error =
        WriteSlots(imports, kMemalign, kMemalign.replacement, OldFunction(kMemalign));
    if (!error.empty()) return error;
  }
  return "";
}

int VerifyAllocator() {
  Hook& hook = TheHook();
  std::lock_guard<std::mutex> lock(hook.mutex);
  return Verify(hook);
}

Arena* AllocatorArena() { return arena.load(std::memory_order_acquire); }  // as in ArenaOf

}  // namespace strata::core
