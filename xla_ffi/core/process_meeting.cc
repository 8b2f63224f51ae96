// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/process_meeting.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

namespace strata::core {
namespace {

// Operations up to this many bytes are done by one thread a process: see kAloneBytes of
// collective.cc.
constexpr int64_t kAloneBytes = 2 << 20;

// A rank that looks for others lets other threads have its core from then on.
constexpr std::chrono::microseconds kYieldAfter{20};

constexpr size_t kLine = 64;  // bytes of a cache line: operands in a mailbox begin at one

int64_t NumBytes(const Part& part) { return (part.num_elements * BitWidth(part.dtype) + 7) / 8; }

size_t RoundUp(size_t value) { return (value + kLine - 1) / kLine * kLine; }

uint64_t Mix(uint64_t hash, uint64_t value) {  // splitmix64's finaliser
  uint64_t x = hash ^ (value + 0x9e3779b97f4a7c15 + (hash << 6));
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t Hash(const std::vector<Part>& in, const std::vector<Part>& out) {
  uint64_t hash = in.size();
  for (const auto* parts : {&in, &out}) {
    for (const Part& part : *parts) {
      hash = Mix(hash, static_cast<uint64_t>(part.dtype));
      hash = Mix(hash, static_cast<uint64_t>(part.num_elements));
    }
  }
  return hash;
}

template <size_t size>
void Write(char (&to)[size], const std::string& text) {
  const size_t length = std::min(text.size(), size - 1);
  std::memcpy(to, text.data(), length);
  to[length] = 0;
}

std::string Describe(const Record& record) {
  std::string text = std::string(record.label) + " of ";
  for (int i = 0; i < std::min(record.num_in, kDescribedParts); ++i) {
    text += (i > 0 ? ", " : "") + std::string(Name(record.parts[i].dtype)) + "[" +
            std::to_string(record.parts[i].num_elements) + "]";
  }
  if (record.num_in > kDescribedParts) {
    text += ", ... (" + std::to_string(record.num_in) + " buffers)";
  }
  return text;
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ProcessMeeting::ProcessMeeting(Fabric& fabric, const CollectiveSpec& spec,
                               const ProcessGroup& group, const std::vector<int>& sources,
                               uint64_t key, std::vector<Part> in_parts,
                               std::vector<Part> out_parts, std::vector<const void*> in,
                               std::vector<void*> out, OnEnd on_end)
    : fabric_(fabric),
      spec_(&spec),
      group_(group),
      sources_(sources),
      key_(key),
      group_mask_(group.mask),
      slots_(group.slots),
      own_(group.own),
      in_parts_(std::move(in_parts)),
      out_parts_(std::move(out_parts)),
      own_in_(std::move(in)),
      own_out_(std::move(out)),
      on_end_(std::move(on_end)),
      records_(group.slots.size(), -1) {}

void ProcessMeeting::Begin(const ThreadPool& pool) {
  using Clock = std::chrono::steady_clock;
  fabric_.Sweep();
  const std::chrono::duration<double, std::micro> spin(fabric_.spin_us());
  const auto start = Clock::now();
  for (int i = 0;; ++i) {
    Advance(&pool, Caller::kRank);
    if (ended()) return;
    if (spin.count() <= 0) break;
    Pause();
    if (i % 16 != 15) continue;
    const auto waited = Clock::now() - start;
    if (waited >= spin) break;
    // Whom we wait for may want this core.
    if (waited >= kYieldAfter) std::this_thread::yield();
  }
  fabric_.Watch(shared_from_this());
  // What came between the last look and now may have found nobody to wake.
  Advance(&pool, Caller::kRank);
}

const Record& ProcessMeeting::RecordOf(size_t process) const {
  return fabric_.board(slots_[process]).records[records_[process]];
}

// Copies what others could not read. The lock is held, the record not public.
void ProcessMeeting::Stage(Record& record) {
  const int num_ranks = record.num_ranks;
  size_t total = 0, num_operands = own_in_.size();
  for (const Part& part : in_parts_) {
    total += RoundUp(static_cast<size_t>(NumBytes(part))) * num_ranks;
  }
  bool readable = true, writable = true;
  for (size_t i = 0; i < num_operands; ++i) {
    readable =
        readable && (fabric_.IsShared(own_in_[i]) || in_parts_[i / num_ranks].num_elements == 0);
  }
  for (size_t i = 0; i < own_out_.size(); ++i) {
    writable =
        writable && (fabric_.IsShared(own_out_[i]) || out_parts_[i / num_ranks].num_elements == 0);
  }
  record.pull = !writable;
  record.staged = true;
  const size_t num_pointers = own_in_.size() + own_out_.size();
  const void** pointers = record.pointers;
  record.more = nullptr;
  const auto allocate = [&](size_t size) -> char* {
    void* const block =
        fabric_.staging().Allocate(std::max(size, Arena::kSmallestRequestBytes), kLine);
    if (block != nullptr) staged_.push_back(block);
    return static_cast<char*>(block);
  };
  bool full = false;
  if (num_pointers > kInlinePointers) {
    pointers = reinterpret_cast<const void**>(allocate(num_pointers * sizeof(void*)));
    record.more = pointers;
    full = pointers == nullptr;
  }
  if (!readable && total <= kMailboxBytes && !full) {
    mailbox_ = fabric_.TakeMailbox();
    char* at = mailbox_ != nullptr ? mailbox_ : allocate(total);
    full = at == nullptr;
    for (size_t i = 0; i < num_operands && !full; ++i) {
      const size_t size = static_cast<size_t>(NumBytes(in_parts_[i / num_ranks]));
      if (size > 0) std::memcpy(at, own_in_[i], size);
      pointers[i] = at;
      at += RoundUp(size);
    }
  } else {
    for (size_t i = 0; i < num_operands && !full; ++i) {
      const size_t size = static_cast<size_t>(NumBytes(in_parts_[i / num_ranks]));
      pointers[i] = own_in_[i];
      if (size == 0) continue;
      if (fabric_.IsShared(own_in_[i])) {
        record.staged = false;
        continue;
      }
      char* const copy = allocate(size);
      full = copy == nullptr;
      if (full) break;
      std::memcpy(copy, own_in_[i], size);
      pointers[i] = copy;
      staged_bytes_ += static_cast<int64_t>(size);
    }
  }
  if (full) {
    failure_ = std::make_shared<Failure>(
        Failure{FailureCode::kInternal,
                std::string(record.label) + ": " + std::to_string(total) +
                    " bytes that are not in the arena had to be copied to where other processes "
                    "can read them, and there is no room for that; raise STRATA_ARENA_BYTES"});
    return;
  }
  for (size_t i = 0; i < own_out_.size(); ++i) pointers[num_operands + i] = own_out_[i];
}

// False where there is no record for now.
bool ProcessMeeting::Post() {
  record_ = fabric_.TakeRecord(key_);
  if (record_ < 0) return false;
  Board& board = fabric_.board(fabric_.slot());
  Record& record = board.records[record_];
  record.num_ranks = static_cast<int32_t>(group_.ranks[own_].size());
  record.num_in = static_cast<int32_t>(in_parts_.size());
  record.num_out = static_cast<int32_t>(out_parts_.size());
  record.fingerprint = static_cast<uint64_t>(spec_->fingerprint);
  record.parts_hash = Hash(in_parts_, out_parts_);
  record.operation = spec_->operation_id;
  record.kind = static_cast<int32_t>(spec_->details.kind);
  for (size_t i = 0; i < in_parts_.size() && i < kDescribedParts; ++i) {
    record.parts[i] = in_parts_[i];
  }
  Write(record.label, spec_->label);
  record.why[0] = 0;
  // Relaxed: made public by the key.
  record.closed.store(0, std::memory_order_relaxed);
  record.num_workers.store(0, std::memory_order_relaxed);
  record.finished.store(0, std::memory_order_relaxed);
  record.counters.next.store(0, std::memory_order_relaxed);
  record.counters.done.store(0, std::memory_order_relaxed);
  if (failure_ == nullptr) Stage(record);
  uint32_t state = kPosted;
  if (failure_ != nullptr) {
    Write(record.why, failure_->message);
    state |= kFailed;
  }
  record.state.store(state, std::memory_order_relaxed);
  records_[own_] = record_;
  // Pairs with the loads in Fabric::Find: who sees the key sees the record. Sequentially
  // consistent, as those are: of two who post and then look, one sees the other.
  board.keys[record_].store(key_, std::memory_order_seq_cst);
  return true;
}

std::string ProcessMeeting::Ranks(size_t process) const {
  std::string text;
  for (int rank : group_.ranks[process]) {
    text += (text.empty() ? "rank " : ", ") + std::to_string(rank) + " (device " +
            std::to_string(group_.devices[rank]) + ")";
  }
  return text + " of " + fabric_.Title(slots_[process]);
}

std::string ProcessMeeting::Mismatch(const Record& other, size_t process) const {
  const Record& own = RecordOf(own_);
  const char* differ = nullptr;
  if (own.operation != other.operation || own.kind != other.kind) {
    differ = "they run different operations";
  } else if (own.num_in != other.num_in || own.num_out != other.num_out ||
             own.parts_hash != other.parts_hash) {
    differ = "their shapes or dtypes differ";
  } else if (own.fingerprint != other.fingerprint) {
    differ = "the collectives of their programs differ, before or after this one";
  } else if (other.num_ranks != static_cast<int32_t>(group_.ranks[process].size())) {
    differ = "they count the ranks of a process differently";
  }
  if (differ == nullptr) return "";
  return Ranks(own_) + " runs " + Describe(own) + ", but " + Ranks(process) + " runs " +
         Describe(other) + ": " + differ +
         ". All ranks must run the same program with the same shapes, in the same order";
}

// Looks for the records of others; true once all are there, checked and planned. Sets failure_.
bool ProcessMeeting::Gather() {
  bool missing = false;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (records_[i] >= 0) continue;
    records_[i] = fabric_.Find(slots_[i], key_);
    if (records_[i] < 0) {
      missing = true;
      continue;
    }
    const std::string mismatch = Mismatch(RecordOf(i), i);
    if (!mismatch.empty()) {
      FailLocked(std::make_shared<Failure>(Failure{FailureCode::kInvalidArgument, mismatch}));
      return false;
    }
  }
  // Also a second time for those seen before: one that gave up before the last of us came will
  // not have been seen by that one.
  auto failure = GivenUp();
  if (failure == nullptr && missing) return false;
  if (failure == nullptr) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      pull_ = pull_ || RecordOf(i).pull != 0;
      all_staged_ = all_staged_ && RecordOf(i).staged != 0;
    }
    // Operands that a plan reads are there until the work is finished, and no longer: one that was
    // made when that comes true is not used, whatever it read.
    exhausted_ = !pull_ && IsFinished();
    if (!exhausted_) {
      failure = Plan();
      exhausted_ = !pull_ && IsFinished();
    }
    if (exhausted_) failure = nullptr;
  }
  if (failure != nullptr) {
    FailLocked(std::move(failure));
    return false;
  }
  Count();
  all_here_ = true;
  return true;
}

std::shared_ptr<const Failure> ProcessMeeting::Plan() {
  const size_t num_ranks = static_cast<size_t>(group_.num_ranks);
  in_.assign(in_parts_.size() * num_ranks, nullptr);
  out_.assign(out_parts_.size() * num_ranks, nullptr);
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Record& record = RecordOf(i);
    const auto& ranks = group_.ranks[i];
    const void* const* pointers = record.more != nullptr ? record.more : record.pointers;
    for (size_t part = 0; part < in_parts_.size(); ++part) {
      for (size_t r = 0; r < ranks.size(); ++r) {
        const size_t at = part * ranks.size() + r;
        in_[part * num_ranks + ranks[r]] = i == own_ && pull_ ? own_in_[at] : pointers[at];
      }
    }
    if (pull_ && i != own_) continue;
    pointers += in_parts_.size() * ranks.size();
    for (size_t part = 0; part < out_parts_.size(); ++part) {
      for (size_t r = 0; r < ranks.size(); ++r) {
        out_[part * num_ranks + ranks[r]] = const_cast<void*>(pointers[part * ranks.size() + r]);
      }
    }
  }
  const std::string error = spec_->operation->plan(
      {spec_->details, group_.num_ranks, sources_, in_parts_, out_parts_, in_.data(), out_.data()},
      work_);
  if (!error.empty()) {
    return std::make_shared<Failure>(
        Failure{FailureCode::kInvalidArgument, spec_->label + ": " + error});
  }
  work_.Plan();
  counters_ = &fabric_.board(slots_[0]).records[records_[0]].counters;
  return nullptr;
}

// Whether shared work is done, for everybody.
bool ProcessMeeting::IsFinished() const {
  // Sequentially consistent, as the store in Advance() and the accesses of num_watched are: who
  // gives a meeting to the engine sees that it is finished, or is rung.
  return RecordOf(0).finished.load(std::memory_order_seq_cst) != 0;
}

// The failure of a process that gave this operation up, if one did.
std::shared_ptr<const Failure> ProcessMeeting::GivenUp() const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (i == own_ || records_[i] < 0) continue;
    // Sequentially consistent: see Fail().
    if ((RecordOf(i).state.load(std::memory_order_seq_cst) & kFailed) == 0) continue;
    return std::make_shared<Failure>(
        Failure{FailureCode::kCancelled, Ranks(i) + " gave up an operation in which " +
                                             Ranks(own_) + " takes part: " + RecordOf(i).why});
  }
  return nullptr;
}

bool ProcessMeeting::Advance(const ThreadPool* pool, Caller caller) {
  std::unique_lock<std::mutex> lock(mu_);
  if (ended_) return false;
  bool progress = false;
  int64_t num_helpers = 0;
  if (record_ < 0 && failure_ == nullptr) {
    if (!Post()) return false;
    if (failure_ != nullptr) fabric_.Ring(Others());  // no room to stage
    progress = true;
  }
  if (failure_ == nullptr && !all_here_) {
    if (!Gather()) {
      if (failure_ == nullptr) return progress;
    } else {
      if (pull_ || work_.num_units() > 1) fabric_.Ring(Others());
      if (pool != nullptr && work_.moved_bytes() > kAloneBytes) {
        // Where all share the work, each of the processes comes with a thread.
        num_helpers = std::min<int64_t>(
            NumThreads() - static_cast<int64_t>(pull_ ? 1 : slots_.size()), work_.num_units() - 1);
      }
    }
    progress = true;
  }
  if (failure_ == nullptr && !exhausted_) {
    Record& home = fabric_.board(slots_[0]).records[records_[0]];
    Record& own = fabric_.board(fabric_.slot()).records[record_];
    own.num_workers.store(++num_workers_, std::memory_order_relaxed);
    lock.unlock();
    for (int64_t i = 0; i < num_helpers; ++i) {  // outside the lock: a full pool runs them at once
      pool->schedule(pool->pool,
                     [self = shared_from_this()] { self->Advance(nullptr, Caller::kOther); });
    }
    const bool last =
        pull_ ? work_.Run(local_counters_, &own.closed) : work_.Run(*counters_, &home.closed);
    lock.lock();
    own.num_workers.store(--num_workers_, std::memory_order_relaxed);
    exhausted_ = true;
    progress = true;
    if (last && failure_ == nullptr && !worked_) {
      // Somebody who gave up may have had its operands overwritten meanwhile.
      if (auto failure = GivenUp()) {
        FailLocked(std::move(failure));
      } else {
        worked_ = true;
        if (!pull_) {
          home.finished.store(1, std::memory_order_seq_cst);  // see IsFinished()
          fabric_.Ring(Others());
        }
      }
    }
  }
  if (failure_ == nullptr && all_here_ && exhausted_ && !pull_ && !IsFinished()) {
    // Who gave up after this process had no unit left may have had one.
    if (auto failure = GivenUp()) FailLocked(std::move(failure));
  }
  return Settle(lock, caller) || progress;
}

bool ProcessMeeting::OthersLeft() const {
  const uint64_t dead = fabric_.dead();
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (i == own_ || (dead >> slots_[i] & 1) != 0) continue;
    Board& board = fabric_.board(slots_[i]);
    // Acquire pairs with the stores in Settle and Reclaim: what the other read, it has read. A
    // record that is not there any more was returned after all had left.
    if (board.keys[records_[i]].load(std::memory_order_acquire) != key_) continue;
    if ((board.records[records_[i]].state.load(std::memory_order_acquire) & kLeft) == 0) {
      return false;
    }
  }
  return true;
}

// Ends and leaves the meeting if it is time; releases the lock. True if it ended here.
bool ProcessMeeting::Settle(std::unique_lock<std::mutex>& lock, Caller caller) {
  Record& own = fabric_.board(fabric_.slot()).records[record_ < 0 ? 0 : record_];
  const bool pulled = pull_ && worked_;
  const auto leave = [&] {
    if (left_ || num_workers_ > 0) return;
    left_ = true;
    if (record_ < 0) return;
    // Release pairs with the loads in OthersLeft and IsReclaimable.
    own.state.fetch_or(kLeft, std::memory_order_release);
    // Others wait for it only where they posted operands of their own.
    if ((pull_ && !all_staged_) || failure_ != nullptr) fabric_.Ring(Others());
  };
  if (pulled) leave();
  bool ends = false;
  if (!ended_) {
    if (failure_ != nullptr) {
      ends = num_workers_ == 0;
    } else if (all_here_) {
      ends = pull_ ? pulled && (own.staged != 0 || OthersLeft()) : IsFinished();
    }
  }
  if (ends) ended_.store(true, std::memory_order_release);
  if (ended_) leave();
  const bool retire = ended_ && left_ && !retired_;
  if (retire) retired_ = true;
  OnEnd on_end;
  std::shared_ptr<const Failure> failure = failure_;
  if (ends) on_end = std::move(on_end_);
  lock.unlock();
  if (retire) fabric_.Retire(shared_from_this());
  if (on_end) on_end(std::move(failure), caller);
  return ends;
}

void ProcessMeeting::FailLocked(std::shared_ptr<const Failure> failure) {
  failure_ = std::move(failure);
  if (record_ < 0) {
    Post();  // so that the others learn of it; without a record to be had, by their deadline
    fabric_.Ring(Others());
    return;
  }
  Record& own = fabric_.board(fabric_.slot()).records[record_];
  // Held before anybody can learn that it is given up, and so before XLA can free them.
  for (void* result : own_out_) {
    if (own.pull != 0 || !fabric_.IsShared(result)) continue;
    if (char* block = fabric_.arena()->Hold(result)) held_.push_back(block);
  }
  Write(own.why, failure_->message);
  // Sequentially consistent, as the look for the first process's record is: if that is not there
  // yet, then who finds it, and with it all, looks once more whether one gave up, and sees this.
  own.state.fetch_or(kFailed, std::memory_order_seq_cst);
  own.closed.store(1, std::memory_order_relaxed);
  // Where each does its own work the first process may have gone on, with its record.
  if (records_[0] < 0 && !pull_) records_[0] = fabric_.Find(slots_[0], key_);
  if (records_[0] >= 0 && !pull_) {
    fabric_.board(slots_[0]).records[records_[0]].closed.store(1, std::memory_order_relaxed);
  }
  fabric_.Ring(Others());
}

bool ProcessMeeting::Fail(std::shared_ptr<const Failure> failure) {
  std::unique_lock<std::mutex> lock(mu_);
  if (ended_ || failure_ != nullptr) return false;
  if (all_here_ && !pull_ && IsFinished()) {
    Settle(lock, Caller::kOther);
    return false;
  }
  FailLocked(std::move(failure));
  Settle(lock, Caller::kOther);
  return true;
}

bool ProcessMeeting::FailOfDead(std::shared_ptr<const Failure> failure) {
  Advance(nullptr, Caller::kOther);  // the dead may have posted, or even done, all that is needed
  std::unique_lock<std::mutex> lock(mu_);
  if (ended_) return num_workers_ > 0;
  // Shared work that is not finished never will be: they may have claimed some of it.
  const bool goes_on = all_here_ && (pull_ || IsFinished());
  if (failure_ == nullptr && !goes_on) FailLocked(std::move(failure));
  const bool reads = num_workers_ > 0 || (failure_ == nullptr && !worked_);
  Settle(lock, Caller::kOther);
  return reads;
}

bool ProcessMeeting::TryReclaim() {
  std::lock_guard<std::mutex> lock(mu_);
  const uint64_t dead = fabric_.dead();
  bool all_left = true, may_write = false;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (i == own_ || (dead >> slots_[i] & 1) != 0) continue;
    if (records_[i] < 0) records_[i] = fabric_.Find(slots_[i], key_);
    if (records_[i] < 0) {
      all_left = false;  // when it comes it sees that we gave up, and writes nothing
      continue;
    }
    Board& board = fabric_.board(slots_[i]);
    if (board.keys[records_[i]].load(std::memory_order_acquire) != key_) continue;
    if ((board.records[records_[i]].state.load(std::memory_order_acquire) & kLeft) != 0) continue;
    all_left = false;
    may_write = true;
  }
  if (!may_write) {
    for (char* block : held_) fabric_.arena()->Release(block);
    held_.clear();
  }
  if (all_left || (failure_ != nullptr && !may_write)) {
    // Who comes later sees that this process gave up before it reads what was posted.
    if (mailbox_ != nullptr) fabric_.ReturnMailbox(mailbox_);
    for (void* block : staged_) fabric_.staging().Free(block);
    mailbox_ = nullptr;
    staged_.clear();
  }
  if (!all_left) return false;
  if (record_ >= 0) fabric_.ReturnRecord(record_);
  record_ = -1;
  return true;
}

std::string ProcessMeeting::Missing() {
  std::lock_guard<std::mutex> lock(mu_);
  if (ended_) return "";
  std::string text;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (i == own_ || (records_[i] >= 0 && !all_here_)) continue;
    std::string doing;
    if (!all_here_) {
      doing = fabric_.Doing(slots_[i]);
    } else if (RecordOf(i).num_workers.load(std::memory_order_relaxed) > 0) {
      doing = ", which has not done its part of the work";
    } else if (!pull_ || (RecordOf(i).state.load(std::memory_order_relaxed) & kLeft) != 0) {
      continue;
    }
    text += (text.empty() ? "" : "; ") + Ranks(i) + doing + fabric_.StoppedNote(slots_[i]);
  }
  return text;
}

void ProcessMeeting::Count() const {
  OperationStats& stats = spec_->operation->stats;
  const size_t num_ranks = group_.ranks[own_].size();
  int64_t bytes = 0, registered = 0;
  for (size_t part = 0; part < in_parts_.size(); ++part) {
    const int64_t num_bytes = NumBytes(in_parts_[part]);
    bytes += num_bytes * static_cast<int64_t>(num_ranks);
    for (size_t r = 0; part < out_parts_.size() && r < num_ranks; ++r) {
      const size_t at = part * num_ranks + r;
      if (fabric_.IsShared(own_in_[at]) && fabric_.IsShared(own_out_[at])) registered += num_bytes;
    }
  }
  int64_t written = 0;
  for (const Part& part : out_parts_) written += NumBytes(part) * static_cast<int64_t>(num_ranks);
  stats.calls.fetch_add(static_cast<int64_t>(num_ranks), std::memory_order_relaxed);
  stats.operations.fetch_add(1, std::memory_order_relaxed);
  stats.buffers.fetch_add(static_cast<int64_t>(in_parts_.size()), std::memory_order_relaxed);
  stats.bytes.fetch_add(bytes, std::memory_order_relaxed);
  stats.written_bytes.fetch_add(written, std::memory_order_relaxed);
  stats.registered_bytes.fetch_add(registered, std::memory_order_relaxed);
  stats.across.fetch_add(1, std::memory_order_relaxed);
  if (mailbox_ != nullptr) stats.mailed.fetch_add(1, std::memory_order_relaxed);
  stats.staged_bytes.fetch_add(staged_bytes_, std::memory_order_relaxed);
}

}  // namespace strata::core
