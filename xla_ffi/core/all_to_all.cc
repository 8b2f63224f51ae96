// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Block r of the operand of rank s becomes block s of the result of rank r, in one copy.
#include "core/operation.h"

namespace strata::core {
namespace {

// XLA's other form: the blocks are buffers of their own, so operand r of rank s becomes result s of
// rank r.
std::string PlanTuple(const Meeting& meeting, Work& work) {
  const size_t num_ranks = meeting.num_ranks;
  if (meeting.in_parts.size() != num_ranks || !(meeting.in_parts == meeting.out_parts)) {
    return std::to_string(meeting.in_parts.size()) + " operands and " +
           std::to_string(meeting.out_parts.size()) + " results for " + std::to_string(num_ranks) +
           " ranks, or of other types";
  }
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    if (!(meeting.in_parts[rank] == meeting.in_parts[0])) return "operands of several types";
    for (size_t source = 0; source < num_ranks; ++source) {
      Transfer transfer;
      transfer.bit_width = BitWidth(meeting.in_parts[rank].dtype);
      transfer.num_in = transfer.num_out = 1;
      transfer.in = meeting.In(rank, static_cast<int>(source));
      transfer.out = meeting.Out(source, static_cast<int>(rank));
      transfer.num_elements = meeting.in_parts[rank].num_elements;
      transfer.is_whole = true;
      work.Add(transfer);
    }
  }
  return "";
}

std::string Plan(const Meeting& meeting, Work& work) {
  if (meeting.spec.is_tuple) return PlanTuple(meeting, work);
  const std::string error = CheckBlocks(meeting, meeting.num_ranks, meeting.num_ranks);
  if (!error.empty()) return error;
  for (size_t part = 0; part < meeting.in_parts.size(); ++part) {
    const Block& block = meeting.spec.blocks[part];
    for (int rank = 0; rank < meeting.num_ranks; ++rank) {
      for (int source = 0; source < meeting.num_ranks; ++source) {
        Transfer transfer;
        transfer.bit_width = BitWidth(meeting.in_parts[part].dtype);
        transfer.num_in = transfer.num_out = 1;
        transfer.in = meeting.In(part, source);
        transfer.out = meeting.Out(part, rank);
        transfer.in_offset = rank * block.in_step;
        transfer.out_offset = source * block.out_step;
        transfer.rows = &block.rows;
        work.Add(transfer);
      }
    }
  }
  return "";
}

OperationStats stats;

}  // namespace

const Operation kAllToAll = {"all_to_all", Plan, stats};

}  // namespace strata::core
