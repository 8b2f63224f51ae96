// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Brings the pages of other processes' arenas into this process's page tables before an operation
// needs them: 64 MiB of a peer's memory cost thousands of page faults on the first read.
//
// One thread, which sleeps until a peer says that its arena has new pages. It follows the numbers
// on the peers' boards, by piece of 2 MiB, and so never asks for one that the owner has not used:
// that would make pages for a hole.
#ifndef STRATA_CORE_PAGE_MAPPER_H_
#define STRATA_CORE_PAGE_MAPPER_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/fabric.h"

namespace strata::core {

class PageMapper {
 public:
  // Both must live as long as the process.
  PageMapper(Control* control, const Fabric* fabric);

  // Shows the pages of this process's arena to the others, and starts the thread that maps theirs.
  void Start();

  // Of peers' memory, since the start.
  int64_t mapped_bytes() const { return mapped_bytes_.load(std::memory_order_relaxed); }

 private:
  void Loop();
  bool Round();

  Control* const control_;
  const Fabric* const fabric_;
  std::vector<std::vector<uint8_t>> mapped_;  // by slot and piece, the number when it was mapped
  std::atomic<int64_t> mapped_bytes_{0};      // orders nothing
};

}  // namespace strata::core

#endif  // STRATA_CORE_PAGE_MAPPER_H_
