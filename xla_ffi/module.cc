// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The Python module strata_jax._core.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "core/alloc_hook.h"
#include "core/arena.h"
#include "core/collective.h"
#include "core/copy_bandwidth.h"
#include "core/kernels.h"
#include "core/watchdog.h"
#include "handlers/collective.h"
#include "joining.h"
#include "xla/ffi/api/c_api.h"

namespace nb = nanobind;

namespace strata {
namespace {

// What the stub _core.pyi says of the dictionaries.
using Capsules = nb::typed<nb::dict, nb::str, nb::typed<nb::dict, nb::str, nb::any>>;
using Report = nb::typed<nb::dict, nb::str, nb::any>;

Capsules Registrations() {
  nb::dict targets;
  for (const handlers::Target& target : handlers::Targets()) {
    nb::dict stages;
    stages["instantiate"] = nb::capsule(target.instantiate);
    stages["execute"] = nb::capsule(target.execute);
    targets[target.name] = stages;
  }
  return targets;
}

Capsules TypeRegistrations() {
  nb::dict collective;
  collective["type_id"] = nb::capsule(handlers::CollectiveTypeId());
  collective["type_info"] = nb::capsule(handlers::CollectiveTypeInfo());
  nb::dict types;
  types["strata_collective"] = collective;
  return types;
}

void Configure(double warn_s, double fail_s, double fail_across_s, int num_workers,
               const std::string& isa, bool check_ragged) {
  if (!core::SelectKernels(isa.c_str())) {
    throw nb::value_error(("this machine has no kernels for instruction set '" + isa +
                           "'; use 'baseline', or leave the choice open")
                              .c_str());
  }
  core::SetNumThreads(num_workers);
  core::SetRaggedChecks(check_ragged);
  core::Watchdog::Start(warn_s, fail_s, fail_across_s);
}

Report ArenaInstall(int64_t reserve_bytes, int64_t keep_bytes, bool huge_pages, bool populate,
                    bool serve, int num_processes, uint64_t address, const std::string& library) {
  core::ArenaOptions options;
  options.address = address;
  options.reserve_bytes = reserve_bytes;
  options.keep_bytes = keep_bytes;
  options.huge_pages = huge_pages;
  options.populate = populate;
  options.num_processes = num_processes;
  options.shared = num_processes > 1;
  const core::InstallResult result = core::InstallAllocator(options, library, serve);
  if (!result.error.empty()) throw std::runtime_error(result.error);
  nb::dict slots;
  slots["posix_memalign"] = result.num_posix_memalign_slots;
  slots["free"] = result.num_free_slots;
  slots["realloc"] = result.num_realloc_slots;
  nb::dict report;
  report["slots"] = slots;
  report["reserved_bytes"] = result.reserved_bytes;
  report["backing"] = result.backing;
  return report;
}

void ArenaUninstall() {
  const std::string error = core::UninstallAllocator();
  if (!error.empty()) throw std::runtime_error(error);
}

size_t ArenaTrim() {
  core::Arena* arena = core::AllocatorArena();
  return arena == nullptr ? 0 : arena->Trim();
}

nb::dict ArenaStats() {
  nb::dict stats;
  const core::Arena* arena = core::AllocatorArena();
  if (arena == nullptr) return stats;
  const core::ArenaStats now = arena->Stats();
  stats["reserved_bytes"] = now.reserved_bytes;
  stats["committed_bytes"] = now.committed_bytes;
  stats["in_use_bytes"] = now.in_use_bytes;
  stats["peak_in_use_bytes"] = now.peak_in_use_bytes;
  stats["kept_bytes"] = now.kept_bytes;
  stats["keep_limit_bytes"] = now.keep_limit_bytes;
  stats["allocations"] = now.allocations;
  stats["frees"] = now.frees;
  stats["hits"] = now.hits;
  stats["fresh"] = now.fresh;
  stats["populated_bytes"] = now.populated_bytes;
  stats["discarded_bytes"] = now.discarded_bytes;
  stats["num_blocks"] = now.num_blocks;
  stats["num_free_blocks"] = now.num_free_blocks;
  stats["quarantined_bytes"] = now.quarantined_bytes;
  nb::dict fallbacks;
  fallbacks["small"] = now.fallback_small;
  fallbacks["exhausted"] = now.fallback_exhausted;
  fallbacks["commit_failed"] = now.fallback_commit_failed;
  fallbacks["forked"] = now.fallback_forked;
  fallbacks["bad_alignment"] = now.fallback_bad_alignment;
  stats["fallbacks"] = fallbacks;
  return stats;
}

Report Stats() {
  nb::dict stats;
  stats["arena"] = ArenaStats();
  for (const handlers::Target& target : handlers::Targets()) {
    const core::OperationStats& counters = target.operation.stats;
    nb::dict counts;
    counts["calls"] = counters.calls.load();
    counts["operations"] = counters.operations.load();
    counts["buffers"] = counters.buffers.load();
    counts["bytes"] = counters.bytes.load();
    counts["written_bytes"] = counters.written_bytes.load();
    counts["registered_bytes"] = counters.registered_bytes.load();
    counts["across"] = counters.across.load();
    counts["mailed"] = counters.mailed.load();
    counts["staged_bytes"] = counters.staged_bytes.load();
    counts["failed"] = counters.failed.load();
    stats[target.operation.name] = counts;
  }
  stats["pending"] = core::NumOpenUses();
  return stats;
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "Compiled core of strata_jax.";
  m.attr("FFI_API_VERSION") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  m.def("registrations", Registrations, "FFI targets, for jax.ffi.register_ffi_target.");
  m.def("type_registrations", TypeRegistrations, "FFI state types, to register before targets.");
  m.def("configure", Configure, nb::kw_only(), nb::arg("warn_s"), nb::arg("fail_s"),
        nb::arg("fail_across_s"), nb::arg("num_workers"), nb::arg("isa"), nb::arg("check_ragged"),
        "Sets deadlines, workers, kernels and checks.");
  m.def("isa", [] { return core::Kernels().name; }, "Instruction set of the kernels in use.");
  m.def("arena_install", ArenaInstall, nb::kw_only(), nb::arg("reserve_bytes"),
        nb::arg("keep_bytes"), nb::arg("huge_pages"), nb::arg("populate"), nb::arg("serve"),
        nb::arg("num_processes"), nb::arg("address"), nb::arg("library"),
        "Redirects the allocator of a loaded library to the arena.");
  m.def("arena_uninstall", ArenaUninstall, "New arrays come from where they came from before.");
  m.def("arena_verify", core::VerifyAllocator, "Redirects slots that were written since.");
  m.def("arena_trim", ArenaTrim, "Gives all kept pages back; returns how many bytes.");
  BindJoining(m);
  m.def("stats", Stats, "Counters of the arena and of the collectives.");
  m.def("limit_deadline", core::Watchdog::LimitDeadline, nb::arg("timeout_s"),
        "From now on operations fail after at most this long.");
  m.def("watch_interrupts", core::Watchdog::WatchInterrupts, nb::arg("read_fd"),
        nb::arg("forward_fd"), "Fails stuck operations when SIGINT is written to a descriptor.");
  m.def(
      "copy_bandwidth",
      [](size_t num_bytes, int num_threads, int repeat) {
        return core::CopyBandwidth(num_bytes, num_threads, repeat) / 1e9;
      },
      nb::call_guard<nb::gil_scoped_release>(), nb::arg("num_bytes"), nb::arg("num_threads"),
      nb::arg("repeat"), "GB/s that threads copy together with non-temporal stores.");
}

}  // namespace strata
