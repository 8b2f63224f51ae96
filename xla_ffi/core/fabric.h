// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// This process's place among the processes of its host: who the others are, whether they live, and
// the threads that work for operations across processes.
#ifndef STRATA_CORE_FABRIC_H_
#define STRATA_CORE_FABRIC_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/control.h"
#include "core/launches.h"

namespace strata::core {

class ProcessMeeting;

// CPU device ids are process_index << 11 | local index (xla/pjrt/cpu/cpu_topology.cc).
inline constexpr int kProcessShift = 11;

// A process of this host, by slot.
struct Process {
  int process_index = 0;
  int64_t pid = 0;
  int socket = -1;  // connected to it; -1 for this process itself
  // Its shared memory, mapped here at the address at which it has it.
  char* arena = nullptr;
  size_t arena_bytes = 0;
  char* staging = nullptr;
  size_t staging_bytes = 0;
};

class Fabric {
 public:
  // `control` has a board for each process and is mapped for good; `arena` is where this process's
  // arrays are, `staging` where copies of those go that are not.
  Fabric(Control* control, int slot, std::vector<Process> processes, Arena* arena,
         std::unique_ptr<Arena> staging);
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;
  ~Fabric();  // for tests: a process keeps its fabric until it ends

  // Threads, for good: the engine, and the one that notices when others end. `coordinator` is the
  // slot of the process without which JAX ends this one, for the message; -1 for none.
  void Start(int coordinator = -1);

  int slot() const { return slot_; }
  const Process& process(int slot) const { return processes_[slot]; }
  int num_processes() const { return static_cast<int>(processes_.size()); }
  // The slot of a device's process; -1 where it is on another host.
  int SlotOf(int64_t device) const;
  std::string Title(int slot) const;  // "process 1 (pid 123)"

  // Whether this is a forked child of the process that joined.
  bool forked() const { return forked_.load(std::memory_order_relaxed); }
  // Processes that have ended, by bit; never taken back.
  uint64_t dead() const { return dead_.load(std::memory_order_acquire); }
  // Notes that a process has ended, and fails what waits for it. Ends once nobody here reads or
  // writes its memory any more, which is then given back.
  void MarkDead(int slot);
  // Which of the processes of a mask are dead, with their ranks among `devices`.
  std::string WhyDead(uint64_t mask, const std::vector<int64_t>& devices) const;
  // " (that process is stopped, ...)" or nothing.
  std::string StoppedNote(int slot) const;
  // ", which waits in ..." or what it gave up, for messages; empty if nothing.
  std::string Doing(int slot) const;
  // Whether a process that is dead said before that it would end.
  bool EndedInOrder(int slot) const;
  // Tells the others that this process is about to end in good order.
  void SetExiting();
  // Lets the others see this process as ended: none of its ranks will take part in anything again.
  void Leave();

  Board& board(int slot) const { return control_->board(slot); }
  bool IsShared(const void* pointer) const {
    return arena_ != nullptr && arena_->Contains(pointer);
  }
  Arena* arena() const { return arena_; }
  Arena& staging() { return *staging_; }

  // Where the record with a key is on a board, -1 if it is not.
  int Find(int slot, uint64_t key) const;
  // A free record of this process for a key; -1 where there is none at the moment.
  int TakeRecord(uint64_t key);
  void ReturnRecord(int index);
  char* TakeMailbox();  // null where there is none at the moment
  void ReturnMailbox(char* mailbox);

  // Wakes the engines of processes if they sleep.
  void Ring(uint64_t mask) const;
  // Lets the engine look after a meeting until it has ended.
  void Watch(std::shared_ptr<ProcessMeeting> meeting);
  // Keeps what others may still read or write until they have left a meeting that ended here.
  void Retire(std::shared_ptr<ProcessMeeting> meeting);
  bool Sweep();  // whether something was given up

  // Microseconds that a rank may wait for others by looking again and again.
  double spin_us() const { return spin_us_.load(std::memory_order_relaxed); }
  void SetSpin(double spin_us) { spin_us_.store(spin_us, std::memory_order_relaxed); }

  // Numbers the runs of the programs of one identity, the same on all processes.
  Launches& LaunchesOf(uint64_t program);

  int NumRetired();

  static void AfterForkInChild();

 private:
  void Engine();
  void WatchProcesses();
  bool Round();
  void SayThatItDied(int slot) const;

  Control* const control_;
  const int slot_;
  const std::vector<Process> processes_;
  Arena* const arena_;
  const std::unique_ptr<Arena> staging_;
  std::map<int, int> slot_of_process_;
  // By slot: the socket, and a descriptor of the process; -1 where there is none any more. Only the
  // thread that watches them changes them; a forked child reads them (relaxed: it is alone).
  std::vector<std::atomic<int>> sockets_, process_fds_;
  int coordinator_ = -1;
  std::atomic<uint64_t> dead_{0};  // release: who sees it sees what MarkDead did before
  std::atomic<double> spin_us_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> forked_{false};  // written in a child, where nobody else runs

  std::mutex mu_;  // guards all below
  std::list<std::shared_ptr<ProcessMeeting>> watched_;
  std::deque<std::shared_ptr<ProcessMeeting>> retired_;
  std::vector<bool> taken_;  // records of this process
  uint64_t num_taken_ = 0;
  std::vector<char*> free_mailboxes_;  // the last used first: its pages are warm
  std::map<uint64_t, std::unique_ptr<Launches>> launches_;
  int num_threads_ = 0;
  std::condition_variable stopped_;  // num_threads_ became 0
};

// This process's; null in a job of one process, and in a forked child. Set once.
Fabric* TheFabric();
void SetTheFabric(std::unique_ptr<Fabric> fabric);

}  // namespace strata::core

#endif  // STRATA_CORE_FABRIC_H_
