// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// What the operations have in common: each is a plan, a function that says which bytes of which
// rank go where once all ranks have arrived. Everything else (meeting, threads, completion) is the
// same for all. To add one: a file with its plan, and an entry in handlers/collective.cc.
#ifndef STRATA_CORE_OPERATION_H_
#define STRATA_CORE_OPERATION_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "core/types.h"
#include "core/work.h"

namespace strata::core {

// One buffer of a call, operand or result: the same on all ranks.
struct Part {
  DType dtype;
  int64_t num_elements;
};
inline bool operator==(const Part& a, const Part& b) {
  return a.dtype == b.dtype && a.num_elements == b.num_elements;
}

// How the block that one rank sends to, or gets from, another lies in an operand and in a result.
struct Block {
  Rows rows;
  int64_t in_step = 0, out_step = 0;  // elements from the block of one rank to that of the next
};

// What is known when an executable is built: the attributes of a call beyond its identity.
struct OperationSpec {
  ReduceKind kind = ReduceKind::kSum;
  std::vector<Block> blocks;  // one a buffer; none for those that are not cut
  bool is_tuple = false;      // all_to_all: operand i, result i are those of rank i
  int64_t in_rows = 0, out_rows = 0, row_elements = 0;  // ragged_all_to_all
};

// One meeting of a group's ranks. Pointers are laid out [part][rank], as kernels take them.
struct Meeting {
  const OperationSpec& spec;
  int num_ranks;
  const std::vector<int>& sources;  // collective_permute: by rank, whose operand it gets; -1: none
  const std::vector<Part>& in_parts;
  const std::vector<Part>& out_parts;
  const void* const* in;
  void* const* out;  // null: of a rank that another process takes care of

  const void* const* In(size_t part, int rank = 0) const { return in + part * num_ranks + rank; }
  void* const* Out(size_t part, int rank = 0) const { return out + part * num_ranks + rank; }
};

// Counters of all calls since the library was loaded.
struct OperationStats {
  std::atomic<int64_t> calls{0};             // ranks that arrived in finished operations
  std::atomic<int64_t> operations{0};        // meetings of all ranks
  std::atomic<int64_t> buffers{0};           // operands of one rank, summed over operations
  std::atomic<int64_t> bytes{0};             // operand bytes of all ranks
  std::atomic<int64_t> written_bytes{0};     // stored to results of all ranks
  std::atomic<int64_t> registered_bytes{0};  // of `bytes`: operand and result both in the arena
  std::atomic<int64_t> across{0};            // of `operations`: with ranks in other processes
  std::atomic<int64_t> mailed{0};        // of `across`: with operands that went through a mailbox
  std::atomic<int64_t> staged_bytes{0};  // of `bytes`: copied to where other processes can read
  std::atomic<int64_t> failed{0};        // operations that ended with an error
};

struct Operation {
  const char* name;
  // Adds to `work` every transfer of the meeting, no two of which write the same bytes. Returns an
  // error text, empty if all is well.
  std::string (*plan)(const Meeting& meeting, Work& work);
  OperationStats& stats;
};

extern const Operation kAllReduce, kAllGather, kReduceScatter, kAllToAll, kCollectivePermute,
    kCollectiveBroadcast, kRaggedAllToAll;

// Error text if the blocks of `count` ranks, `in_count` or `out_count` of them side by side, do not
// fit into the buffers; empty if they do. For operations with as many operands as results.
std::string CheckBlocks(const Meeting& meeting, int in_count, int out_count);

// Error text for a reduction that a type has not.
std::string NoMeaning(ReduceKind kind, DType dtype);

// Makes ragged_all_to_all check its offsets and sizes, which costs a pass over them.
void SetRaggedChecks(bool on);

}  // namespace strata::core

#endif  // STRATA_CORE_OPERATION_H_
