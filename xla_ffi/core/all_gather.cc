// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The operand of rank s becomes block s of every result. It is read once for all of them.
#include "core/operation.h"

namespace strata::core {
namespace {

std::string Plan(const Meeting& meeting, Work& work) {
  const std::string error = CheckBlocks(meeting, 1, meeting.num_ranks);
  if (!error.empty()) return error;
  for (size_t part = 0; part < meeting.in_parts.size(); ++part) {
    const Block& block = meeting.spec.blocks[part];
    for (int source = 0; source < meeting.num_ranks; ++source) {
      Transfer transfer;
      transfer.bit_width = BitWidth(meeting.in_parts[part].dtype);
      transfer.num_in = 1;
      transfer.num_out = meeting.num_ranks;
      transfer.in = meeting.In(part, source);
      transfer.out = meeting.Out(part);
      transfer.out_offset = source * block.out_step;
      transfer.rows = &block.rows;
      work.Add(transfer);
    }
  }
  return "";
}

OperationStats stats;

}  // namespace

const Operation kAllGather = {"all_gather", Plan, stats};

}  // namespace strata::core
