// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// This process's part in one operation whose ranks are in several processes of a host.
//
// Once all its own ranks have arrived, a process posts a record on its board and looks for those of
// the others; whoever sees all of them knows every operand and result, makes the plan, which is the
// same for all, and works. There are two ways:
//
// * shared: every result is in memory that all can write. Units are claimed from common counters by
//   whoever has time, and the operation is done for all when the last unit is.
// * pull: each process writes the results of its own ranks, where one has a result that others
//   cannot write.
//
// Operands that others cannot read are copied first, small ones into a mailbox: those of an array
// that is too small for the arena, which is most of what one calls a message. What is in the arena
// is never copied; even 4 KiB take longer through a mailbox (2 threads on 2 cores: 16 KiB 3.8 us as
// it is, 6.7 us so; 64 KiB 6.2 and 51 us).
//
// Nobody waits inside here: Advance() does what can be done now. It is called by the rank that came
// last here, which looks again for a while, then by the engine whenever somebody rings, and by
// helpers.
//
// A process has left a meeting once none of its threads will touch the operands and results again.
// What it posted, and, after a failure, the results of its ranks, are kept until all others have
// left or are dead: a process that is stopped in the middle of a unit may write when it goes on.
#ifndef STRATA_CORE_PROCESS_MEETING_H_
#define STRATA_CORE_PROCESS_MEETING_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/collective_spec.h"
#include "core/completion.h"
#include "core/fabric.h"

namespace strata::core {

// The ranks of a group by process.
struct ProcessGroup {
  int num_ranks = 0;
  std::vector<int> slots;               // of its processes; the first one's counters are used
  std::vector<std::vector<int>> ranks;  // of each
  std::vector<int64_t> devices;         // by rank
  int own = -1;                         // which of the processes is this one
  uint64_t mask = 0;                    // of all slots
  uint64_t key = 0;                     // of program, operation and group
};

// XLA's intra-op pool. Valid during the call that it is passed to.
struct ThreadPool {
  void* pool = nullptr;
  void (*schedule)(void* pool, std::function<void()> task) = nullptr;
};

class ProcessMeeting : public std::enable_shared_from_this<ProcessMeeting> {
 public:
  // Whose thread it is: that of the rank that posted, the engine's, or another's.
  enum class Caller { kRank, kEngine, kOther };

  // Called once, by the thread that ends the meeting: `failure` is null on success.
  using OnEnd = std::function<void(std::shared_ptr<const Failure> failure, Caller caller)>;

  // `spec` and `group` must live until the meeting ends. Operands and results are laid out
  // [part][rank of this process].
  ProcessMeeting(Fabric& fabric, const CollectiveSpec& spec, const ProcessGroup& group,
                 const std::vector<int>& sources, uint64_t key, std::vector<Part> in_parts,
                 std::vector<Part> out_parts, std::vector<const void*> in, std::vector<void*> out,
                 OnEnd on_end);
  ProcessMeeting(const ProcessMeeting&) = delete;
  ProcessMeeting& operator=(const ProcessMeeting&) = delete;

  // Posts, works, and looks again while that is allowed; leaves the rest to the engine.
  void Begin(const ThreadPool& pool);

  // Does what can be done. True if something was.
  bool Advance(const ThreadPool* pool, Caller caller);

  // Ends it with an error, at once or as soon as this process's threads are out. False if it has
  // ended, or is about to.
  bool Fail(std::shared_ptr<const Failure> failure);

  // Ends it with an error where processes of its group are dead, unless all that is left is to read
  // what those had posted. True while threads here may still touch their memory.
  bool FailOfDead(std::shared_ptr<const Failure> failure);

  // Takes no lock.
  bool ended() const { return ended_.load(std::memory_order_acquire); }

  // After the end: gives up what was posted once all others have left or are dead. False if that
  // has to be tried again.
  bool TryReclaim();

  // "rank 1 (device 2048) of process 1 (pid 77)" and so on for all that have not posted, or else
  // have not done their part; empty once ended.
  std::string Missing();

 private:
  bool Post();
  void Stage(Record& record);
  bool Gather();
  std::string Mismatch(const Record& other, size_t process) const;
  std::shared_ptr<const Failure> Plan();
  std::shared_ptr<const Failure> GivenUp() const;
  bool Settle(std::unique_lock<std::mutex>& lock, Caller caller);
  bool OthersLeft() const;
  bool IsFinished() const;
  const Record& RecordOf(size_t process) const;
  void FailLocked(std::shared_ptr<const Failure> failure);
  void Count() const;
  std::string Ranks(size_t process) const;
  uint64_t Others() const { return group_mask_ & ~(uint64_t{1} << fabric_.slot()); }

  Fabric& fabric_;
  const CollectiveSpec* spec_;  // not after the end
  const ProcessGroup& group_;   // not after the end
  const std::vector<int>& sources_;
  const uint64_t key_;
  const uint64_t group_mask_;
  const std::vector<int> slots_;
  const size_t own_;
  const std::vector<Part> in_parts_, out_parts_;
  const std::vector<const void*> own_in_;
  const std::vector<void*> own_out_;

  std::mutex mu_;  // guards all below, but for the work while it runs
  OnEnd on_end_;
  int record_ = -1;           // on this process's board
  std::vector<int> records_;  // by process; -1: not seen yet
  char* mailbox_ = nullptr;
  std::vector<void*> staged_;
  std::vector<char*> held_;  // results that others may still write
  int64_t staged_bytes_ = 0;
  std::vector<const void*> in_;
  std::vector<void*> out_;
  Work work_;
  WorkCounters* counters_ = nullptr;  // of work that is shared
  WorkCounters local_counters_;       // of what is pulled
  bool all_here_ = false;             // all have posted, and the work is planned
  bool pull_ = false;                 // each writes its own results
  bool all_staged_ = true;            // nobody waits for others to have read
  bool exhausted_ = false;            // no unit is left to claim
  bool worked_ = false;               // this process saw the last unit done
  bool left_ = false, retired_ = false;
  std::atomic<bool> ended_{false};  // written under the lock
  int num_workers_ = 0;
  std::shared_ptr<const Failure> failure_;
};

}  // namespace strata::core

#endif  // STRATA_CORE_PROCESS_MEETING_H_
