// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// What one custom call means.
#ifndef STRATA_CORE_COLLECTIVE_SPEC_H_
#define STRATA_CORE_COLLECTIVE_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/operation.h"

namespace strata::core {

// On which thread the continuations of the other ranks run. Chosen by the compile hook, which
// knows what the program does next. The numbers are part of the custom call's contract.
enum class Finish : uint8_t {
  kInline,  // the last rank's: little work follows and nothing in the program blocks
  kLane,    // each device's own lane: much work follows, or something in the program may block
};

// What one custom call means; made when its executable is built or loaded.
struct CollectiveSpec {
  const Operation* operation = nullptr;
  OperationSpec details;
  Finish finish = Finish::kLane;
  std::vector<std::vector<int64_t>> groups;  // logical partition ids in rank order
  std::vector<std::vector<int>> sources;     // for each of these, see Meeting; or none
  std::vector<int64_t> devices;              // partition id -> global device id
  int64_t op_index = 0;                      // in its module
  int64_t fingerprint = 0;                   // of the module's collectives
  std::string module_name, name;             // for messages
  // Written by Collective::Create(): the operation in words, and a number for its kind.
  std::string label;
  int32_t operation_id = 0;
};

// What is wrong with a spec; empty if nothing.
std::string CheckSpec(const CollectiveSpec& spec);

}  // namespace strata::core

#endif  // STRATA_CORE_COLLECTIVE_SPEC_H_
