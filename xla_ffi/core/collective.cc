// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/collective.h"

#include <algorithm>
#include <deque>
#include <set>

#include "core/alloc_hook.h"
#include "core/watchdog.h"
#include "platform/threads.h"

namespace strata::core {
namespace {

// Operations up to this many bytes of all ranks are done by the last rank alone: that takes about
// 60 us (2 ranks of 1 MiB, 2-core host), no more than waking another thread.
constexpr int64_t kAloneBytes = 2 << 20;

// Failed uses of a group that are remembered so that ranks which come late learn of it at once. A
// rank that raised never comes; its run is forgotten when this many later ones failed.
constexpr size_t kMaxFailedUses = 8;

// Runs of which a group remembers how often its operation began. A device runs one after the other.
constexpr size_t kMaxRuns = 64;

struct Registry {
  std::mutex mu;  // guards all; held while the watchdog looks through it
  std::set<Collective*> all;
  const int64_t process_id = platform::ProcessId();
};
Registry& GetRegistry() {
  static Registry& registry = *new Registry;  // leaked: the watchdog reads it until exit
  return registry;
}

uint64_t Hash(uint64_t hash, uint64_t value) {  // FNV-1a over the bytes of a number
  for (int i = 0; i < 8; ++i) hash = (hash ^ (value >> (8 * i) & 0xff)) * 0x100000001b3;
  return hash;
}

uint64_t Hash(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

std::string Describe(const Part* parts, size_t num_parts) {
  std::string text;
  for (size_t i = 0; i < num_parts && i < 4; ++i) {
    text += (i > 0 ? ", " : "") + std::string(Name(parts[i].dtype)) + "[" +
            std::to_string(parts[i].num_elements) + "]";
  }
  if (num_parts > 4) text += ", ... (" + std::to_string(num_parts) + " buffers)";
  return text;
}

}  // namespace

// One meeting of a group's ranks. Pointers are laid out [part][rank], as kernels take them.
struct Collective::Use {
  int64_t run_id = 0;
  Launches::Number launch{};
  uint32_t first_tick = 0;  // when the first rank arrived
  bool reported = false;
  int num_arrived = 0;
  std::vector<Part> in_parts, out_parts;
  std::vector<const void*> in;
  std::vector<void*> out;
  std::vector<Completion> completions;  // by rank
  std::vector<bool> arrived;            // by rank; a completion is gone once it ran
  std::shared_ptr<const Failure> failure;
  std::shared_ptr<ProcessMeeting> meeting;  // once all ranks of this process are here
  core::Work work;

  void Begin(int64_t run, const Arrival& first, int num_ranks) {
    run_id = run;
    first_tick = Watchdog::Now();
    reported = false;
    num_arrived = 0;
    in_parts.assign(first.in_parts, first.in_parts + first.num_in);
    out_parts.assign(first.out_parts, first.out_parts + first.num_out);
    in.resize(in_parts.size() * num_ranks);
    out.resize(out_parts.size() * num_ranks);
    completions.resize(num_ranks);
    arrived.assign(num_ranks, false);
  }

  bool IsLike(const Arrival& other) const {
    return std::equal(in_parts.begin(), in_parts.end(), other.in_parts,
                      other.in_parts + other.num_in) &&
           std::equal(out_parts.begin(), out_parts.end(), other.out_parts,
                      other.out_parts + other.num_out);
  }
};

// The ranks of this process are numbered among themselves, which for most groups is among all.
struct Collective::Group {
  std::vector<int64_t> devices;  // by rank of this process
  std::vector<Lane*> lanes;      // by rank of this process
  std::vector<int> sources;      // by rank of all, see Meeting
  ProcessGroup processes;        // where the group has ranks elsewhere, else without slots
  bool across() const { return !processes.slots.empty(); }

  std::mutex mu;                            // guards all below, and a use until all ranks arrived
  std::vector<std::shared_ptr<Use>> uses;   // open or failed, oldest first
  std::vector<std::shared_ptr<Use>> spare;  // done, for the next ones: a call need not allocate
  // Uses that began in the latest runs, where across: what tells the turns of a loop apart.
  struct Turns {
    int64_t run_id;
    uint32_t num_uses;
  };
  std::deque<Turns> turns;

  uint32_t NextTurn(int64_t run_id) {
    for (auto it = turns.rbegin(); it != turns.rend(); ++it) {
      if (it->run_id == run_id) return it->num_uses++;
    }
    if (turns.size() == kMaxRuns) turns.pop_front();
    turns.push_back({run_id, 1});
    return 0;
  }
};

std::unique_ptr<Collective> Collective::Create(CollectiveSpec spec, Fabric* fabric,
                                               std::string* error) {
  *error = CheckSpec(spec);
  for (const auto& group : spec.groups) {
    for (int64_t partition : group) {
      if (!error->empty()) break;
      const int64_t device = spec.devices[partition], first = spec.devices[group[0]];
      if (device >> kProcessShift == first >> kProcessShift) continue;
      if (fabric == nullptr) {
        *error = "a group with devices " + std::to_string(first) + " and " +
                 std::to_string(device) +
                 " is in two processes, which this process has not joined; call "
                 "strata_jax.init() after jax.distributed.initialize() in every process before "
                 "the program is loaded";
      } else if ((fabric->SlotOf(device) < 0) != (fabric->SlotOf(first) < 0)) {
        *error = "a group with devices " + std::to_string(first) + " and " +
                 std::to_string(device) + " is on two hosts; compile the program again";
      }
    }
  }
  if (!error->empty()) return nullptr;
  spec.label = std::string(spec.operation->name) + " " + spec.name + " (operation " +
               std::to_string(spec.op_index) + ") in " + spec.module_name;
  spec.operation_id = static_cast<int32_t>(Hash(spec.operation->name));
  return std::unique_ptr<Collective>(new Collective(std::move(spec), fabric));
}

Collective::Collective(CollectiveSpec spec, Fabric* fabric)
    : spec_(std::move(spec)),
      fabric_(fabric),
      group_of_(spec_.devices.size(), -1),
      rank_of_(spec_.devices.size(), -1) {
  uint64_t program = Hash(spec_.module_name);
  for (int64_t device : spec_.devices) program = Hash(program, static_cast<uint64_t>(device));
  if (fabric_ != nullptr) launches_ = &fabric_->LaunchesOf(program);
  for (size_t g = 0; g < spec_.groups.size(); ++g) {
    const auto& partitions = spec_.groups[g];
    auto group = std::make_unique<Group>();
    if (!spec_.sources.empty()) {
      group->sources = spec_.sources[g];
    } else {
      group->sources.assign(partitions.size(), -1);
    }
    ProcessGroup processes;
    processes.num_ranks = static_cast<int>(partitions.size());
    for (size_t rank = 0; rank < partitions.size(); ++rank) {
      const int64_t partition = partitions[rank], device = spec_.devices[partition];
      processes.devices.push_back(device);
      if (fabric_ != nullptr) {
        const int slot = fabric_->SlotOf(device);
        auto& slots = processes.slots;
        const size_t at = std::find(slots.begin(), slots.end(), slot) - slots.begin();
        if (at == slots.size()) {
          slots.push_back(slot);
          processes.ranks.emplace_back();
          if (slot >= 0) processes.mask |= uint64_t{1} << slot;
          if (slot == fabric_->slot()) processes.own = static_cast<int>(at);
        }
        processes.ranks[at].push_back(static_cast<int>(rank));
        if (slot != fabric_->slot()) continue;
      }
      group_of_[partition] = static_cast<int>(groups_.size());
      rank_of_[partition] = static_cast<int>(group->devices.size());
      group->devices.push_back(device);
      group->lanes.push_back(&LaneOf(device));
    }
    if (processes.slots.size() > 1) {
      processes.key = Hash(Hash(program, static_cast<uint64_t>(spec_.op_index)),
                           static_cast<uint64_t>(partitions[0]));
      group->processes = std::move(processes);
    }
    groups_.push_back(std::move(group));
  }
  Registry& registry = GetRegistry();
  std::lock_guard<std::mutex> lock(registry.mu);
  registry.all.insert(this);
}

Collective::~Collective() {
  Registry& registry = GetRegistry();
  std::lock_guard<std::mutex> lock(registry.mu);
  registry.all.erase(this);
}

void Collective::Arrive(int64_t partition, int64_t run_id, Arrival arrival,
                        const ThreadPool& pool) {
  if (partition < 0 || partition >= static_cast<int64_t>(group_of_.size()) ||
      group_of_[partition] < 0) {
    const Failure failure{FailureCode::kInternal, "partition " + std::to_string(partition) +
                                                      " is in no replica group of " + spec_.label +
                                                      " with devices of this process"};
    arrival.completion.Run(&failure);
    return;
  }
  Group& group = *groups_[group_of_[partition]];
  const int rank = rank_of_[partition], num_ranks = static_cast<int>(group.devices.size());
  std::shared_ptr<Use> use;
  std::shared_ptr<const Failure> failure;
  std::shared_ptr<ProcessMeeting> meeting;
  bool is_last = false, fail_others = false;
  {
    std::lock_guard<std::mutex> lock(group.mu);
    auto it = std::find_if(group.uses.begin(), group.uses.end(),
                           [&](const auto& open) { return open->run_id == run_id; });
    if (it == group.uses.end()) {
      if (group.spare.empty()) {
        use = std::make_shared<Use>();
      } else {
        use = std::move(group.spare.back());
        group.spare.pop_back();
      }
      use->Begin(run_id, arrival, num_ranks);
      // Also where nobody else takes part: all processes count all runs.
      if (launches_ != nullptr) use->launch = launches_->Of(run_id);
      group.uses.push_back(use);
      it = group.uses.end() - 1;
    } else {
      use = *it;
    }
    if (use->arrived[rank]) {
      failure = std::make_shared<Failure>(
          Failure{FailureCode::kInternal, spec_.name + " in " + spec_.module_name + ": device " +
                                              std::to_string(group.devices[rank]) +
                                              " arrived twice in run " + std::to_string(run_id) +
                                              " before the others did"});
    } else {
      use->arrived[rank] = true;
      is_last = ++use->num_arrived == num_ranks;
      if (use->failure == nullptr && group.across() && fabric_->forked()) {
        failure = use->failure = std::make_shared<Failure>(
            Failure{FailureCode::kInternal,
                    spec_.label + ": this process was forked, and takes no part in operations with "
                                  "others; only the process that called init() does"});
      } else if (use->failure == nullptr && group.across() &&
                 (fabric_->dead() & group.processes.mask) != 0) {
        // After the use can be found: who marks a process dead later fails this use.
        failure = use->failure = DeadFailure(group);
        fail_others = true;
      } else if (use->failure != nullptr) {
        failure = use->failure;
      } else if (!use->IsLike(arrival)) {
        failure = use->failure = std::make_shared<Failure>(
            Failure{FailureCode::kInvalidArgument,
                    spec_.label + ": device " + std::to_string(group.devices[rank]) + " brings " +
                        Describe(arrival.in_parts, arrival.num_in) + " for " +
                        Describe(arrival.out_parts, arrival.num_out) + ", the ranks before it " +
                        Describe(use->in_parts.data(), use->in_parts.size()) + " for " +
                        Describe(use->out_parts.data(), use->out_parts.size()) +
                        "; all ranks must bring the same shapes and dtypes. Run the same program "
                        "with the same shapes on every device"});
        fail_others = true;
      } else {
        for (int part = 0; part < arrival.num_in; ++part) {
          use->in[part * num_ranks + rank] = arrival.in[part];
        }
        for (int part = 0; part < arrival.num_out; ++part) {
          use->out[part * num_ranks + rank] = arrival.out[part];
        }
        use->completions[rank] = std::move(arrival.completion);
      }
      if (is_last && (failure != nullptr || !group.across())) {
        group.uses.erase(it);
      } else if (is_last) {
        Meet(group, use, run_id, rank);
        meeting = use->meeting;  // it may be failed, and gone, as soon as the lock is
      }
    }
  }
  if (failure != nullptr) {
    if (fail_others) Fail(*use, group, failure);
    arrival.completion.Run(failure.get());
  } else if (meeting != nullptr) {
    use.reset();
    meeting->Begin(pool);  // after it ends this object may be gone
  } else if (is_last) {
    Work(group, std::move(use), rank, pool);
  }
}

// All ranks of this process are here; the group's lock is held.
void Collective::Meet(Group& group, const std::shared_ptr<Use>& use, int64_t run_id, int rank) {
  uint64_t key = Hash(Hash(group.processes.key, use->launch.executable), use->launch.run);
  key = Hash(key, group.NextTurn(run_id));
  use->meeting = std::make_shared<ProcessMeeting>(
      *fabric_, spec_, group.processes, group.sources, key == 0 ? 1 : key, use->in_parts,
      use->out_parts, use->in, use->out,
      [this, &group, use, rank](auto failure, ProcessMeeting::Caller caller) {
        End(group, use, std::move(failure), rank, caller);
      });
}

// A meeting across processes has ended.
void Collective::End(Group& group, std::shared_ptr<Use> use, std::shared_ptr<const Failure> failure,
                     int last_rank, ProcessMeeting::Caller caller) {
  {
    std::lock_guard<std::mutex> lock(group.mu);
    group.uses.erase(std::find(group.uses.begin(), group.uses.end(), use));
    use->meeting = nullptr;
  }
  if (failure != nullptr) {
    Fail(*use, group, std::move(failure));
    return;
  }
  if (caller == ProcessMeeting::Caller::kRank) {
    CompleteAll(std::move(use), group, last_rank, false);
    return;
  }
  // The engine has other work to do than a program's rest; a short one of a single rank costs it
  // less than waking that rank's lane. Others may hold locks.
  if (caller == ProcessMeeting::Caller::kEngine && spec_.finish == Finish::kInline &&
      use->completions.size() == 1) {
    use->completions[0].Run(nullptr);
    return;
  }
  for (size_t r = 0; r < use->completions.size(); ++r) {
    group.lanes[r]->Push(std::move(use->completions[r]), nullptr);
  }
}

std::shared_ptr<const Failure> Collective::DeadFailure(const Group& group) const {
  return std::make_shared<Failure>(
      Failure{FailureCode::kCancelled,
              spec_.label + ": " + fabric_->WhyDead(group.processes.mask, group.processes.devices) +
                  ". Operations with it cannot run any more; start the job again"});
}

// Runs on the thread of the last rank to arrive; the use is this thread's alone until helpers are
// called in.
void Collective::Work(Group& group, std::shared_ptr<Use> use, int rank, const ThreadPool& pool) {
  const int num_ranks = static_cast<int>(group.devices.size());
  use->work.Clear();
  const std::string error =
      spec_.operation->plan({spec_.details, num_ranks, group.sources, use->in_parts, use->out_parts,
                             use->in.data(), use->out.data()},
                            use->work);
  if (!error.empty()) {
    Fail(*use, group,
         std::make_shared<Failure>(
             Failure{FailureCode::kInvalidArgument, spec_.label + ": " + error}));
    return;
  }
  use->work.Plan();
  Count(*use, num_ranks);

  int64_t num_helpers = 0;
  if (use->work.moved_bytes() > kAloneBytes) {
    num_helpers = std::min<int64_t>(NumThreads() - 1, use->work.num_units() - 1);
    for (int64_t i = 0; i < num_helpers; ++i) {
      pool.schedule(pool.pool, [this, &group, use] {
        if (use->work.Run()) CompleteAll(use, group, -1, false);
      });
    }
  }
  // When a helper finishes last, it completes this rank too: a future that its handler already
  // returned, or is about to.
  if (use->work.Run()) CompleteAll(std::move(use), group, rank, num_helpers == 0);
}

void Collective::Count(const Use& use, int num_ranks) const {
  OperationStats& stats = spec_.operation->stats;
  const Arena* arena = AllocatorArena();
  int64_t bytes = 0, registered = 0;
  for (size_t part = 0; part < use.in_parts.size(); ++part) {
    const Part& in = use.in_parts[part];
    const int64_t num_bytes = (in.num_elements * BitWidth(in.dtype) + 7) / 8;
    bytes += num_bytes * num_ranks;
    for (int r = 0; arena != nullptr && part < use.out_parts.size() && r < num_ranks; ++r) {
      const size_t at = part * num_ranks + r;
      if (arena->Contains(use.in[at]) && arena->Contains(use.out[at])) registered += num_bytes;
    }
  }
  stats.calls.fetch_add(num_ranks, std::memory_order_relaxed);
  stats.operations.fetch_add(1, std::memory_order_relaxed);
  stats.buffers.fetch_add(static_cast<int64_t>(use.in_parts.size()), std::memory_order_relaxed);
  stats.bytes.fetch_add(bytes, std::memory_order_relaxed);
  stats.written_bytes.fetch_add(use.work.written_bytes(), std::memory_order_relaxed);
  stats.registered_bytes.fetch_add(registered, std::memory_order_relaxed);
}

// `own_rank` is the rank whose handler is running this, or -1. `reusable` says that no helper has,
// or will ever have, to do with the use. After the last completion the executable, and with it
// this object, may be gone; own_rank's comes last.
void Collective::CompleteAll(std::shared_ptr<Use> use, Group& group, int own_rank,
                             bool reusable) const {
  const int num_ranks = static_cast<int>(use->completions.size());
  const Finish finish = spec_.finish;
  for (int r = 0; r < num_ranks; ++r) {
    if (r == own_rank) continue;
    switch (finish) {
      case Finish::kInline:
        use->completions[r].Run(nullptr);
        break;
      case Finish::kLane:
        group.lanes[r]->Push(std::move(use->completions[r]), nullptr);
        break;
    }
  }
  if (own_rank < 0) return;
  Completion own = std::move(use->completions[own_rank]);
  if (reusable) {
    std::lock_guard<std::mutex> lock(group.mu);
    group.spare.push_back(std::move(use));
  }
  own.Run(nullptr);  // this rank's program goes on when its handler returns
}

void Collective::Fail(Use& use, const Group& group, std::shared_ptr<const Failure> failure) {
  spec_.operation->stats.failed.fetch_add(1, std::memory_order_relaxed);
  for (size_t r = 0; r < use.completions.size(); ++r) {
    if (use.completions[r]) group.lanes[r]->Push(std::move(use.completions[r]), failure);
  }
}

std::string Collective::Who(const Use& use, const Group& group) const {
  std::string here, missing;
  int num_missing = 0;
  for (size_t r = 0; r < use.arrived.size(); ++r) {
    std::string& list = use.arrived[r] ? here : missing;
    num_missing += use.arrived[r] ? 0 : 1;
    list +=
        (list.empty() ? "" : ", ") +
        (group.across() ? std::to_string(group.devices[r])
                        : std::to_string(r) + " (device " + std::to_string(group.devices[r]) + ")");
  }
  const std::string what =
      spec_.label + ", " + Describe(use.in_parts.data(), use.in_parts.size()) + ": ";
  if (!group.across()) return what + "rank " + here + " waits for rank " + missing;
  const ProcessGroup& all = group.processes;
  if (use.meeting == nullptr) {
    return what + "in " + fabric_->Title(fabric_->slot()) + " device " + here +
           " waits for device " + missing;
  }
  std::string ranks;
  for (int rank : all.ranks[all.own]) {
    ranks += (ranks.empty() ? "rank " : ", ") + std::to_string(rank) + " (device " +
             std::to_string(all.devices[rank]) + ")";
  }
  missing = use.meeting->Missing();
  return what + ranks + " of " + fabric_->Title(fabric_->slot()) + " waits for " +
         (missing.empty() ? "the work of " + std::to_string(all.slots.size()) + " processes"
                          : missing);
}

int Collective::FailOpen(const Which& which, FailureCode code, const Why& why) {
  int num_failed = 0;
  for (auto& group : groups_) {
    std::vector<std::shared_ptr<Use>> failed;
    std::vector<std::shared_ptr<ProcessMeeting>> meetings;
    std::vector<std::shared_ptr<const Failure>> failures;
    {
      std::lock_guard<std::mutex> lock(group->mu);
      for (auto& use : group->uses) {
        if (use->failure != nullptr || !which(use->first_tick, group->across())) continue;
        auto failure =
            std::make_shared<Failure>(Failure{code, why(Who(*use, *group), group->across())});
        if (use->meeting != nullptr) {
          meetings.push_back(use->meeting);
          failures.push_back(failure);
        } else {
          use->failure = failure;
          failed.push_back(use);
        }
      }
      // Only failed uses count: an open one is never dropped.
      size_t num_remembered = std::count_if(group->uses.begin(), group->uses.end(),
                                            [](const auto& u) { return u->failure != nullptr; });
      for (auto it = group->uses.begin(); num_remembered > kMaxFailedUses;) {
        if ((*it)->failure != nullptr) {
          it = group->uses.erase(it);
          --num_remembered;
        } else {
          ++it;
        }
      }
    }
    for (auto& use : failed) Fail(*use, *group, use->failure);
    // Outside the lock: it may end, which takes the lock.
    for (size_t i = 0; i < meetings.size(); ++i) num_failed += meetings[i]->Fail(failures[i]);
    num_failed += static_cast<int>(failed.size());
  }
  return num_failed;
}

int Collective::FailOpenOfDead() {
  if (fabric_ == nullptr) return 0;
  int num_touching = 0;
  for (auto& group : groups_) {
    if (!group->across() || (fabric_->dead() & group->processes.mask) == 0) continue;
    const auto failure = DeadFailure(*group);
    std::vector<std::shared_ptr<Use>> failed;
    std::vector<std::shared_ptr<ProcessMeeting>> meetings;
    {
      std::lock_guard<std::mutex> lock(group->mu);
      for (auto& use : group->uses) {
        if (use->meeting != nullptr) {
          meetings.push_back(use->meeting);
        } else if (use->failure == nullptr) {
          use->failure = failure;
          failed.push_back(use);
        }
      }
    }
    for (auto& use : failed) Fail(*use, *group, failure);
    for (auto& meeting : meetings) num_touching += meeting->FailOfDead(failure);
  }
  return num_touching;
}

void Collective::ReportOpen(uint32_t tick, std::vector<std::string>* lines) {
  for (auto& group : groups_) {
    std::lock_guard<std::mutex> lock(group->mu);
    for (auto& use : group->uses) {
      if (use->failure != nullptr || use->reported) continue;
      if (static_cast<int32_t>(tick - use->first_tick) < 0) continue;
      use->reported = true;
      lines->push_back(Who(*use, *group));
    }
  }
}

int Collective::NumOpen() {
  int num_open = 0;
  for (auto& group : groups_) {
    std::lock_guard<std::mutex> lock(group->mu);
    for (auto& use : group->uses) num_open += use->failure == nullptr ? 1 : 0;
  }
  return num_open;
}

int NumOpenUses() {
  Registry& registry = GetRegistry();
  // In a forked child nothing runs, and a thread that is not there may have had a lock.
  if (platform::ProcessId() != registry.process_id) return 0;
  std::lock_guard<std::mutex> lock(registry.mu);
  int num_open = 0;
  for (Collective* collective : registry.all) num_open += collective->NumOpen();
  return num_open;
}

int FailOpenUses(const Which& which, FailureCode code, const Why& why) {
  Registry& registry = GetRegistry();
  std::lock_guard<std::mutex> lock(registry.mu);
  int num_failed = 0;
  for (Collective* collective : registry.all) num_failed += collective->FailOpen(which, code, why);
  return num_failed;
}

int FailOpenUsesOfDead() {
  Registry& registry = GetRegistry();
  std::lock_guard<std::mutex> lock(registry.mu);
  int num_touching = 0;
  for (Collective* collective : registry.all) num_touching += collective->FailOpenOfDead();
  return num_touching;
}

void ReportOpenUses(uint32_t tick, std::vector<std::string>* lines) {
  Registry& registry = GetRegistry();
  std::lock_guard<std::mutex> lock(registry.mu);
  for (Collective* collective : registry.all) collective->ReportOpen(tick, lines);
}

}  // namespace strata::core
