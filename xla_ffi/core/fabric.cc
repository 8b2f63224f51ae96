// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/fabric.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "core/collective.h"
#include "core/process_meeting.h"
#include "platform/shared.h"
#include "platform/threads.h"

namespace strata::core {
namespace {

// Meetings that ended which one call looks through; those that are not done with go to the back.
constexpr int kMostSwept = 8;

std::atomic<Fabric*> the_fabric{nullptr};

uint64_t Bit(int slot) { return uint64_t{1} << slot; }

}  // namespace

Fabric* TheFabric() { return the_fabric.load(std::memory_order_acquire); }

void SetTheFabric(std::unique_ptr<Fabric> fabric) {
  the_fabric.store(fabric.release(), std::memory_order_release);  // pairs with the load above
  pthread_atfork(nullptr, nullptr, Fabric::AfterForkInChild);
}

// The child has no thread of ours and nothing of what is shared but a private view of the arena.
// What it would keep alive goes: else its parent's death could not be seen, nor its memory be given
// back, before the child ends.
void Fabric::AfterForkInChild() {
  Fabric* const fabric = the_fabric.exchange(nullptr, std::memory_order_relaxed);
  if (fabric == nullptr) return;
  fabric->forked_.store(true, std::memory_order_relaxed);
  for (auto* fds : {&fabric->sockets_, &fabric->process_fds_}) {
    for (const auto& fd : *fds) platform::Close(fd.load(std::memory_order_relaxed));
  }
  platform::Close(fabric->staging_->fd());
}

Fabric::Fabric(Control* control, int slot, std::vector<Process> processes, Arena* arena,
               std::unique_ptr<Arena> staging)
    : control_(control),
      slot_(slot),
      processes_(std::move(processes)),
      arena_(arena),
      staging_(std::move(staging)),
      sockets_(processes_.size()),
      process_fds_(processes_.size()),
      taken_(kNumRecords, false) {
  for (size_t i = 0; i < processes_.size(); ++i) {
    slot_of_process_[processes_[i].process_index] = static_cast<int>(i);
    sockets_[i].store(processes_[i].socket, std::memory_order_relaxed);
    process_fds_[i].store(-1, std::memory_order_relaxed);
  }
  platform::KeepFromForks(staging_->base(), staging_->Stats().reserved_bytes);
  for (int i = kNumMailboxes; i-- > 0;) free_mailboxes_.push_back(board(slot_).mailboxes[i]);
}

Fabric::~Fabric() {
  // Only tests come here, after their last operation.
  stopping_.store(true);
  Ring(Bit(slot_));
  std::unique_lock<std::mutex> lock(mu_);
  stopped_.wait(lock, [this] { return num_threads_ == 0; });
}

void Fabric::Start(int coordinator) {
  coordinator_ = coordinator;
  num_threads_ = 1;
  platform::StartThread("strata-engine", [this] { Engine(); });
  const bool has_sockets =
      std::any_of(processes_.begin(), processes_.end(), [](auto& p) { return p.socket >= 0; });
  if (has_sockets) platform::StartThread("strata-peers", [this] { WatchProcesses(); });
}

int Fabric::SlotOf(int64_t device) const {
  const auto found = slot_of_process_.find(static_cast<int>(device >> kProcessShift));
  return found == slot_of_process_.end() ? -1 : found->second;
}

std::string Fabric::Title(int slot) const {
  return "process " + std::to_string(processes_[slot].process_index) + " (pid " +
         std::to_string(processes_[slot].pid) + ")";
}

void Fabric::MarkDead(int slot) {
  // Before the operations that wait are looked for: one that begins now sees the bit, or is seen.
  if ((dead_.fetch_or(Bit(slot), std::memory_order_seq_cst) & Bit(slot)) != 0) return;
  if (!EndedInOrder(slot)) SayThatItDied(slot);
  // What needs nothing of it any more goes on, from its memory, which is there while we have it.
  while (FailOpenUsesOfDead() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  // Returns the memory, as nobody else does.
  const Process& process = processes_[slot];
  if (process.arena != nullptr) platform::ReplaceByZeros(process.arena, process.arena_bytes);
  if (process.staging != nullptr) platform::ReplaceByZeros(process.staging, process.staging_bytes);
  Ring(Bit(slot_));
  Sweep();
}

std::string Fabric::WhyDead(uint64_t mask, const std::vector<int64_t>& devices) const {
  const uint64_t gone = dead() & mask;
  std::string text;
  for (int slot = 0; slot < num_processes(); ++slot) {
    if ((gone & Bit(slot)) == 0) continue;
    std::string ranks;
    for (size_t r = 0; r < devices.size(); ++r) {
      if (SlotOf(devices[r]) != slot) continue;
      ranks += (ranks.empty() ? "rank " : ", ") + std::to_string(r) + " (device " +
               std::to_string(devices[r]) + ")";
    }
    text += (text.empty() ? "" : "; ") + ranks + " is gone: " + Title(slot) +
            (EndedInOrder(slot) ? " has ended its program; see its output"
                                : " has died (killed, or crashed; see its output)");
  }
  return text;
}

std::string Fabric::StoppedNote(int slot) const {
  const bool stopped = platform::IsStopped(processes_[slot].pid);
  return stopped ? " (that process is stopped, by a signal or a debugger)" : "";
}

bool Fabric::EndedInOrder(int slot) const {
  return board(slot).exiting.load(std::memory_order_relaxed) != 0;
}

void Fabric::SetExiting() { board(slot_).exiting.store(1, std::memory_order_relaxed); }

void Fabric::Leave() {
  SetExiting();
  for (const auto& socket : sockets_) platform::HangUp(socket.load(std::memory_order_relaxed));
}

// At once, on standard error: JAX may end this process before Python gets to say anything.
void Fabric::SayThatItDied(int slot) const {
  const char* const consequence =
      slot == coordinator_ ? "JAX's coordination service was in it, without which JAX ends this "
                             "process, too; under `strata-jax launch` it would live"
                           : "operations with it fail from now on";
  std::fprintf(stderr, "strata_jax: %s has died (killed, or crashed; see its output): %s\n",
               Title(slot).c_str(), consequence);
}

int Fabric::Find(int slot, uint64_t key) const {
  const Board& board = control_->board(slot);
  // Sequentially consistent: see Post() of process_meeting.cc.
  for (int i = 0; i < kWindow; ++i) {
    const int at = static_cast<int>((key + i) % kNumRecords);
    if (board.keys[at].load(std::memory_order_seq_cst) == key) return at;
  }
  if (board.overflowed.load(std::memory_order_seq_cst) != 0) {
    for (int at = 0; at < kNumRecords; ++at) {
      if (board.keys[at].load(std::memory_order_seq_cst) == key) return at;
    }
  }
  return -1;
}

int Fabric::TakeRecord(uint64_t key) {
  std::lock_guard<std::mutex> lock(mu_);
  for (int i = 0; i < kNumRecords; ++i) {
    const int at = static_cast<int>((key + i) % kNumRecords);
    if (taken_[at]) continue;
    // Before the key is stored.
    if (i >= kWindow) board(slot_).overflowed.store(1, std::memory_order_seq_cst);
    taken_[at] = true;
    board(slot_).records[at].number = ++num_taken_;
    return at;
  }
  return -1;
}

void Fabric::ReturnRecord(int index) {
  // Release: what this process read of others' records it has read. See OthersLeft().
  board(slot_).keys[index].store(0, std::memory_order_release);
  std::lock_guard<std::mutex> lock(mu_);
  taken_[index] = false;
}

char* Fabric::TakeMailbox() {
  std::lock_guard<std::mutex> lock(mu_);
  if (free_mailboxes_.empty()) return nullptr;
  char* const mailbox = free_mailboxes_.back();
  free_mailboxes_.pop_back();
  return mailbox;
}

void Fabric::ReturnMailbox(char* mailbox) {
  std::lock_guard<std::mutex> lock(mu_);
  free_mailboxes_.push_back(mailbox);
}

void Fabric::Ring(uint64_t mask) const {
  for (int slot = 0; slot < num_processes(); ++slot) {
    if ((mask & Bit(slot)) == 0) continue;
    Board& board = control_->board(slot);
    // Sequentially consistent, as in Watch() and Engine(): a meeting that is watched from now on is
    // looked at once more by who gives it away; and the engine sees the bell, or we see it sleep.
    if (slot != slot_ && board.num_watched.load(std::memory_order_seq_cst) == 0) continue;
    board.bell.fetch_add(1, std::memory_order_seq_cst);
    if (board.sleeping.load(std::memory_order_seq_cst) != 0) platform::WakeOne(board.bell);
  }
}

void Fabric::Watch(std::shared_ptr<ProcessMeeting> meeting) {
  std::lock_guard<std::mutex> lock(mu_);
  watched_.push_back(std::move(meeting));
  board(slot_).num_watched.store(static_cast<uint32_t>(watched_.size()), std::memory_order_seq_cst);
}

void Fabric::Retire(std::shared_ptr<ProcessMeeting> meeting) {
  std::lock_guard<std::mutex> lock(mu_);
  retired_.push_back(std::move(meeting));
}

bool Fabric::Sweep() {
  bool reclaimed = false;
  for (int i = 0; i < kMostSwept; ++i) {
    std::shared_ptr<ProcessMeeting> meeting;
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (retired_.empty()) return reclaimed;
      meeting = std::move(retired_.front());
      retired_.pop_front();
    }
    if (meeting->TryReclaim()) {
      reclaimed = true;
      continue;
    }
    Retire(std::move(meeting));
    return reclaimed;
  }
  return reclaimed;
}

Launches& Fabric::LaunchesOf(uint64_t program) {
  std::lock_guard<std::mutex> lock(mu_);
  auto& launches = launches_[program];
  if (launches == nullptr) launches = std::make_unique<Launches>();
  return *launches;
}

int Fabric::NumRetired() {
  std::lock_guard<std::mutex> lock(mu_);
  return static_cast<int>(retired_.size());
}

// Looks at every meeting that waits; true if something came of it.
bool Fabric::Round() {
  std::vector<std::shared_ptr<ProcessMeeting>> meetings;
  {
    std::lock_guard<std::mutex> lock(mu_);
    meetings.assign(watched_.begin(), watched_.end());
  }
  bool progress = false;
  for (const auto& meeting : meetings)
    progress = meeting->Advance(nullptr, ProcessMeeting::Caller::kEngine) || progress;
  std::vector<std::shared_ptr<ProcessMeeting>> over;  // let go outside the lock
  std::lock_guard<std::mutex> lock(mu_);
  for (auto it = watched_.begin(); it != watched_.end();) {
    if ((*it)->ended()) {
      over.push_back(std::move(*it));
      it = watched_.erase(it);
    } else {
      ++it;
    }
  }
  board(slot_).num_watched.store(static_cast<uint32_t>(watched_.size()), std::memory_order_seq_cst);
  return progress;
}

void Fabric::Engine() {
  Board& own = board(slot_);
  while (!stopping_.load()) {
    const uint32_t bell = own.bell.load(std::memory_order_seq_cst);
    do {
      while (Round()) {
      }
    } while (Sweep());
    own.sleeping.store(1, std::memory_order_seq_cst);  // pairs with the load in Ring()
    if (own.bell.load(std::memory_order_seq_cst) == bell) platform::WaitWhile(own.bell, bell);
    own.sleeping.store(0, std::memory_order_seq_cst);
  }
  std::lock_guard<std::mutex> lock(mu_);
  --num_threads_;
  stopped_.notify_all();
}

void Fabric::WatchProcesses() {
  // The socket tells also where process ids mean nothing here (containers); the other also where a
  // forked child holds the socket open. Whichever comes, the process has no thread any more.
  std::vector<int> fds;
  for (int slot = 0; slot < num_processes(); ++slot) {
    const int socket = processes_[slot].socket;
    fds.push_back(socket);
    fds.push_back(socket < 0 ? -1 : platform::OpenProcess(processes_[slot].pid));
    process_fds_[slot].store(fds.back(), std::memory_order_relaxed);
  }
  while (std::any_of(fds.begin(), fds.end(), [](int fd) { return fd >= 0; })) {
    const std::vector<size_t> hung_up = platform::WaitForHangUp(fds);
    if (hung_up.empty()) return;
    for (size_t i : hung_up) {
      const size_t slot = i / 2;
      fds[2 * slot] = fds[2 * slot + 1] = -1;
      if (!EndedInOrder(static_cast<int>(slot))) {
        // Not of one that only leaves: it looks out for our end until its own.
        for (auto* all : {&sockets_, &process_fds_}) {
          platform::Close((*all)[slot].exchange(-1, std::memory_order_relaxed));
        }
      }
      MarkDead(static_cast<int>(slot));
    }
  }
}

// Reads another's text while that may be written: for messages only.
__attribute__((no_sanitize("thread"))) std::string Fabric::Doing(int slot) const {
  const Board& board = control_->board(slot);
  const auto label_of = [](const Record& record) {
    char label[sizeof record.label];
    for (size_t i = 0; i < sizeof label; ++i) label[i] = record.label[i];
    label[sizeof label - 1] = 0;
    return std::string(label);
  };
  std::string waits;
  const Record* given_up = nullptr;  // the latest
  for (int at = 0; at < kNumRecords; ++at) {
    const Record& record = board.records[at];
    if (board.keys[at].load(std::memory_order_acquire) == 0) continue;
    const uint32_t state = record.state.load(std::memory_order_acquire);
    if (state == kPosted) {
      if (!waits.empty()) return waits + ", and others";
      waits = ", which waits in " + label_of(record);
    } else if ((state & kFailed) != 0 &&
               (given_up == nullptr || record.number > given_up->number)) {
      given_up = &record;
    }
  }
  if (!waits.empty() || given_up == nullptr) return waits;
  return ", which gave up " + label_of(*given_up);
}

}  // namespace strata::core
