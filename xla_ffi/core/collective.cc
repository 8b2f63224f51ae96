// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/collective.h"

#include <algorithm>
#include <set>

#include "core/alloc_hook.h"
#include "core/watchdog.h"

namespace strata::core {
namespace {

// Operations up to this many bytes of all ranks are done by the last rank alone: that takes about
// 60 us (2 ranks of 1 MiB, 2-core host), no more than waking another thread.
constexpr int64_t kAloneBytes = 2 << 20;

// Failed uses of a group that are remembered so that ranks which come late learn of it at once. A
// rank that raised never comes; its run is forgotten when this many later ones failed.
constexpr size_t kMaxFailedUses = 8;

struct Registry {
  std::mutex mu;  // guards all; held while the watchdog looks through it
  std::set<Collective*> all;
};
Registry& GetRegistry() {
  static Registry& registry = *new Registry;  // leaked: the watchdog reads it until exit
  return registry;
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
  uint32_t first_tick = 0;  // when the first rank arrived
  bool reported = false;
  int num_arrived = 0;
  std::vector<Part> in_parts, out_parts;
  std::vector<const void*> in;
  std::vector<void*> out;
  std::vector<Completion> completions;  // by rank
  std::vector<bool> arrived;            // by rank; a completion is gone once it ran
  std::shared_ptr<const Failure> failure;
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

struct Collective::Group {
  std::vector<int64_t> partitions;          // by rank
  std::vector<int64_t> devices;             // by rank
  std::vector<Lane*> lanes;                 // by rank
  std::vector<int> sources;                 // by rank, see Meeting
  std::mutex mu;                            // guards all below, and a use until all ranks arrived
  std::vector<std::shared_ptr<Use>> uses;   // open or failed, oldest first
  std::vector<std::shared_ptr<Use>> spare;  // done, for the next ones: a call need not allocate
};

std::unique_ptr<Collective> Collective::Create(CollectiveSpec spec, std::string* error) {
  *error = CheckSpec(spec);
  if (!error->empty()) return nullptr;
  return std::unique_ptr<Collective>(new Collective(std::move(spec)));
}

Collective::Collective(CollectiveSpec spec)
    : spec_(std::move(spec)),
      group_of_(spec_.devices.size(), -1),
      rank_of_(spec_.devices.size(), -1) {
  for (size_t g = 0; g < spec_.groups.size(); ++g) {
    const auto& partitions = spec_.groups[g];
    auto group = std::make_unique<Group>();
    group->partitions = partitions;
    if (!spec_.sources.empty()) {
      group->sources = spec_.sources[g];
    } else {
      group->sources.assign(partitions.size(), -1);
    }
    for (int64_t partition : partitions) {
      group_of_[partition] = static_cast<int>(groups_.size());
      rank_of_[partition] = static_cast<int>(group->devices.size());
      group->devices.push_back(spec_.devices[partition]);
      group->lanes.push_back(&LaneOf(spec_.devices[partition]));
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
                                                      " is in no replica group of " + spec_.name +
                                                      " in " + spec_.module_name};
    arrival.completion.Run(&failure);
    return;
  }
  Group& group = *groups_[group_of_[partition]];
  const int rank = rank_of_[partition], num_ranks = static_cast<int>(group.partitions.size());
  std::shared_ptr<Use> use;
  std::shared_ptr<const Failure> failure;
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
      if (use->failure != nullptr) {
        failure = use->failure;
      } else if (!use->IsLike(arrival)) {
        failure = use->failure = std::make_shared<Failure>(
            Failure{FailureCode::kInvalidArgument,
                    Title() + ": device " + std::to_string(group.devices[rank]) + " brings " +
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
      if (is_last) group.uses.erase(it);
    }
  }
  if (failure != nullptr) {
    if (fail_others) Fail(*use, group, failure);
    arrival.completion.Run(failure.get());
  } else if (is_last) {
    Work(group, std::move(use), rank, pool);
  }
}

// Runs on the thread of the last rank to arrive; the use is this thread's alone until helpers are
// called in.
void Collective::Work(Group& group, std::shared_ptr<Use> use, int rank, const ThreadPool& pool) {
  const int num_ranks = static_cast<int>(group.partitions.size());
  use->work.Clear();
  const std::string error =
      spec_.operation->plan({spec_.details, num_ranks, group.sources, use->in_parts, use->out_parts,
                             use->in.data(), use->out.data()},
                            use->work);
  if (!error.empty()) {
    Fail(*use, group,
         std::make_shared<Failure>(Failure{FailureCode::kInvalidArgument, Title() + ": " + error}));
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

std::string Collective::Title() const {
  return std::string(spec_.operation->name) + " " + spec_.name + " in " + spec_.module_name;
}

std::string Collective::Who(const Use& use, const Group& group) const {
  std::string here, missing;
  int num_missing = 0;
  for (size_t r = 0; r < use.arrived.size(); ++r) {
    std::string& list = use.arrived[r] ? here : missing;
    num_missing += use.arrived[r] ? 0 : 1;
    list += (list.empty() ? "" : ", ") + std::to_string(r) + " (device " +
            std::to_string(group.devices[r]) + ")";
  }
  return std::string(spec_.operation->name) + " " + spec_.name + " (operation " +
         std::to_string(spec_.op_index) + ") in " + spec_.module_name + ", " +
         Describe(use.in_parts.data(), use.in_parts.size()) + ": rank " + here +
         " waits for rank " + missing;
}

int Collective::FailOpen(uint32_t tick, FailureCode code,
                         const std::function<std::string(const std::string& who)>& why) {
  int num_failed = 0;
  for (auto& group : groups_) {
    std::vector<std::shared_ptr<Use>> failed;
    {
      std::lock_guard<std::mutex> lock(group->mu);
      for (auto& use : group->uses) {
        if (use->failure != nullptr || static_cast<int32_t>(tick - use->first_tick) < 0) continue;
        use->failure = std::make_shared<Failure>(Failure{code, why(Who(*use, *group))});
        failed.push_back(use);
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
    num_failed += static_cast<int>(failed.size());
  }
  return num_failed;
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
  std::lock_guard<std::mutex> lock(registry.mu);
  int num_open = 0;
  for (Collective* collective : registry.all) num_open += collective->NumOpen();
  return num_open;
}

int FailOpenUses(uint32_t tick, FailureCode code,
                 const std::function<std::string(const std::string& who)>& why) {
  Registry& registry = GetRegistry();
  std::lock_guard<std::mutex> lock(registry.mu);
  int num_failed = 0;
  for (Collective* collective : registry.all) num_failed += collective->FailOpen(tick, code, why);
  return num_failed;
}

void ReportOpenUses(uint32_t tick, std::vector<std::string>* lines) {
  Registry& registry = GetRegistry();
  std::lock_guard<std::mutex> lock(registry.mu);
  for (Collective* collective : registry.all) collective->ReportOpen(tick, lines);
}

}  // namespace strata::core
