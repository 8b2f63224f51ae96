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
// work (with helpers when it is large) and completes everybody.
#ifndef STRATA_CORE_COLLECTIVE_H_
#define STRATA_CORE_COLLECTIVE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/completion.h"
#include "core/lanes.h"
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
};

// What is wrong with a spec; empty if nothing.
std::string CheckSpec(const CollectiveSpec& spec);

// What one rank brings. The arrays, one element a buffer, are read during Arrive() only.
struct Arrival {
  int num_in, num_out;
  const Part *in_parts, *out_parts;
  const void* const* in;
  void* const* out;
  Completion completion;
};

// XLA's intra-op pool. Valid during the call that it is passed to.
struct ThreadPool {
  void* pool = nullptr;
  void (*schedule)(void* pool, std::function<void()> task) = nullptr;
};

class Collective {
 public:
  // Checks the spec; null and an error text when it is malformed.
  static std::unique_ptr<Collective> Create(CollectiveSpec spec, std::string* error);
  ~Collective();
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  // Posts the arrival of `partition` in run `run_id`. The completion runs exactly once, maybe
  // before this returns. Inputs are read and outputs written until then, never after.
  void Arrive(int64_t partition, int64_t run_id, Arrival arrival, const ThreadPool& pool);

  // Fails every open use whose first rank arrived at or before `tick`; returns how many. `why`
  // makes the error from the waiting and missing ranks that it is given in words.
  int FailOpen(uint32_t tick, FailureCode code,
               const std::function<std::string(const std::string& who)>& why);
  // Collects a line for each open use older than `tick` that was not reported before.
  void ReportOpen(uint32_t tick, std::vector<std::string>* lines);
  int NumOpen();

 private:
  struct Use;
  struct Group;

  explicit Collective(CollectiveSpec spec);
  void Work(Group& group, std::shared_ptr<Use> use, int rank, const ThreadPool& pool);
  void CompleteAll(std::shared_ptr<Use> use, Group& group, int own_rank, bool reusable) const;
  void Fail(Use& use, const Group& group, std::shared_ptr<const Failure> failure);
  void Count(const Use& use, int num_ranks) const;
  std::string Title() const;
  std::string Who(const Use& use, const Group& group) const;

  const CollectiveSpec spec_;
  std::vector<int> group_of_, rank_of_;  // by partition; -1: in no group
  std::vector<std::unique_ptr<Group>> groups_;
};

// Number of open uses, and failing them, over all live Collectives.
int NumOpenUses();
int FailOpenUses(uint32_t tick, FailureCode code,
                 const std::function<std::string(const std::string& who)>& why);
void ReportOpenUses(uint32_t tick, std::vector<std::string>* lines);

}  // namespace strata::core

#endif  // STRATA_CORE_COLLECTIVE_H_
