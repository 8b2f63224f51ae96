// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// A stand-in for XLA's library: imports the allocator by calls, by an address taken in code, and by
// function pointers in data.
#include "hooked_library.h"

#include <stdlib.h>

extern "C" {

// Visible, so that the compiler cannot know what it holds.
struct HookedTable {
  void (*release)(void*);
  void* (*resize)(void*, size_t);
} hooked_table = {free, realloc};

int HookedAllocate(void** out, size_t alignment, size_t num_bytes) {
  return posix_memalign(out, alignment, num_bytes);
}

// `free` has a slot for calls only, which GNU ld would merge with one for its address.
void HookedFree(void* pointer, int way) {
  if (way == kByCall) free(pointer);
  if (way == kByData) hooked_table.release(pointer);
}

void* HookedRealloc(void* pointer, size_t num_bytes, int way) {
  void* (*volatile in_code)(void*, size_t) = realloc;
  return way == kByData ? hooked_table.resize(pointer, num_bytes) : in_code(pointer, num_bytes);
}

}  // extern "C"
