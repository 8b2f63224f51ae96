// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/page_mapper.h"

#include "platform/memory.h"
#include "platform/shared.h"
#include "platform/threads.h"

namespace strata::core {

using platform::kPieceBytes;

PageMapper::PageMapper(Control* control, const Fabric* fabric)
    : control_(control), fabric_(fabric), mapped_(fabric->num_processes()) {
  for (int slot = 0; slot < fabric_->num_processes(); ++slot) {
    mapped_[slot].resize(fabric_->process(slot).arena_bytes / kPieceBytes);
  }
}

void PageMapper::Start() {
  fabric_->arena()->ShowPieces(control_->board(fabric_->slot()).pieces, [this] {
    for (int slot = 0; slot < fabric_->num_processes(); ++slot) {
      if (slot == fabric_->slot()) continue;
      Board& board = control_->board(slot);
      // Sequentially consistent, as in Loop(): it sees the bell, or we see it sleep.
      board.page_bell.fetch_add(1, std::memory_order_seq_cst);
      if (board.page_sleeping.load(std::memory_order_seq_cst) != 0) {
        platform::WakeOne(board.page_bell);
      }
    }
  });
  platform::StartThread("strata-mapper", [this] { Loop(); });
}

// Maps what is new; false when the system cannot.
bool PageMapper::Round() {
  for (int slot = 0; slot < fabric_->num_processes(); ++slot) {
    std::vector<uint8_t>& mapped = mapped_[slot];
    const Board& board = control_->board(slot);
    for (size_t piece = 0; piece < mapped.size(); ++piece) {
      // Acquire pairs with the store in Arena::SetResident.
      const uint8_t number = board.pieces[piece].load(std::memory_order_acquire);
      if (number == mapped[piece]) continue;
      mapped[piece] = number;
      if (number == 0 || (fabric_->dead() >> slot & 1) != 0) continue;
      char* const address = fabric_->process(slot).arena + piece * kPieceBytes;
      if (!platform::MapPages(address, kPieceBytes)) return false;
      mapped_bytes_.fetch_add(kPieceBytes, std::memory_order_relaxed);
    }
  }
  return true;
}

void PageMapper::Loop() {
  Board& own = control_->board(fabric_->slot());
  for (;;) {
    const uint32_t bell = own.page_bell.load(std::memory_order_seq_cst);
    if (!Round()) return;  // pages are then mapped when they are touched
    own.page_sleeping.store(1, std::memory_order_seq_cst);  // pairs with the load in Start()
    if (own.page_bell.load(std::memory_order_seq_cst) == bell) {
      platform::WaitWhile(own.page_bell, bell);
    }
    own.page_sleeping.store(0, std::memory_order_seq_cst);
  }
}

}  // namespace strata::core
