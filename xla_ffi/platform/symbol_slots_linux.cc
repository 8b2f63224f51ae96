// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "platform/symbol_slots.h"

namespace strata::platform {
namespace {

using Header = ElfW(Phdr);
using Dynamic = ElfW(Dyn);
using Symbol = ElfW(Sym);
using Rela = ElfW(Rela);

#if defined(__x86_64__)
constexpr uint32_t kSlotKinds[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT, R_X86_64_64};
#elif defined(__aarch64__)
constexpr uint32_t kSlotKinds[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT, R_AARCH64_ABS64};
#endif

bool IsSlotKind(uint32_t kind) {
  for (uint32_t known : kSlotKinds) {
    if (kind == known) return true;
  }
  return false;
}

struct Search {
  const std::string& library;
  const std::vector<std::string>& symbols;
  Imports* imports;
  bool found = false;
  int num_libraries = 0;
  // Loaded libraries whose path shares the name's beginning, for the error.
  std::string like_it = "";
};

bool HasName(const std::string& path, const std::string& library) {
  const size_t slash = path.rfind('/');
  return path == library || (slash != std::string::npos && path.substr(slash + 1) == library);
}

void CollectSlots(const dl_phdr_info& info, Search* search) {
  const Dynamic* dynamic = nullptr;
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const Header& header = info.dlpi_phdr[i];
    const uintptr_t begin = info.dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const Dynamic*>(begin);
    if (header.p_type == PT_LOAD) {
      search->imports->segments.push_back({begin, begin + header.p_memsz});
    }
  }
  if (dynamic == nullptr) return;
  const Symbol* symbols = nullptr;
  const char* names = nullptr;
  struct Table {
    const Rela* entries = nullptr;
    size_t num_bytes = 0;
  } tables[2];  // for calls; for the rest
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    // glibc has added the load address to pointers here, musl has not.
    const uintptr_t value = dynamic->d_un.d_ptr;
    const uintptr_t pointer = value >= info.dlpi_addr ? value : value + info.dlpi_addr;
    switch (dynamic->d_tag) {
      case DT_SYMTAB:
        symbols = reinterpret_cast<const Symbol*>(pointer);
        break;
      case DT_STRTAB:
        names = reinterpret_cast<const char*>(pointer);
        break;
      case DT_JMPREL:
        tables[0].entries = reinterpret_cast<const Rela*>(pointer);
        break;
      case DT_PLTRELSZ:
        tables[0].num_bytes = value;
        break;
      case DT_RELA:
        tables[1].entries = reinterpret_cast<const Rela*>(pointer);
        break;
      case DT_RELASZ:
        tables[1].num_bytes = value;
        break;
    }
  }
  if (symbols == nullptr || names == nullptr) return;
  for (const Table& table : tables) {
    if (table.entries == nullptr) continue;
    for (size_t i = 0; i < table.num_bytes / sizeof(Rela); ++i) {
      const Rela& entry = table.entries[i];
      const size_t symbol = ELF64_R_SYM(entry.r_info);
      const uint32_t kind = ELF64_R_TYPE(entry.r_info);
      if (symbol == 0 || entry.r_addend != 0 || !IsSlotKind(kind)) continue;
      const char* const name = names + symbols[symbol].st_name;
      for (const std::string& wanted : search->symbols) {
        if (wanted != name) continue;
        search->imports->slots.push_back(
            {wanted, reinterpret_cast<void**>(info.dlpi_addr + entry.r_offset)});
      }
    }
  }
}

int Visit(dl_phdr_info* info, size_t, void* context) {
  auto* search = static_cast<Search*>(context);
  const std::string path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  ++search->num_libraries;
  if (HasName(path, search->library)) {
    search->found = true;
    search->imports->path = path;
    CollectSlots(*info, search);
    return 1;
  }
  const std::string beginning = search->library.substr(0, 6);  // "libjax": a handful of files
  if (path.find(beginning) != std::string::npos) search->like_it += " " + path;
  return 0;
}

// The protection of the page at `address` now, -1 where it cannot be found out.
int ProtectionOf(uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin, end;
    char flags[5];
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &begin, &end, flags) != 3) {
      continue;
    }
    if (address < begin || address >= end) continue;
    return (flags[0] == 'r' ? PROT_READ : 0) | (flags[1] == 'w' ? PROT_WRITE : 0) |
           (flags[2] == 'x' ? PROT_EXEC : 0);
  }
  return -1;
}

}  // namespace

bool Imports::Holds(const void* address) const {
  const auto value = reinterpret_cast<uintptr_t>(address);
  for (const Range& segment : segments) {
    if (value >= segment.begin && value < segment.end) return true;
  }
  return false;
}

std::string FindImports(const std::string& library, const std::vector<std::string>& symbols,
                        Imports* imports) {
  Search search{library, symbols, imports};
  dl_iterate_phdr(Visit, &search);
  if (search.found) return "";
  return "looked for a loaded library \"" + library + "\"; none of the " +
         std::to_string(search.num_libraries) + " loaded libraries has that name" +
         (search.like_it.empty() ? "" : " (alike:" + search.like_it + ")");
}

// Acquire pairs with the release in WriteSlot and with the dynamic linker's own write when it binds
// a slot: the value is a function whose code is in place.
void* ReadSlot(void** slot) { return __atomic_load_n(slot, __ATOMIC_ACQUIRE); }

std::string WriteSlot(void** slot, void* value) {
  const auto address = reinterpret_cast<uintptr_t>(slot);
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* const page = reinterpret_cast<void*>(address / page_bytes * page_bytes);
  const int protection = ProtectionOf(address);
  if (protection < 0) return "no mapping holds the slot";
  const bool writable = (protection & PROT_WRITE) != 0;
  if (!writable && mprotect(page, page_bytes, protection | PROT_WRITE) != 0) {
    return std::string("mprotect: ") + std::strerror(errno);
  }
  // Release orders what the caller prepared for the new function (its arena, the old function)
  // before calls that other threads make through the slot.
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  if (!writable && mprotect(page, page_bytes, protection) != 0) {
    return std::string("mprotect back: ") + std::strerror(errno);
  }
  return "";
}

void* ResolveSymbol(const char* symbol) { return dlsym(RTLD_DEFAULT, symbol); }

}  // namespace strata::platform
