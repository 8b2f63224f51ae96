// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Block r of every operand, reduced over all ranks in rank order, becomes the result of rank r.
#include "core/operation.h"

namespace strata::core {
namespace {

std::string Plan(const Meeting& meeting, Work& work) {
  const std::string error = CheckBlocks(meeting, meeting.num_ranks, 1);
  if (!error.empty()) return error;
  for (size_t part = 0; part < meeting.in_parts.size(); ++part) {
    const DType dtype = meeting.in_parts[part].dtype;
    const Block& block = meeting.spec.blocks[part];
    const ReduceFn reduce = Kernels().find_reduce(dtype, meeting.spec.kind);
    if (reduce == nullptr) return NoMeaning(meeting.spec.kind, dtype);
    for (int rank = 0; rank < meeting.num_ranks; ++rank) {
      Transfer transfer;
      transfer.reduce = reduce;
      transfer.bit_width = BitWidth(dtype);
      transfer.num_in = meeting.num_ranks;
      transfer.num_out = 1;
      transfer.in = meeting.In(part);
      transfer.out = meeting.Out(part, rank);
      transfer.in_offset = rank * block.in_step;
      transfer.rows = &block.rows;
      transfer.is_whole = true;
      work.Add(transfer);
    }
  }
  return "";
}

OperationStats stats;

}  // namespace

const Operation kReduceScatter = {"reduce_scatter", Plan, stats};

}  // namespace strata::core
