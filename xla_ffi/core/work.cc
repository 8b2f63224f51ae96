// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#include "core/work.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>

#include "platform/threads.h"

namespace strata::core {
namespace {

// Bytes of a transfer in a unit. Small enough that two cores end at the same time, large enough
// that claiming (about 0.1 us) is lost in it.
constexpr int64_t kUnitBytes = 128 << 10;

// Results of all ranks together from which stores bypass the caches: the last-level cache would
// not hold them until they are read, and a cached store reads the line first.
constexpr int64_t kStreamBytes = 8 << 20;

// Elements that are reduced at a time where rows begin inside bytes.
constexpr int64_t kBitsBlock = 1024;

// Written at init, read by every large operation; orders nothing.
std::atomic<int> num_threads_wanted{0};

// Copies elements of 1, 2 or 4 bits between any places in bytes.
void CopyBits(const void* in, int64_t in_bit, void* out, int64_t out_bit, int64_t num_elements,
              int bit_width) {
  const uint8_t* from = static_cast<const uint8_t*>(in);
  uint8_t* to = static_cast<uint8_t*>(out);
  const unsigned mask = (1u << bit_width) - 1;
  for (int64_t i = 0; i < num_elements; ++i, in_bit += bit_width, out_bit += bit_width) {
    const unsigned value = (from[in_bit / 8] >> (in_bit % 8)) & mask;
    uint8_t& byte = to[out_bit / 8];
    byte = static_cast<uint8_t>((byte & ~(mask << (out_bit % 8))) | (value << (out_bit % 8)));
  }
}

// Calls visit(in_offset, out_offset, count) for each piece of the elements [first, last) of a
// transfer that is contiguous on both sides, and whole rows of the innermost loop at once:
// visit_rows(in_offset, out_offset, loop, num_rows).
template <typename Visit, typename VisitRows>
void ForEachRow(const Rows& rows, int64_t first, int64_t last, Visit visit, VisitRows visit_rows) {
  const size_t num_loops = rows.loops.size();
  constexpr size_t kFew = 6;
  int64_t few[kFew];
  std::unique_ptr<int64_t[]> more(num_loops > kFew ? new int64_t[num_loops] : nullptr);
  int64_t* index = more != nullptr ? more.get() : few;
  int64_t row = first / rows.run, at = first % rows.run;
  int64_t in = 0, out = 0;
  for (size_t i = num_loops; i-- > 0;) {
    const Loop& loop = rows.loops[i];
    index[i] = row % loop.count;
    row /= loop.count;
    in += index[i] * loop.in_stride;
    out += index[i] * loop.out_stride;
  }
  while (first < last) {
    int64_t num_rows = 1;
    if (num_loops > 0 && at == 0 && last - first >= rows.run) {
      const Loop& loop = rows.loops.back();
      num_rows = std::min(loop.count - index[num_loops - 1], (last - first) / rows.run);
      visit_rows(in, out, loop, num_rows);
      first += num_rows * rows.run;
    } else {
      const int64_t count = std::min(rows.run - at, last - first);
      visit(in + at, out + at, count);
      first += count;
      at = 0;
    }
    for (size_t i = num_loops; i-- > 0; num_rows = 1) {
      const Loop& loop = rows.loops[i];
      index[i] += num_rows;
      in += num_rows * loop.in_stride;
      out += num_rows * loop.out_stride;
      if (index[i] < loop.count) break;
      index[i] = 0;
      in -= loop.count * loop.in_stride;
      out -= loop.count * loop.out_stride;
    }
  }
}

}  // namespace

int NumThreads() {
  const int wanted = num_threads_wanted.load(std::memory_order_relaxed);
  static const int cores = platform::NumCores();
  return wanted > 0 ? wanted : cores;
}

void SetNumThreads(int num_threads) {
  num_threads_wanted.store(num_threads, std::memory_order_relaxed);
}

bool Rows::Measure() {
  num_elements = in_extent = out_extent = run;
  for (const Loop& loop : loops) {
    if (loop.count < 0 || loop.in_stride < 0 || loop.out_stride < 0) return false;
    num_elements *= loop.count;
    in_extent += (loop.count - 1) * loop.in_stride;
    out_extent += (loop.count - 1) * loop.out_stride;
  }
  return run >= 0;
}

Rows OneRow(int64_t num_elements) {
  Rows rows;
  rows.run = num_elements;
  rows.Measure();
  return rows;
}

void Work::Clear() {
  transfers_.clear();
  starts_.clear();
  num_bytes_ = num_units_ = moved_bytes_ = written_bytes_ = 0;
  whole_bytes_ = true;
  kept_.clear();
  counters_.next.store(0, std::memory_order_relaxed);
  counters_.done.store(0, std::memory_order_relaxed);
}

void Work::Add(Transfer transfer) {
  if (transfer.rows != nullptr) {
    transfer.num_elements = transfer.rows->num_elements;
    if (transfer.rows->loops.empty()) transfer.rows = nullptr;
  }
  if (transfer.num_elements == 0) return;
  void* const* const end = transfer.out + transfer.num_out;
  if (std::find(transfer.out, end, nullptr) != end) {
    std::vector<void*> kept;
    std::copy_if(transfer.out, end, std::back_inserter(kept), [](void* p) { return p != nullptr; });
    if (kept.empty()) return;
    transfer.num_out = static_cast<int>(kept.size());
    kept_.push_back(std::move(kept));
    transfer.out = kept_.back().data();
  }
  const int64_t num_bytes = (transfer.num_elements * transfer.bit_width + 7) / 8;
  if (transfer.bit_width < 8) {
    // The last row may end inside a byte only where nothing else has bits in it: where it is the
    // whole result.
    auto whole = [&](int64_t num_elements) { return num_elements * transfer.bit_width % 8 == 0; };
    whole_bytes_ = whole_bytes_ && whole(transfer.in_offset) && whole(transfer.out_offset) &&
                   (transfer.is_whole || whole(transfer.num_elements));
    if (transfer.rows != nullptr) {
      whole_bytes_ = whole_bytes_ && whole(transfer.rows->run);
      for (const Loop& loop : transfer.rows->loops) {
        whole_bytes_ = whole_bytes_ && whole(loop.in_stride) && whole(loop.out_stride);
      }
    }
  }
  starts_.push_back(num_bytes_);
  num_bytes_ += num_bytes;
  moved_bytes_ += num_bytes * std::max(transfer.num_in, transfer.num_out);
  written_bytes_ += num_bytes * transfer.num_out;
  transfers_.push_back(transfer);
}

void Work::Plan() {
  num_units_ = (num_bytes_ + kUnitBytes - 1) / kUnitBytes;
  if (!whole_bytes_) num_units_ = 1;  // two threads must not write bits of one byte
  stream_ = written_bytes_ >= kStreamBytes;
}

bool Work::Run(WorkCounters& counters, const std::atomic<uint32_t>* closed) {
  platform::ScopedFpMode fp_mode;
  int64_t num_done = 0;
  // `closed` orders nothing: who sets it waits for this process to leave.
  while (closed == nullptr || closed->load(std::memory_order_relaxed) == 0) {
    const int64_t unit = counters.next.fetch_add(1, std::memory_order_relaxed);
    if (unit >= num_units_) break;
    RunUnit(unit);
    ++num_done;
  }
  if (num_done == 0) return num_units_ == 0;
  return counters.done.fetch_add(num_done, std::memory_order_acq_rel) + num_done == num_units_;
}

void Work::RunUnit(int64_t unit) const {
  if (!whole_bytes_) {
    for (const Transfer& transfer : transfers_) {
      if (transfer.bit_width < 8) {
        RunBits(transfer);
      } else {
        RunRows(transfer, 0, transfer.num_elements);
      }
    }
    return;
  }
  const int64_t begin = unit * kUnitBytes, end = std::min(begin + kUnitBytes, num_bytes_);
  size_t index = std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin() - 1;
  for (; index < transfers_.size() && starts_[index] < end; ++index) {
    const Transfer& transfer = transfers_[index];
    // A boundary inside a transfer is moved down to a multiple of 64 elements, by the same rule for
    // the unit that ends and the one that begins there.
    auto element_at = [&](int64_t byte) -> int64_t {
      if (byte <= starts_[index]) return 0;
      const int64_t element = (byte - starts_[index]) * 8 / transfer.bit_width;
      return element >= transfer.num_elements ? transfer.num_elements : element / 64 * 64;
    };
    const int64_t first = element_at(begin), last = element_at(end);
    if (first < last) RunRows(transfer, first, last);
  }
}

void Work::RunRows(const Transfer& t, int64_t first, int64_t last) const {
  const KernelSet& kernels = Kernels();
  auto bytes = [&](int64_t num_elements) { return (num_elements * t.bit_width + 7) / 8; };
  auto run = [&](int64_t in, int64_t out, int64_t count) {
    in += t.in_offset;
    out += t.out_offset;
    if (t.num_in > 1) {
      t.reduce(t.in, t.num_in, in, t.out, t.num_out, out, count, stream_);
    } else if (t.num_in == 1) {
      kernels.copy_rows({t.in[0], t.out, t.num_out, bytes(in), bytes(out), 1, bytes(count), 0, 0},
                        stream_);
    } else {
      for (int i = 0; i < t.num_out; ++i) {
        std::memset(static_cast<char*>(t.out[i]) + bytes(out), 0, bytes(count));
      }
    }
  };
  if (t.rows == nullptr) {
    run(first, first, last - first);
    return;
  }
  auto run_rows = [&](int64_t in, int64_t out, const Loop& loop, int64_t num_rows) {
    if (t.num_in == 1) {
      kernels.copy_rows(
          {t.in[0], t.out, t.num_out, bytes(t.in_offset + in), bytes(t.out_offset + out), num_rows,
           bytes(t.rows->run), bytes(loop.in_stride), bytes(loop.out_stride)},
          stream_);
      return;
    }
    for (int64_t row = 0; row < num_rows; ++row) {
      run(in + row * loop.in_stride, out + row * loop.out_stride, t.rows->run);
    }
  };
  ForEachRow(*t.rows, first, last, run, run_rows);
}

// For packed elements whose rows begin inside bytes: slow, and by one thread alone.
void Work::RunBits(const Transfer& t) const {
  alignas(16) uint8_t block[kBitsBlock];
  std::vector<uint8_t> inputs(t.num_in * kBitsBlock);
  std::vector<const void*> pointers(t.num_in);
  for (int i = 0; i < t.num_in; ++i) pointers[i] = &inputs[i * kBitsBlock];
  void* result = block;
  auto run = [&](int64_t in, int64_t out, int64_t count) {
    in += t.in_offset;
    out += t.out_offset;
    for (int64_t done = 0; done < count; done += kBitsBlock) {
      const int64_t here = std::min(kBitsBlock, count - done);
      for (int i = 0; i < t.num_in; ++i) {
        CopyBits(t.in[i], (in + done) * t.bit_width, &inputs[i * kBitsBlock], 0, here, t.bit_width);
      }
      if (t.num_in > 1) {
        t.reduce(pointers.data(), t.num_in, 0, &result, 1, 0, here, false);
      } else if (t.num_in == 1) {
        std::memcpy(block, inputs.data(), kBitsBlock);
      } else {
        std::memset(block, 0, kBitsBlock);
      }
      for (int i = 0; i < t.num_out; ++i) {
        CopyBits(block, 0, t.out[i], (out + done) * t.bit_width, here, t.bit_width);
      }
    }
  };
  if (t.rows == nullptr) {
    run(0, 0, t.num_elements);
    return;
  }
  ForEachRow(*t.rows, 0, t.num_elements, run,
             [&](int64_t in, int64_t out, const Loop& loop, int64_t num_rows) {
               for (int64_t row = 0; row < num_rows; ++row) {
                 run(in + row * loop.in_stride, out + row * loop.out_stride, t.rows->run);
               }
             });
}

}  // namespace strata::core
