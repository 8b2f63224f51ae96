// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Every element of every operand, reduced over all ranks in rank order and stored to all of them.
#include "core/operation.h"

namespace strata::core {
namespace {

std::string Plan(const Meeting& meeting, Work& work) {
  const std::string error = CheckBlocks(meeting, 1, 1);
  if (!error.empty()) return error;
  for (size_t part = 0; part < meeting.in_parts.size(); ++part) {
    const DType dtype = meeting.in_parts[part].dtype;
    const ReduceFn reduce = Kernels().find_reduce(dtype, meeting.spec.kind);
    if (reduce == nullptr) return NoMeaning(meeting.spec.kind, dtype);
    Transfer transfer;
    transfer.reduce = reduce;
    transfer.bit_width = BitWidth(dtype);
    transfer.num_in = transfer.num_out = meeting.num_ranks;
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

const Operation kAllReduce = {"all_reduce", Plan, stats};

}  // namespace strata::core
