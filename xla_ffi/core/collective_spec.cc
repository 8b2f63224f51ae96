// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/collective_spec.h"

#include <set>

namespace strata::core {
namespace {

std::string CheckSources(const CollectiveSpec& spec) {
  if (!spec.sources.empty() && spec.sources.size() != spec.groups.size()) {
    return "sources for " + std::to_string(spec.sources.size()) + " of " +
           std::to_string(spec.groups.size()) + " groups";
  }
  for (size_t g = 0; g < spec.sources.size(); ++g) {
    const int num_ranks = static_cast<int>(spec.groups[g].size());
    if (static_cast<int>(spec.sources[g].size()) != num_ranks) {
      return std::to_string(spec.sources[g].size()) + " sources in a group of " +
             std::to_string(num_ranks);
    }
    for (int source : spec.sources[g]) {
      if (source < -1 || source >= num_ranks) {
        return "source " + std::to_string(source) + " in a group of " + std::to_string(num_ranks);
      }
    }
  }
  return "";
}

}  // namespace

std::string CheckSpec(const CollectiveSpec& spec) {
  std::set<int64_t> seen;
  for (const auto& group : spec.groups) {
    if (group.empty()) return "an empty replica group";
    for (int64_t partition : group) {
      if (partition < 0 || partition >= static_cast<int64_t>(spec.devices.size())) {
        return "replica group member " + std::to_string(partition) + " of a program with " +
               std::to_string(spec.devices.size()) + " partitions";
      }
      if (!seen.insert(partition).second) {
        return "partition " + std::to_string(partition) + " is in two replica groups";
      }
    }
  }
  return CheckSources(spec);
}

}  // namespace strata::core
