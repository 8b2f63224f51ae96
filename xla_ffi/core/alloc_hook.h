// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Puts the arena in front of the allocator that a loaded library (XLA, in libjax_common.so) uses
// for its arrays: the slots through which it calls posix_memalign, free and realloc.
#ifndef STRATA_CORE_ALLOC_HOOK_H_
#define STRATA_CORE_ALLOC_HOOK_H_

#include <cstddef>
#include <string>

#include "core/arena.h"

namespace strata::core {

struct InstallResult {
  std::string error;  // empty: installed, and what follows is set
  size_t num_posix_memalign_slots = 0;
  size_t num_free_slots = 0;
  size_t num_realloc_slots = 0;
  size_t reserved_bytes = 0;
  std::string backing;  // "anonymous" or "memfd"
};

// Makes the process's arena at the first call and redirects the library named `library` (a file
// name or a path) to it. Calling it again changes nothing but the limit of kept pages, which
// follows `options`; after UninstallAllocator it redirects again. The address range and the kind of
// backing stay those of the first call; asking for another kind is an error. The library must stay
// loaded.
//
// `serve` false makes the arena, for copies of arrays, and leaves the library as it is.
InstallResult InstallAllocator(const ArenaOptions& options, const std::string& library,
                               bool serve = true);

// New arrays come from where they came from before. Those in the arena stay valid and may be freed
// at any later time. Returns an error text or an empty one.
std::string UninstallAllocator();

// Looks at all slots and redirects those again that the dynamic linker has written since: it binds
// a slot at the first call through it, and a thread may have been doing so during the installation.
// Slots that another tool redirected on top are left alone. Returns how many were written.
int VerifyAllocator();

// The process's arena; null before the first installation. Never destroyed.
Arena* AllocatorArena();

}  // namespace strata::core

#endif  // STRATA_CORE_ALLOC_HOOK_H_
