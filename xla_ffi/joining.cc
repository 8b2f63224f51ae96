// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "joining.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/alloc_hook.h"
#include "core/control.h"
#include "core/fabric.h"
#include "core/page_mapper.h"
#include "platform/memory.h"
#include "platform/shared.h"

namespace nb = nanobind;

namespace strata {
namespace {

// Where the memory of all processes may be, of the 128 TiB that one has: away from the program, the
// heap and the libraries, and from what sanitizers map. In order of preference.
constexpr uint64_t kAddresses[] = {0x1000'0000'0000, 0x2000'0000'0000, 0x3000'0000'0000,
                                   0x4000'0000'0000, 0x6000'0000'0000};

// What this process brings, until it has joined.
struct Joining {
  std::unique_ptr<core::Arena> staging;
  std::unique_ptr<core::Fabric> fabric;  // until it starts
  std::unique_ptr<core::PageMapper> mapper;
  std::vector<std::pair<void*, size_t>> mapped;
  char* block = nullptr;  // in the staging arena: where others show that they reach it
};
Joining& TheJoining() {
  static Joining& joining = *new Joining;
  return joining;
}

size_t RoundUpToPieces(size_t num_bytes) {
  return (num_bytes + platform::kPieceBytes - 1) / platform::kPieceBytes * platform::kPieceBytes;
}

std::vector<uint64_t> FreeAddresses(size_t num_bytes) {
  std::vector<uint64_t> addresses;
  for (uint64_t address : kAddresses) {
    if (platform::IsFree(address, num_bytes)) addresses.push_back(address);
  }
  return addresses;
}

// (descriptor, address, bytes) of the arena and of the staging arena, which is made at the first
// call.
std::vector<std::tuple<int, uint64_t, uint64_t>> SharedMemory(uint64_t staging_address,
                                                              int64_t num_bytes,
                                                              int num_processes) {
  Joining& joining = TheJoining();
  if (joining.staging == nullptr) {
    core::ArenaOptions options;
    options.reserve_bytes = num_bytes;
    options.shared = true;
    options.num_processes = num_processes;
    options.address = staging_address;
    const std::string error = core::Arena::Create(options, &joining.staging);
    if (!error.empty()) throw std::runtime_error(error);
    joining.block =
        static_cast<char*>(joining.staging->Allocate(core::Arena::kSmallestRequestBytes, 64));
  }
  std::vector<std::tuple<int, uint64_t, uint64_t>> memory;
  for (const core::Arena* part : {core::AllocatorArena(), joining.staging.get()}) {
    memory.emplace_back(part->fd(), reinterpret_cast<uint64_t>(part->base()),
                        part->Stats().reserved_bytes);
  }
  return memory;
}

size_t ControlBytes(int num_processes) {
  return RoundUpToPieces(core::Control::NumBytes(num_processes));
}

int MakeControl(int num_processes) {
  std::string error;
  const int fd = platform::MakeSharedFile(ControlBytes(num_processes), &error);
  if (fd < 0) throw std::runtime_error(error);
  return fd;
}

// Takes back what join() did, so that it can be called again.
void Abandon() {
  Joining& joining = TheJoining();
  joining.mapper.reset();
  joining.fabric.reset();
  for (const auto& [address, num_bytes] : joining.mapped) platform::Unmap(address, num_bytes);
  joining.mapped.clear();
}

// (process index, pid here or 0, socket, arena: descriptor, address, bytes, staging: the same)
using Peer = std::tuple<int, int64_t, int, int, uint64_t, uint64_t, int, uint64_t, uint64_t>;

// Maps the memory of all. The descriptors stay the caller's, but for the sockets.
void Join(int slot, int control_fd, uint64_t control_address, const std::vector<Peer>& peers,
          double spin_us) {
  const int num_processes = static_cast<int>(peers.size());
  const auto map = [](const std::string& what, int fd, uint64_t address, uint64_t num_bytes) {
    const std::string error = platform::MapShared(fd, reinterpret_cast<void*>(address), num_bytes);
    if (!error.empty()) throw std::runtime_error("cannot map " + what + ": " + error);
    TheJoining().mapped.emplace_back(reinterpret_cast<void*>(address), num_bytes);
  };
  map("the control segment", control_fd, control_address, ControlBytes(num_processes));
  auto* const control = reinterpret_cast<core::Control*>(control_address);
  if (slot == 0) {
    control->num_processes = static_cast<uint32_t>(num_processes);
    control->magic.store(core::kControlMagic, std::memory_order_release);
  }
  std::vector<core::Process> processes;
  for (int i = 0; i < num_processes; ++i) {
    const auto& [index, pid, socket, arena_fd, arena, arena_bytes, staging_fd, staging,
                 staging_bytes] = peers[i];
    core::Process process;
    process.process_index = index;
    process.pid = pid;
    process.socket = socket;
    if (i != slot) {
      const std::string whose = " of process " + std::to_string(index);
      map("the arena" + whose, arena_fd, arena, arena_bytes);
      map("the staging memory" + whose, staging_fd, staging, staging_bytes);
      process.arena = reinterpret_cast<char*>(arena);
      process.arena_bytes = arena_bytes;
      process.staging = reinterpret_cast<char*>(staging);
      process.staging_bytes = staging_bytes;
    }
    processes.push_back(process);
  }
  auto fabric = std::make_unique<core::Fabric>(
      control, slot, std::move(processes), core::AllocatorArena(), std::move(TheJoining().staging));
  fabric->SetSpin(spin_us);
  TheJoining().mapper = std::make_unique<core::PageMapper>(control, fabric.get());
  TheJoining().fabric = std::move(fabric);
}

// Each process has a block with a word for each other one, and its own number in the last.
std::atomic<uint64_t>* Words(uint64_t staging) {
  return reinterpret_cast<std::atomic<uint64_t>*>(staging);
}
constexpr int kOwnWord = core::kMaxProcesses;

void ShowNumber(uint64_t number) {
  Words(reinterpret_cast<uint64_t>(TheJoining().block))[kOwnWord].store(number);
}

// Reads another's number, where its staging memory is, and leaves ours there.
uint64_t Echo(uint64_t staging, int own_slot, uint64_t number) {
  Words(staging)[own_slot].store(number);
  return Words(staging)[kOwnWord].load();
}

uint64_t EchoOf(int slot) {
  return Words(reinterpret_cast<uint64_t>(TheJoining().block))[slot].load();
}

}  // namespace

void BindJoining(nb::module_& m) {
  m.attr("MAX_PROCESSES") = core::kMaxProcesses;
  m.def("free_addresses", FreeAddresses, nb::arg("num_bytes"),
        "Addresses at which nothing is mapped, of those that shared memory may have.");
  m.def("address_space_left", platform::AddressSpaceLeftBytes, "Bytes that `ulimit -v` leaves.");
  m.def("physical_memory", platform::PhysicalMemoryBytes, "Bytes of the machine.");
  m.def("shared_memory", SharedMemory, nb::arg("staging_address"), nb::arg("staging_bytes"),
        nb::arg("num_processes"),
        "Descriptor, address and bytes of this process's arena and of its staging memory.");
  m.def("control_bytes", ControlBytes, nb::arg("num_processes"), "Bytes of a control segment.");
  m.def("make_control", MakeControl, nb::arg("num_processes"), "A new one's descriptor.");
  m.def("join", Join, nb::arg("slot"), nb::arg("control_fd"), nb::arg("control_address"),
        nb::arg("peers"), nb::arg("spin_us"), "Maps the memory of all processes of this host.");
  m.def("abandon_join", Abandon, "Takes back what join() did.");
  m.def("show_number", ShowNumber, nb::arg("number"), "Writes it where others can read it.");
  m.def("echo", Echo, nb::arg("staging_address"), nb::arg("own_slot"), nb::arg("number"),
        "Reads another's number, and leaves it one.");
  m.def("echo_of", EchoOf, nb::arg("slot"), "The number that another left here.");
  m.def(
      "start_fabric",
      [](int coordinator, bool map_pages) {
        core::SetTheFabric(std::move(TheJoining().fabric));
        core::TheFabric()->Start(coordinator);
        if (map_pages) TheJoining().mapper->Start();
      },
      nb::arg("coordinator"), nb::arg("map_pages"),
      "Starts its threads, once; coordinator: slot of the process without which JAX ends this "
      "one.");
  m.def(
      "mapped_bytes",
      [] { return TheJoining().mapper == nullptr ? 0 : TheJoining().mapper->mapped_bytes(); },
      "Bytes of other processes' arenas that were mapped ahead of their use.");
  m.def("has_joined", [] { return core::TheFabric() != nullptr; }, "Whether join() was called.");
  m.def(
      "other_processes",
      [] {
        std::vector<std::tuple<std::string, std::string>> others;
        const core::Fabric* fabric = core::TheFabric();
        for (int i = 0; fabric != nullptr && i < fabric->num_processes(); ++i) {
          if (i == fabric->slot()) continue;
          const bool lives = (fabric->dead() >> i & 1) == 0;
          others.emplace_back(fabric->Title(i), lives                     ? "lives"
                                                : fabric->EndedInOrder(i) ? "left"
                                                                          : "died");
        }
        return others;
      },
      "The other processes of the fabric, and whether each lives, left, or died.");
  m.def(
      "set_exiting",
      [] {
        if (core::Fabric* fabric = core::TheFabric()) fabric->SetExiting();
      },
      "Tells the others that this process ends in good order.");
  m.def(
      "leave",
      [] {
        if (core::Fabric* fabric = core::TheFabric()) fabric->Leave();
      },
      "Lets the others see this process as ended.");
}

}  // namespace strata
