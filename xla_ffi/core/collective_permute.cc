// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The operand of a rank's source becomes its result; a rank without a source gets zeros.
#include "core/operation.h"

namespace strata::core {
namespace {

std::string Plan(const Meeting& meeting, Work& work) {
  const std::string error = CheckBlocks(meeting, 1, 1);
  if (!error.empty()) return error;
  for (size_t part = 0; part < meeting.in_parts.size(); ++part) {
    for (int rank = 0; rank < meeting.num_ranks; ++rank) {
      const int source = meeting.sources[rank];
      Transfer transfer;
      transfer.bit_width = BitWidth(meeting.in_parts[part].dtype);
      transfer.num_in = source < 0 ? 0 : 1;
      transfer.num_out = 1;
      if (source >= 0) transfer.in = meeting.In(part, source);
      transfer.out = meeting.Out(part, rank);
      transfer.rows = &meeting.spec.blocks[part].rows;
      transfer.is_whole = true;
      work.Add(transfer);
    }
  }
  return "";
}

OperationStats stats;

}  // namespace

const Operation kCollectivePermute = {"collective_permute", Plan, stats};

}  // namespace strata::core
