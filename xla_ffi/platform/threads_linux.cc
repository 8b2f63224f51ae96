// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "platform/threads.h"

namespace strata::platform {
namespace {

constexpr size_t kStackBytes = size_t{8} << 20;

unsigned long ReadFpMode() {
#if defined(__x86_64__)
  return _mm_getcsr();
#elif defined(__aarch64__)
  unsigned long mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
#endif
}

void WriteFpMode(unsigned long mode) {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<unsigned>(mode));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(mode));
#endif
}

unsigned long XlaFpMode(unsigned long mode) {
#if defined(__x86_64__)
  return (mode & ~0x6000ul) | 0x8040ul;  // rounding bits 13-14 to nearest; FTZ bit 15, DAZ bit 6
#elif defined(__aarch64__)
  return (mode & ~(3ul << 22)) | 1ul << 24;  // RMode bits 22-23 to nearest; FZ bit 24
#endif
}

struct Start {
  std::string name;
  std::function<void()> body;
};

void* Run(void* argument) {
  std::unique_ptr<Start> start(static_cast<Start*>(argument));
  pthread_setname_np(pthread_self(), start->name.c_str());
  ScopedFpMode fp_mode;
  start->body();
  return nullptr;
}

}  // namespace

void StartThread(const char* name, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // a thread starts with its creator's mask
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, Run, new Start{name, std::move(body)});
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    std::fprintf(stderr,
                 "strata_jax: cannot start thread %s (error %d); raise the limit on threads\n",
                 name, error);
    std::abort();
  }
}

int64_t ProcessId() { return getpid(); }

int NumCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  const int count = CPU_COUNT(&set);
  return count > 0 ? count : 1;
}

ScopedFpMode::ScopedFpMode() : saved_(ReadFpMode()) { WriteFpMode(XlaFpMode(saved_)); }

ScopedFpMode::~ScopedFpMode() { WriteFpMode(saved_); }

}  // namespace strata::platform
