// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Processes that meet. Each is a Fabric of its own in this one process, on one control segment, so
// that sanitizers see all of them.
#include "core/fabric.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/collective.h"

namespace strata::core {
namespace {

class Outcome {
 public:
  Completion MakeCompletion() {
    return Completion(
        [](void* context, const Failure* failure) {
          Outcome* self = static_cast<Outcome*>(context);
          std::lock_guard<std::mutex> lock(self->mu_);
          ++self->num_runs_;
          if (failure != nullptr) self->failure_ = *failure;
          self->done_.notify_all();
        },
        this);
  }
  std::optional<Failure> Wait() {
    std::unique_lock<std::mutex> lock(mu_);
    EXPECT_TRUE(done_.wait_for(lock, std::chrono::seconds(60), [this] { return num_runs_ > 0; }))
        << "never completed";
    EXPECT_EQ(num_runs_, 1);
    return failure_;
  }
  bool IsDone() {
    std::lock_guard<std::mutex> lock(mu_);
    return num_runs_ > 0;
  }

 private:
  std::mutex mu_;  // guards all below
  std::condition_variable done_;
  int num_runs_ = 0;
  std::optional<Failure> failure_;
};

void RunOnThread(void*, std::function<void()> task) { std::thread(std::move(task)).detach(); }
const ThreadPool kPool{nullptr, RunOnThread};

std::unique_ptr<Arena> MakeArena() {
  ArenaOptions options;
  options.reserve_bytes = 256 << 20;
  options.shared = true;
  std::unique_ptr<Arena> arena;
  EXPECT_EQ(Arena::Create(options, &arena), "");
  return arena;
}

// Some processes of some devices each.
class Host {
 public:
  Host(int num_processes, int num_devices, double spin_us) : num_devices_(num_devices) {
    const size_t num_bytes = Control::NumBytes(num_processes) + platform::kPieceBytes;
    EXPECT_EQ(
        platform::Region::Reserve(platform::Backing::kAnonymous, num_bytes, num_bytes, &memory_),
        "");
    EXPECT_EQ(memory_->Commit(0, memory_->num_bytes()), "");
    auto* control = reinterpret_cast<Control*>(memory_->base());
    std::vector<Process> processes(num_processes);
    for (int i = 0; i < num_processes; ++i) {
      processes[i].process_index = i;
      processes[i].pid = 1000 + i;
    }
    for (int i = 0; i < num_processes; ++i) {
      arenas_.push_back(MakeArena());
      fabrics_.push_back(
          std::make_unique<Fabric>(control, i, processes, arenas_.back().get(), MakeArena()));
      fabrics_.back()->SetSpin(spin_us);
      fabrics_.back()->Start();
    }
  }

  int num_processes() const { return static_cast<int>(fabrics_.size()); }
  int num_ranks() const { return num_processes() * num_devices_; }
  Fabric& fabric(int process) { return *fabrics_[process]; }
  Arena& arena(int process) { return *arenas_[process]; }
  int ProcessOf(int rank) const { return rank / num_devices_; }

  // What each process has of one operation over all ranks.
  std::vector<std::unique_ptr<Collective>> Make(const Operation& operation, int64_t num_elements,
                                                int64_t fingerprint = 7) {
    std::vector<std::unique_ptr<Collective>> collectives;
    for (auto& fabric : fabrics_) {
      CollectiveSpec spec;
      spec.operation = &operation;
      Block block{OneRow(num_elements)};
      if (&operation == &kAllGather) block.out_step = num_elements;
      spec.details.blocks.push_back(block);
      spec.groups.emplace_back();
      for (int rank = 0; rank < num_ranks(); ++rank) {
        spec.devices.push_back(static_cast<int64_t>(ProcessOf(rank)) << kProcessShift |
                               rank % num_devices_);
        spec.groups[0].push_back(rank);
      }
      spec.fingerprint = fingerprint;
      spec.module_name = "jit_step";
      spec.name = "op.3";
      std::string error;
      collectives.push_back(Collective::Create(std::move(spec), fabric.get(), &error));
      EXPECT_NE(collectives.back(), nullptr) << error;
    }
    return collectives;
  }

 private:
  const int num_devices_;
  std::unique_ptr<platform::Region> memory_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<std::unique_ptr<Fabric>> fabrics_;  // first to go
};

// An array of one rank, in its process's arena or not.
class Array {
 public:
  Array(Arena* arena, int64_t size) : arena_(arena), size_(size) {
    if (arena == nullptr) {
      private_.resize(size);
      data_ = private_.data();
    } else {
      data_ = static_cast<float*>(
          arena->Allocate(std::max<size_t>(size * 4, Arena::kSmallestRequestBytes), 64));
    }
  }
  ~Array() {
    if (arena_ != nullptr) arena_->Free(data_);
  }
  Array(const Array&) = delete;
  float* data() { return data_; }
  int64_t size() const { return size_; }

 private:
  Arena* const arena_;
  const int64_t size_;
  std::vector<float> private_;
  float* data_;
};

void Arrive(Collective& collective, int64_t partition, int64_t run_id, Array& in, Array& out,
            Outcome& outcome) {
  const Part in_part{DType::kF32, in.size()}, out_part{DType::kF32, out.size()};
  const void* in_pointer = in.data();
  void* out_pointer = out.data();
  collective.Arrive(
      partition, run_id,
      {1, 1, &in_part, &out_part, &in_pointer, &out_pointer, outcome.MakeCompletion()}, kPool);
}

int FailAll() {
  return FailOpenUses([](uint32_t, bool) { return true; }, FailureCode::kDeadlineExceeded,
                      [](const std::string& who, bool) { return who; });
}

template <typename Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 3000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

struct Shape {
  int num_processes, num_devices;
  double spin_us;
};
class Hosts : public testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(All, Hosts,
                         testing::Values(Shape{2, 1, 0}, Shape{2, 1, 200}, Shape{3, 2, 0},
                                         Shape{4, 1, 20}, Shape{2, 3, 0}));

// Small and large ones, in arenas and not, in many runs, with ranks that come early and late.
TEST_P(Hosts, SumsOfManyRuns) {
  Host host(GetParam().num_processes, GetParam().num_devices, GetParam().spin_us);
  for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{5000}, int64_t{70001}, int64_t{700000}}) {
    for (int where = 0; where < 3; ++where) {
      const int num_runs = count > 100000 ? 3 : 30;
      auto collectives = host.Make(kAllReduce, count);
      std::vector<std::thread> threads;
      for (int rank = 0; rank < host.num_ranks(); ++rank) {
        threads.emplace_back([&, rank] {
          std::mt19937 random(rank);
          const int process = host.ProcessOf(rank);
          Arena* const arena = &host.arena(process);
          Array in(where != 1 ? arena : nullptr, count);
          Array out(where != 2 || rank % 2 == 0 ? arena : nullptr, count);
          for (int run = 0; run < num_runs; ++run) {
            if (random() % 8 == 0) std::this_thread::yield();
            std::fill_n(in.data(), count, static_cast<float>(rank + run));
            Outcome outcome;
            Arrive(*collectives[process], rank, 1000 + process + run, in, out, outcome);
            const auto failure = outcome.Wait();
            ASSERT_FALSE(failure.has_value()) << failure->message;
            float sum = 0;
            for (int r = 0; r < host.num_ranks(); ++r) sum += static_cast<float>(r + run);
            for (int64_t i = 0; i < count; ++i) ASSERT_EQ(out.data()[i], sum);
          }
        });
      }
      for (auto& thread : threads) thread.join();
      for (auto& collective : collectives) EXPECT_EQ(collective->NumOpen(), 0);
    }
  }
  for (int i = 0; i < host.num_processes(); ++i) {
    EXPECT_TRUE(Eventually([&] {
      host.fabric(i).Sweep();
      return host.fabric(i).NumRetired() == 0;
    })) << "nothing is kept once all have left";
  }
}

TEST_P(Hosts, Gathers) {
  Host host(GetParam().num_processes, GetParam().num_devices, GetParam().spin_us);
  const int64_t count = 50000;
  auto collectives = host.Make(kAllGather, count);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < host.num_ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      Arena* const arena = &host.arena(host.ProcessOf(rank));
      Array in(arena, count), out(arena, count * host.num_ranks());
      for (int run = 0; run < 10; ++run) {
        std::fill_n(in.data(), count, static_cast<float>(rank * 100 + run));
        Outcome outcome;
        Arrive(*collectives[host.ProcessOf(rank)], rank, run, in, out, outcome);
        ASSERT_FALSE(outcome.Wait().has_value());
        for (int64_t i = 0; i < out.size(); ++i) {
          ASSERT_EQ(out.data()[i], static_cast<float>(i / count * 100 + run));
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Fabric, ManyOperationsAtOnce) {
  Host host(2, 1, 0);
  constexpr int kMany = 1501;  // more than there are records
  std::vector<std::vector<std::unique_ptr<Collective>>> operations;
  for (int i = 0; i < 3; ++i) operations.push_back(host.Make(kAllReduce, 8));
  Array in(nullptr, 8);
  std::fill_n(in.data(), 8, 1.0f);
  std::vector<std::unique_ptr<Array>> outs;
  std::vector<std::unique_ptr<Outcome>> outcomes;
  for (int process = 0; process < 2; ++process) {
    for (int i = 0; i < kMany; ++i) {
      outs.push_back(std::make_unique<Array>(nullptr, 8));
      outcomes.push_back(std::make_unique<Outcome>());
      // After the first, runs are in another order on the second.
      const int run = process == 0 || i == 0 ? i : ((i - 1) ^ 1) + 1;
      Arrive(*operations[0][process], process, run, in, *outs.back(), *outcomes.back());
    }
  }
  for (auto& outcome : outcomes) EXPECT_FALSE(outcome->Wait().has_value());
  for (auto& out : outs) EXPECT_EQ(out->data()[7], 2.0f);
}

TEST(Fabric, DifferentShapesFailOnBothSides) {
  Host host(2, 1, 0);
  auto collectives = host.Make(kAllReduce, 4);
  auto others = host.Make(kAllReduce, 5);
  Array a(nullptr, 4), b(nullptr, 5), out_a(nullptr, 4), out_b(nullptr, 5);
  Outcome first, second;
  Arrive(*collectives[0], 0, 1, a, out_a, first);
  Arrive(*others[1], 1, 1, b, out_b, second);
  for (Outcome* outcome : {&first, &second}) {
    const auto failure = outcome->Wait();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->code, FailureCode::kInvalidArgument);
    for (const char* part : {"float32[4]", "float32[5]", "shapes", "rank 0 (device 0)",
                             "rank 1 (device 2048) of process 1 (pid 1001)"}) {
      EXPECT_NE(failure->message.find(part), std::string::npos) << failure->message;
    }
  }
}

TEST(Fabric, DifferentOperationsAndProgramsFailOnBothSides) {
  Host host(2, 1, 0);
  auto sums = host.Make(kAllReduce, 4);
  auto gathers = host.Make(kAllGather, 4);
  auto longer = host.Make(kAllReduce, 4, 8);
  Array a(nullptr, 4), out(nullptr, 4), out_all(nullptr, 8);
  {
    Outcome first, second;
    Arrive(*sums[0], 0, 1, a, out, first);
    Arrive(*gathers[1], 1, 1, a, out_all, second);
    for (Outcome* outcome : {&first, &second}) {
      const auto failure = outcome->Wait();
      ASSERT_TRUE(failure.has_value());
      EXPECT_NE(failure->message.find("all_gather op.3"), std::string::npos) << failure->message;
      EXPECT_NE(failure->message.find("all_reduce op.3"), std::string::npos) << failure->message;
    }
  }
  Outcome first, second;
  Arrive(*sums[0], 0, 2, a, out, first);
  Arrive(*longer[1], 1, 2, a, out, second);
  for (Outcome* outcome : {&first, &second}) {
    const auto failure = outcome->Wait();
    ASSERT_TRUE(failure.has_value());
    EXPECT_NE(failure->message.find("collectives of their programs"), std::string::npos)
        << failure->message;
  }
}

TEST(Fabric, AProcessThatEndsFailsWhatWaitsAndWhatComes) {
  Host host(3, 1, 0);
  auto collectives = host.Make(kAllReduce, 70000);
  std::vector<std::unique_ptr<Array>> arrays;
  for (int i = 0; i < 4; ++i) arrays.push_back(std::make_unique<Array>(&host.arena(i / 2), 70000));
  Outcome waiting, later;
  Arrive(*collectives[0], 0, 1, *arrays[0], *arrays[1], waiting);
  EXPECT_FALSE(waiting.IsDone());
  host.fabric(0).MarkDead(2);
  const auto failure = waiting.Wait();
  ASSERT_TRUE(failure.has_value());
  for (const char* part : {"rank 2 (device 4096)", "process 2 (pid 1002) has died", "op.3"}) {
    EXPECT_NE(failure->message.find(part), std::string::npos) << failure->message;
  }
  Arrive(*collectives[0], 0, 2, *arrays[0], *arrays[1], later);
  EXPECT_TRUE(later.IsDone());
  EXPECT_TRUE(later.Wait().has_value());
  // The one that has not noticed yet learns it from the one that has.
  Outcome other;
  Arrive(*collectives[1], 1, 1, *arrays[2], *arrays[3], other);
  const auto told = other.Wait();
  ASSERT_TRUE(told.has_value());
  EXPECT_NE(told->message.find("gave up"), std::string::npos) << told->message;
  EXPECT_NE(told->message.find("process 2 (pid 1002) has died"), std::string::npos)
      << told->message;
}

TEST(Fabric, ADeadlineNamesTheMissingAndWhatTheyDo) {
  Host host(2, 1, 0);
  auto collectives = host.Make(kAllReduce, 4);
  Array in(nullptr, 4), out(nullptr, 4);
  Outcome outcome;
  Arrive(*collectives[1], 1, 1, in, out, outcome);
  EXPECT_EQ(FailAll(), 1);
  const auto failure = outcome.Wait();
  ASSERT_TRUE(failure.has_value());
  EXPECT_NE(failure->message.find("waits for rank 0 (device 0) of process 0 (pid 1000)"),
            std::string::npos)
      << failure->message;
  // Who comes late learns it at once, and the next run works.
  Outcome late;
  Arrive(*collectives[0], 0, 1, in, out, late);
  EXPECT_TRUE(late.Wait().has_value());
  Outcome a, b;
  Array out_b(nullptr, 4);
  Arrive(*collectives[0], 0, 2, in, out, a);
  Arrive(*collectives[1], 1, 2, in, out_b, b);
  EXPECT_FALSE(a.Wait().has_value());
  EXPECT_FALSE(b.Wait().has_value());
}

// Stands for a process that is stopped in the middle of a unit.
std::atomic<int> stopped_in_unit{0};
std::atomic<bool> may_go_on{false};
thread_local bool stops_in_units = false;

void SlowSum(const void* const* in, int num_in, int64_t in_offset, void* const* out, int num_out,
             int64_t out_offset, int64_t count, bool) {
  if (stops_in_units && stopped_in_unit.fetch_add(1) == 0) {
    while (!may_go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int r = 0; r < num_in; ++r) sum += static_cast<const float*>(in[r])[in_offset + i];
    for (int r = 0; r < num_out; ++r) static_cast<float*>(out[r])[out_offset + i] = sum;
  }
}

std::string PlanSlowly(const Meeting& meeting, Work& work) {
  Transfer transfer;
  transfer.reduce = SlowSum;
  transfer.bit_width = 32;
  transfer.num_in = transfer.num_out = meeting.num_ranks;
  transfer.in = meeting.In(0);
  transfer.out = meeting.Out(0);
  transfer.num_elements = meeting.in_parts[0].num_elements;
  work.Add(transfer);
  return "";
}
OperationStats slow_stats;
const Operation kSlow = {"slow", PlanSlowly, slow_stats};

TEST(Fabric, WhatAStoppedProcessMayWriteIsNotUsedAgain) {
  Host host(2, 1, 0);
  const int64_t count = 1 << 20;
  auto collectives = host.Make(kSlow, count);
  auto in0 = std::make_unique<Array>(&host.arena(0), count);
  auto out0 = std::make_unique<Array>(&host.arena(0), count);
  Array in1(&host.arena(1), count), out1(&host.arena(1), count);
  for (int64_t i = 0; i < count; ++i) in0->data()[i] = in1.data()[i] = 1;
  Outcome first, second;
  Arrive(*collectives[0], 0, 1, *in0, *out0, first);
  std::thread last([&] {
    stops_in_units = true;
    Arrive(*collectives[1], 1, 1, in1, out1, second);
  });
  ASSERT_TRUE(Eventually([] { return stopped_in_unit > 0; }));
  FailAll();
  const auto failure = first.Wait();
  ASSERT_TRUE(failure.has_value());
  EXPECT_FALSE(second.IsDone()) << "a thread of that process is still writing";

  float* const old = out0->data();
  out0.reset();  // as XLA frees the result of what failed
  EXPECT_EQ(host.arena(0).Stats().quarantined_bytes, static_cast<uint64_t>(count) * 4);
  Array reused(&host.arena(0), count);
  EXPECT_NE(reused.data(), old);
  std::fill_n(reused.data(), count, 5.0f);

  may_go_on = true;
  EXPECT_TRUE(second.Wait().has_value());
  last.join();
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(reused.data()[i], 5.0f);
  EXPECT_TRUE(Eventually([&] {
    host.fabric(0).Sweep();
    return host.arena(0).Stats().quarantined_bytes == 0;
  }));
}

TEST(Fabric, WhoHasNoWorkLeftLearnsThatAnotherGaveUp) {
  stopped_in_unit = 0;
  may_go_on = false;
  Host host(2, 1, 0);
  const int64_t count = 1 << 20;
  auto collectives = host.Make(kSlow, count);
  Array in0(&host.arena(0), count), out0(&host.arena(0), count);
  Array in1(&host.arena(1), count), out1(&host.arena(1), count);
  Outcome first, second;
  Arrive(*collectives[0], 0, 1, in0, out0, first);
  std::thread last([&] {
    stops_in_units = true;
    Arrive(*collectives[1], 1, 1, in1, out1, second);
  });
  ASSERT_TRUE(Eventually([] { return stopped_in_unit > 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the first does all other units
  EXPECT_FALSE(first.IsDone());
  EXPECT_EQ(collectives[1]->FailOpen([](uint32_t, bool) { return true; }, FailureCode::kCancelled,
                                     [](const std::string&, bool) { return "interrupted"; }),
            1);
  const auto told = first.Wait();
  ASSERT_TRUE(told.has_value());
  EXPECT_NE(told->message.find("gave up"), std::string::npos) << told->message;
  may_go_on = true;
  EXPECT_TRUE(second.Wait().has_value());
  last.join();
}

// A plan that depends on what is in the operands, as that of ragged_all_to_all does.
constexpr float kGarbage = -1;
// It may read what is being overwritten; the plan is then not used.
__attribute__((no_sanitize("thread"))) std::string PlanByOperands(const Meeting& meeting,
                                                                  Work& work) {
  for (int rank = 0; rank < meeting.num_ranks; ++rank) {
    if (*static_cast<const float*>(*meeting.In(0, rank)) == kGarbage) return "garbage";
  }
  return PlanSlowly(meeting, work);
}
const Operation kByOperands = {"by_operands", PlanByOperands, slow_stats};

TEST(Fabric, OperandsAreNotPlannedWithAfterTheWorkIsDone) {
  Host host(2, 1, 0);
  const int64_t count = 5000;
  auto collectives = host.Make(kByOperands, count);
  Array in0(&host.arena(0), count), out0(&host.arena(0), count);
  Array in1(&host.arena(1), count), out1(&host.arena(1), count);
  for (int run = 0; run < 300; ++run) {
    std::fill_n(in0.data(), count, 1.0f);
    std::fill_n(in1.data(), count, 2.0f);
    Outcome early, late;
    Arrive(*collectives[0], 0, run, in0, out0, early);
    Arrive(*collectives[1], 1, run, in1, out1, late);
    ASSERT_FALSE(late.Wait().has_value());
    *in1.data() = kGarbage;  // as XLA uses the memory of an operand again
    const auto failure = early.Wait();
    ASSERT_FALSE(failure.has_value()) << failure->message;
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(out0.data()[i], 3.0f);
  }
}

}  // namespace
}  // namespace strata::core
