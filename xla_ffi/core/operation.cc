// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/operation.h"

namespace strata::core {

std::string CheckBlocks(const Meeting& meeting, int in_count, int out_count) {
  const auto& blocks = meeting.spec.blocks;
  if (blocks.size() != meeting.in_parts.size() || blocks.size() != meeting.out_parts.size()) {
    return std::to_string(blocks.size()) + " blocks for " +
           std::to_string(meeting.in_parts.size()) + " operands and " +
           std::to_string(meeting.out_parts.size()) + " results";
  }
  for (size_t part = 0; part < blocks.size(); ++part) {
    const Block& block = blocks[part];
    if (block.rows.num_elements == 0) continue;
    const int64_t in_end = block.rows.in_extent + (in_count - 1) * block.in_step;
    const int64_t out_end = block.rows.out_extent + (out_count - 1) * block.out_step;
    const Part &in = meeting.in_parts[part], &out = meeting.out_parts[part];
    if (in_end > in.num_elements || out_end > out.num_elements || !(in.dtype == out.dtype)) {
      return "blocks end at element " + std::to_string(in_end) + " of an operand of " +
             Name(in.dtype) + "[" + std::to_string(in.num_elements) + "] and " +
             std::to_string(out_end) + " of a result of " + Name(out.dtype) + "[" +
             std::to_string(out.num_elements) + "]";
    }
  }
  return "";
}

std::string NoMeaning(ReduceKind kind, DType dtype) {
  return std::string(Name(kind)) + " of " + Name(dtype) + " has no meaning";
}

}  // namespace strata::core
