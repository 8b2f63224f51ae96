// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Where the ranks of one operation meet.
//
// One Collective stands for one custom call of one executable in this process. All local devices
// share the executable, so the object itself is the (module, operation) part of the key that ranks
// meet at; the rest is the group and the run id. A rank has at most one call of an operation open
// in a run (a loop's next turn starts after this one's), so a group has at most one open use a run.
//
// Nothing here blocks on another rank. A rank posts its arrival; the last one to arrive does the
// work (with helpers when it is large) and completes everybody. Where a group has ranks in other
// processes, the last one to arrive here takes this process to a ProcessMeeting instead.
#ifndef STRATA_CORE_COLLECTIVE_H_
#define STRATA_CORE_COLLECTIVE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/collective_spec.h"
#include "core/completion.h"
#include "core/lanes.h"
#include "core/process_meeting.h"

namespace strata::core {

// What one rank brings. The arrays, one element a buffer, are read during Arrive() only.
struct Arrival {
  int num_in, num_out;
  const Part *in_parts, *out_parts;
  const void* const* in;
  void* const* out;
  Completion completion;
};

// By when the first rank arrived, and whether the group has ranks in other processes.
using Which = std::function<bool(uint32_t first_tick, bool across)>;
using Why = std::function<std::string(const std::string& who, bool across)>;

class Collective {
 public:
  // Checks the spec; null and an error text when it is malformed.
  static std::unique_ptr<Collective> Create(CollectiveSpec spec, Fabric* fabric,
                                            std::string* error);
  ~Collective();
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  // Posts the arrival of `partition` in run `run_id`. The completion runs exactly once, maybe
  // before this returns. Inputs are read and outputs written until then, never after.
  void Arrive(int64_t partition, int64_t run_id, Arrival arrival, const ThreadPool& pool);

  // Fails every open use that `which` chooses; returns how many. `why` makes the error from the
  // waiting and missing ranks that it is given in words.
  int FailOpen(const Which& which, FailureCode code, const Why& why);
  // Fails every open use with ranks in processes that are dead, or lets it end where it can.
  // Returns how many may still touch their memory.
  int FailOpenOfDead();
  // Collects a line for each open use older than `tick` that was not reported before.
  void ReportOpen(uint32_t tick, std::vector<std::string>* lines);
  int NumOpen();

 private:
  struct Use;
  struct Group;

  Collective(CollectiveSpec spec, Fabric* fabric);
  void Work(Group& group, std::shared_ptr<Use> use, int rank, const ThreadPool& pool);
  void Meet(Group& group, const std::shared_ptr<Use>& use, int64_t run_id, int rank);
  void End(Group& group, std::shared_ptr<Use> use, std::shared_ptr<const Failure> failure,
           int last_rank, ProcessMeeting::Caller caller);
  void CompleteAll(std::shared_ptr<Use> use, Group& group, int own_rank, bool reusable) const;
  void Fail(Use& use, const Group& group, std::shared_ptr<const Failure> failure);
  void Count(const Use& use, int num_ranks) const;
  std::shared_ptr<const Failure> DeadFailure(const Group& group) const;
  std::string Who(const Use& use, const Group& group) const;

  const CollectiveSpec spec_;
  Fabric* const fabric_;                 // null in a job of one process
  Launches* launches_ = nullptr;         // of the program; null as well
  std::vector<int> group_of_, rank_of_;  // by partition, among those here; -1: in no group
  std::vector<std::unique_ptr<Group>> groups_;
};

// Number of open uses, and failing them, over all live Collectives.
int NumOpenUses();
int FailOpenUses(const Which& which, FailureCode code, const Why& why);
// Those with ranks in processes of the fabric that are dead; returns how many may still touch their
// memory.
int FailOpenUsesOfDead();
void ReportOpenUses(uint32_t tick, std::vector<std::string>* lines);

}  // namespace strata::core

#endif  // STRATA_CORE_COLLECTIVE_H_
