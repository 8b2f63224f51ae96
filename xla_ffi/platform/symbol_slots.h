// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The words of a loaded library through which it reaches functions of other libraries.
#ifndef STRATA_PLATFORM_SYMBOL_SLOTS_H_
#define STRATA_PLATFORM_SYMBOL_SLOTS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace strata::platform {

struct Slot {
  std::string symbol;
  void** address;
};

struct Imports {
  std::string path;
  std::vector<Slot> slots;
  struct Range {
    uintptr_t begin, end;
  };
  std::vector<Range> segments;

  // Whether an address is inside the library itself. A slot that is bound at the first call points
  // into its own library until then.
  bool Holds(const void* address) const;
};

// Finds all slots of `symbols` (of any kind: for calls, for taking an address, function pointers in
// data) in the loaded library whose file name, or path, is `library`. Returns what was looked for
// and found where there is no such library, else an empty text.
std::string FindImports(const std::string& library, const std::vector<std::string>& symbols,
                        Imports* imports);

void* ReadSlot(void** slot);

// Writes a slot. Where its page is read-only (RELRO), it is writable for the moment of the write
// and gets back exactly the protection that it had. Returns the system's reason on failure.
std::string WriteSlot(void** slot, void* value);

// The function that a library loaded now would get for `symbol`.
void* ResolveSymbol(const char* symbol);

}  // namespace strata::platform

#endif  // STRATA_PLATFORM_SYMBOL_SLOTS_H_
