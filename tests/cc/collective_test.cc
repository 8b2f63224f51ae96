// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Ranks that meet: all come, some come late, some never, some bring something else.
#include "core/collective.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/watchdog.h"

namespace strata::core {
namespace {

// What became of one rank's call.
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
  // Waits for the completion; nothing on success.
  std::optional<Failure> Wait() {
    std::unique_lock<std::mutex> lock(mu_);
    const bool done =
        done_.wait_for(lock, std::chrono::seconds(30), [this] { return num_runs_ > 0; });
    EXPECT_TRUE(done) << "never completed";
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

std::unique_ptr<Collective> Make(std::vector<std::vector<int64_t>> groups, Finish finish,
                                 int num_devices, int64_t num_elements = 1) {
  CollectiveSpec spec;
  spec.operation = &kAllReduce;
  spec.details.blocks.push_back({OneRow(num_elements)});
  spec.finish = finish;
  spec.groups = std::move(groups);
  for (int i = 0; i < num_devices; ++i) spec.devices.push_back(100 + i);
  spec.module_name = "jit_step";
  spec.name = "psum.3";
  std::string error;
  auto collective = Collective::Create(std::move(spec), nullptr, &error);
  EXPECT_NE(collective, nullptr) << error;
  return collective;
}

void Arrive(Collective& collective, int64_t partition, int64_t run_id, const std::vector<float>& in,
            std::vector<float>* out, Completion completion) {
  const Part part{DType::kF32, static_cast<int64_t>(in.size())};
  const void* in_pointer = in.data();
  void* out_pointer = out->data();
  collective.Arrive(partition, run_id,
                    {1, 1, &part, &part, &in_pointer, &out_pointer, std::move(completion)}, kPool);
}

// Chooses the uses whose first rank came at or before `tick`.
Which ArrivedBy(uint32_t tick) {
  return [tick](uint32_t first, bool) { return static_cast<int32_t>(tick - first) >= 0; };
}

class Meetings : public testing::TestWithParam<Finish> {};
INSTANTIATE_TEST_SUITE_P(All, Meetings, testing::Values(Finish::kInline, Finish::kLane));

TEST_P(Meetings, ThreadsOfAllRanksInManyRuns) {
  for (int64_t count : {1, 1000, 300000}) {
    const int num_ranks = 4, num_runs = count > 100000 ? 20 : 300;
    auto collective = Make({{0, 2}, {3, 1}}, GetParam(), num_ranks, count);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const int64_t partner = (rank + 2) % 4;
        for (int run = 0; run < num_runs; ++run) {
          std::vector<float> in(count, static_cast<float>(rank + run)), out(count);
          Outcome outcome;
          Arrive(*collective, rank, run, in, &out, outcome.MakeCompletion());
          ASSERT_FALSE(outcome.Wait().has_value());
          for (float value : out) ASSERT_EQ(value, static_cast<float>(rank + partner + 2 * run));
        }
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(collective->NumOpen(), 0);
  }
}

TEST_P(Meetings, RunsInAnyOrder) {
  auto collective = Make({{0, 1}}, GetParam(), 2);
  std::vector<float> a{1}, b{2}, c{10}, d{20}, out(4);
  std::vector<std::vector<float>> outs(4, std::vector<float>(1));
  Outcome outcomes[4];
  Arrive(*collective, 0, 7, a, &outs[0], outcomes[0].MakeCompletion());
  Arrive(*collective, 1, 8, d, &outs[1], outcomes[1].MakeCompletion());
  EXPECT_EQ(collective->NumOpen(), 2);
  EXPECT_FALSE(outcomes[0].IsDone());
  Arrive(*collective, 0, 8, c, &outs[2], outcomes[2].MakeCompletion());
  Arrive(*collective, 1, 7, b, &outs[3], outcomes[3].MakeCompletion());
  for (auto& outcome : outcomes) EXPECT_FALSE(outcome.Wait().has_value());
  EXPECT_EQ(outs[0][0], 3);
  EXPECT_EQ(outs[3][0], 3);
  EXPECT_EQ(outs[1][0], 30);
  EXPECT_EQ(outs[2][0], 30);
}

TEST_P(Meetings, DifferentBuffersFailBothAndShowBoth) {
  auto collective = Make({{0, 1, 2}}, GetParam(), 3, 3);
  std::vector<float> a(3), b(4), out(4);
  Outcome outcomes[3];
  Arrive(*collective, 0, 1, a, &out, outcomes[0].MakeCompletion());
  Arrive(*collective, 1, 1, b, &out, outcomes[1].MakeCompletion());
  for (int rank : {0, 1}) {
    const auto failure = outcomes[rank].Wait();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->code, FailureCode::kInvalidArgument);
    for (const char* part : {"psum.3", "jit_step", "float32[3]", "float32[4]", "device 101"}) {
      EXPECT_NE(failure->message.find(part), std::string::npos) << part << failure->message;
    }
  }
  // The third comes late and learns of it at once; then the run is forgotten.
  Arrive(*collective, 2, 1, a, &out, outcomes[2].MakeCompletion());
  EXPECT_TRUE(outcomes[2].Wait().has_value());
  Outcome again[3];
  std::vector<std::vector<float>> outs(3, std::vector<float>(3));
  for (int rank = 0; rank < 3; ++rank) {
    Arrive(*collective, rank, 1, a, &outs[rank], again[rank].MakeCompletion());
  }
  for (auto& outcome : again) EXPECT_FALSE(outcome.Wait().has_value());
}

TEST_P(Meetings, MissingRanksAreNamed) {
  auto collective = Make({{1, 0, 2}}, GetParam(), 3);
  std::vector<float> a(3), out(3);
  Outcome waiting, late;
  Arrive(*collective, 0, 5, a, &out, waiting.MakeCompletion());
  std::vector<std::string> lines;
  collective->ReportOpen(Watchdog::Now(), &lines);
  collective->ReportOpen(Watchdog::Now(), &lines);
  ASSERT_EQ(lines.size(), 1u);  // once
  EXPECT_EQ(collective->FailOpen(ArrivedBy(Watchdog::Now() - 1000), FailureCode::kDeadlineExceeded,
                                 [](const std::string& who, bool) { return who; }),
            0);  // too young
  EXPECT_EQ(collective->FailOpen(ArrivedBy(Watchdog::Now()), FailureCode::kDeadlineExceeded,
                                 [](const std::string& who, bool) { return who + "!"; }),
            1);
  const auto failure = waiting.Wait();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->code, FailureCode::kDeadlineExceeded);
  EXPECT_NE(failure->message.find("rank 1 (device 100) waits for rank 0 (device 101), 2 (device "
                                  "102)!"),
            std::string::npos)
      << failure->message;
  EXPECT_EQ(collective->NumOpen(), 0);
  Arrive(*collective, 1, 5, a, &out, late.MakeCompletion());
  EXPECT_TRUE(late.Wait().has_value());
}

TEST(Collective, ManyFailedRunsAreForgotten) {
  auto collective = Make({{0, 1}}, Finish::kLane, 2);
  std::vector<float> a(1), out(1);
  std::vector<Outcome> outcomes(100);
  for (int run = 0; run < 100; ++run) {
    Arrive(*collective, 0, run, a, &out, outcomes[run].MakeCompletion());
    collective->FailOpen(ArrivedBy(Watchdog::Now()), FailureCode::kCancelled,
                         [](const std::string& who, bool) { return who; });
    EXPECT_TRUE(outcomes[run].Wait().has_value());
  }
  // The last ones are remembered, the first ones not: there a rank would wait again.
  Outcome late, early;
  Arrive(*collective, 1, 99, a, &out, late.MakeCompletion());
  EXPECT_TRUE(late.Wait().has_value());
  Arrive(*collective, 1, 0, a, &out, early.MakeCompletion());
  EXPECT_FALSE(early.IsDone());
  EXPECT_EQ(FailOpenUses([](uint32_t, bool) { return true; }, FailureCode::kCancelled,
                         [](const std::string& who, bool) { return who; }),
            1);
  EXPECT_TRUE(early.Wait().has_value());
}

TEST(Collective, ARankThatComesTwiceIsAnError) {
  auto collective = Make({{0, 1}}, Finish::kLane, 2);
  std::vector<float> a{1}, out(1), other_out(1);
  Outcome first, twice, peer;
  Arrive(*collective, 0, 1, a, &out, first.MakeCompletion());
  Arrive(*collective, 0, 1, a, &out, twice.MakeCompletion());
  ASSERT_TRUE(twice.Wait().has_value());
  Arrive(*collective, 1, 1, a, &other_out, peer.MakeCompletion());
  EXPECT_FALSE(first.Wait().has_value());
  EXPECT_FALSE(peer.Wait().has_value());
}

TEST(Collective, APartitionOutsideAllGroupsIsAnError) {
  auto collective = Make({{0, 1}}, Finish::kLane, 4);
  std::vector<float> a(1), out(1);
  for (int64_t partition : {2, 9, -1}) {
    Outcome outcome;
    Arrive(*collective, partition, 1, a, &out, outcome.MakeCompletion());
    EXPECT_TRUE(outcome.Wait().has_value());
  }
}

TEST(Collective, BadSpecsAreRefused) {
  auto error_of = [](std::vector<std::vector<int64_t>> groups) {
    CollectiveSpec spec;
    spec.groups = std::move(groups);
    spec.devices = {0, 1};
    std::string error;
    EXPECT_EQ(Collective::Create(std::move(spec), nullptr, &error), nullptr);
    return error;
  };
  EXPECT_EQ(error_of({{0, 2}}), "replica group member 2 of a program with 2 partitions");
  EXPECT_EQ(error_of({{0, 1}, {1}}), "partition 1 is in two replica groups");
  EXPECT_EQ(error_of({{}}), "an empty replica group");
}

TEST(Collective, AGroupOfOneIsACopy) {
  auto collective = Make({{0}}, Finish::kInline, 1, 3);
  std::vector<float> in{1, 2, 3}, out(3);
  Outcome outcome;
  Arrive(*collective, 0, 1, in, &out, outcome.MakeCompletion());
  EXPECT_FALSE(outcome.Wait().has_value());
  EXPECT_EQ(out, in);
}

// A rank's continuation starts its next call, as in a loop: the executable goes when all are done.
TEST_P(Meetings, ContinuationsCallAgainAndTheLastOneDestroys) {
  struct Device {
    std::shared_ptr<Collective> collective;
    int rank, left;
    std::vector<float> in, out;
    std::atomic<int>* num_done;
    void Step() {
      Completion completion(
          [](void* context, const Failure* failure) {
            Device* self = static_cast<Device*>(context);
            EXPECT_EQ(failure, nullptr);
            if (--self->left > 0) {
              // Not from within the completion of the last rank's own handler: the stack would
              // grow with the loop. XLA's executor unwinds to its caller as well.
              std::thread([self] { self->Step(); }).detach();
              return;
            }
            self->collective.reset();
            ++*self->num_done;
          },
          this);
      Arrive(*collective, rank, 3, in, &out, std::move(completion));
    }
  };
  std::atomic<int> num_done{0};
  std::shared_ptr<Collective> shared = Make({{0, 1, 2}}, GetParam(), 3);
  std::vector<Device> devices(3);
  for (int rank = 0; rank < 3; ++rank) {
    devices[rank] = {shared, rank, 100, {1.f}, {0.f}, &num_done};
  }
  shared.reset();
  for (auto& device : devices) device.Step();
  for (int i = 0; i < 3000 && num_done < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(num_done, 3);
  EXPECT_EQ(NumOpenUses(), 0);
}

TEST(Watchdog, FailsAtTheDeadline) {
  Watchdog::Start(0.25, 0.75, 40);
  auto collective = Make({{0, 1}}, Finish::kLane, 2);
  std::vector<float> a(1), out(1);
  Outcome outcome;
  const auto start = std::chrono::steady_clock::now();
  Arrive(*collective, 0, 1, a, &out, outcome.MakeCompletion());
  const auto failure = outcome.Wait();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->code, FailureCode::kDeadlineExceeded);
  EXPECT_NE(failure->message.find("given up after 0.75 s"), std::string::npos) << failure->message;
  EXPECT_GT(waited.count(), 0.4);
  EXPECT_LT(waited.count(), 10);
  Watchdog::Start(20, 40, 40);
}

TEST(Watchdog, AnInterruptFailsWhatWaits) {
  int fds[2], forward[2];
  ASSERT_EQ(pipe(fds), 0);
  ASSERT_EQ(pipe(forward), 0);
  Watchdog::Start(20, 40, 40);
  Watchdog::WatchInterrupts(fds[0], forward[1]);
  auto collective = Make({{0, 1}}, Finish::kLane, 2);
  std::vector<float> a(1), out(1);
  Outcome outcome;
  Arrive(*collective, 0, 1, a, &out, outcome.MakeCompletion());
  const unsigned char other = SIGUSR1, interrupt = SIGINT;
  std::this_thread::sleep_for(std::chrono::milliseconds(2200));
  ASSERT_EQ(write(fds[1], &other, 1), 1);
  ASSERT_EQ(write(fds[1], &interrupt, 1), 1);
  const auto failure = outcome.Wait();
  ASSERT_TRUE(failure.has_value());
  EXPECT_NE(failure->message.find("SIGINT"), std::string::npos);
  unsigned char passed_on[2] = {};
  ASSERT_EQ(read(forward[0], passed_on, 2), 2);
  EXPECT_EQ(passed_on[0], SIGUSR1);
  EXPECT_EQ(passed_on[1], SIGINT);
  close(fds[1]);
}

}  // namespace
}  // namespace strata::core
