// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The operand of the group's first rank becomes the result of all its ranks.
#include "core/operation.h"

namespace strata::core {
namespace {

std::string Plan(const Meeting& meeting, Work& work) {
  const std::string error = CheckBlocks(meeting, 1, 1);
  if (!error.empty()) return error;
  for (size_t part = 0; part < meeting.in_parts.size(); ++part) {
    Transfer transfer;
    transfer.bit_width = BitWidth(meeting.in_parts[part].dtype);
    transfer.num_in = 1;
    transfer.num_out = meeting.num_ranks;
    transfer.in = meeting.In(part);
    transfer.out = meeting.Out(part);
    transfer.rows = &meeting.spec.blocks[part].rows;
    transfer.is_whole = true;
    work.Add(transfer);
  }
  return "";
}

OperationStats stats;

}  // namespace

const Operation kCollectiveBroadcast = {"collective_broadcast", Plan, stats};

}  // namespace strata::core
