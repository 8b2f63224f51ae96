// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Rows from anywhere in the operand of one rank to anywhere in the result of another, as the
// senders' offsets and sizes say (the operation of XLA's name):
//
//   result of r, rows [output_offsets_s[i], + send_sizes_s[i])
//     = operand of s, rows [input_offsets_s[i], + send_sizes_s[i])
//
// for every rank s and each of its updates i for r; with k updates a rank, those for r are
// i = r k ... r k + k - 1. Rows that nobody writes keep the value of r's `output`.
//
// Whatever the offsets are, no byte outside the buffers is touched, and the result does not depend
// on the order in which threads work: rows outside the buffers are not moved, and of several writes
// to one row that of the highest rank counts, of one rank that of the last update. With checks on,
// both are errors.
#include <algorithm>
#include <limits>
#include <optional>

#include "core/operation.h"

namespace strata::core {
namespace {

enum Operand { kOperand, kOutput, kInputOffsets, kSendSizes, kOutputOffsets, kRecvSizes, kCount };

// Written at init; orders nothing.
std::atomic<bool> checks{false};

std::optional<int64_t> Integer(DType dtype, const void* values, int64_t index) {
  switch (dtype) {
    case DType::kS8:
      return static_cast<const int8_t*>(values)[index];
    case DType::kU8:
      return static_cast<const uint8_t*>(values)[index];
    case DType::kS16:
      return static_cast<const int16_t*>(values)[index];
    case DType::kU16:
      return static_cast<const uint16_t*>(values)[index];
    case DType::kS32:
      return static_cast<const int32_t*>(values)[index];
    case DType::kU32:
      return static_cast<const uint32_t*>(values)[index];
    case DType::kS64:
    case DType::kU64:
      return static_cast<const int64_t*>(values)[index];
    default:
      return std::nullopt;
  }
}

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

// rows - offset, or the largest number where that is larger.
int64_t Room(int64_t rows, int64_t offset) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return offset < 0 && rows > kMost + offset ? kMost : rows - offset;
}

// Rows of one update, cut to the buffers.
struct Update {
  int64_t first, last;  // rows of the result
  int64_t in_first;     // row of the operand that goes to `first`
  int source, index;    // its sender, and which of its updates
};

class Planner {
 public:
  Planner(const Meeting& meeting, Work& work)
      : meeting_(meeting), work_(work), spec_(meeting.spec) {}

  std::string Plan() {
    const auto& parts = meeting_.in_parts;
    if (parts.size() != kCount || meeting_.out_parts.size() != 1 ||
        !(meeting_.out_parts[0] == parts[kOutput]) ||
        parts[kOperand].dtype != parts[kOutput].dtype) {
      return "needs operand, output, input_offsets, send_sizes, output_offsets and recv_sizes";
    }
    num_ids_ = parts[kInputOffsets].num_elements;
    for (int i = kInputOffsets; i < kCount; ++i) {
      if (parts[i].num_elements != num_ids_ || !Integer(parts[i].dtype, kZeros, 0)) {
        return "offsets and sizes must be integers, as many of one kind as of the other";
      }
    }
    if (num_ids_ % meeting_.num_ranks != 0) {
      return std::to_string(num_ids_) + " offsets for " + std::to_string(meeting_.num_ranks) +
             " ranks; their number must be a multiple";
    }
    if (spec_.in_rows * spec_.row_elements != parts[kOperand].num_elements ||
        spec_.out_rows * spec_.row_elements != parts[kOutput].num_elements) {
      return "rows do not fill the buffers";
    }
    for (int rank = 0; rank < meeting_.num_ranks; ++rank) {
      std::string error = PlanRank(rank);
      if (!error.empty()) return error;
    }
    return "";
  }

 private:
  int64_t At(Operand operand, int rank, int64_t index) const {
    return *Integer(meeting_.in_parts[operand].dtype, *meeting_.In(operand, rank), index);
  }

  std::string Describe(int source, int64_t i) const {
    return "rank " + std::to_string(source) + ", index " + std::to_string(i) + ": input_offsets " +
           std::to_string(At(kInputOffsets, source, i)) + ", send_sizes " +
           std::to_string(At(kSendSizes, source, i)) + ", output_offsets " +
           std::to_string(At(kOutputOffsets, source, i)) + ", with " +
           std::to_string(spec_.in_rows) + " rows of operand and " +
           std::to_string(spec_.out_rows) + " of output";
  }

  // The transfers to one rank.
  std::string PlanRank(int rank) {
    const int64_t per_rank = num_ids_ / meeting_.num_ranks;
    const bool check = checks.load(std::memory_order_relaxed);
    updates_.clear();
    for (int source = 0; source < meeting_.num_ranks; ++source) {
      for (int64_t i = rank * per_rank; i < (rank + 1) * per_rank; ++i) {
        const int64_t size = At(kSendSizes, source, i);
        const int64_t in = At(kInputOffsets, source, i), out = At(kOutputOffsets, source, i);
        if (check) {
          if (size < 0 || in < 0 || out < 0 || in > spec_.in_rows - size ||
              out > spec_.out_rows - size) {
            return "rows outside the buffers: " + Describe(source, i);
          }
          const int64_t expected = At(kRecvSizes, rank, source * per_rank + (i - rank * per_rank));
          if (expected != size) {
            return "rank " + std::to_string(rank) + " expects recv_sizes " +
                   std::to_string(expected) + " from " + Describe(source, i);
          }
        }
        // Cut to both buffers.
        if (size <= 0 || in == kLeast || out == kLeast) continue;
        const int64_t skip = std::max<int64_t>({0, -in, -out});
        const int64_t end = std::min({size, Room(spec_.in_rows, in), Room(spec_.out_rows, out)});
        if (skip < end) {
          updates_.push_back({out + skip, out + end, in + skip, source, static_cast<int>(i)});
        }
      }
    }
    std::sort(updates_.begin(), updates_.end(),
              [](const Update& a, const Update& b) { return a.first < b.first; });
    const bool overlap =
        std::adjacent_find(updates_.begin(), updates_.end(), [](const Update& a, const Update& b) {
          return a.last > b.first;
        }) != updates_.end();
    if (overlap) {
      if (check) return Overlap(rank);
      Separate();
    }
    Emit(rank);
    return "";
  }

  std::string Overlap(int rank) const {
    for (size_t i = 0; i + 1 < updates_.size(); ++i) {
      const Update &a = updates_[i], &b = updates_[i + 1];
      if (a.last > b.first) {
        return "two writes to one row of rank " + std::to_string(rank) + ": " +
               Describe(a.source, a.index) + "; and " + Describe(b.source, b.index);
      }
    }
    return "";
  }

  // Cuts the updates so that each row is written once, by the last of its writers.
  void Separate() {
    std::vector<int64_t> edges;
    for (const Update& update : updates_) {
      edges.push_back(update.first);
      edges.push_back(update.last);
    }
    std::sort(edges.begin(), edges.end());
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    std::vector<Update> cut;
    for (size_t e = 0; e + 1 < edges.size(); ++e) {
      const Update* winner = nullptr;
      for (const Update& update : updates_) {
        if (update.first > edges[e] || update.last < edges[e + 1]) continue;
        if (winner == nullptr || update.source > winner->source ||
            (update.source == winner->source && update.index > winner->index)) {
          winner = &update;
        }
      }
      if (winner != nullptr) {
        cut.push_back({edges[e], edges[e + 1], winner->in_first + (edges[e] - winner->first),
                       winner->source, winner->index});
      }
    }
    updates_ = std::move(cut);
  }

  void Emit(int rank) {
    void* const* out = meeting_.Out(0, rank);
    // XLA usually gives `output` and the result one buffer; then what nobody writes is there.
    const bool in_place = *meeting_.In(kOutput, rank) == *out;
    int64_t kept = 0;  // rows up to here are settled
    for (const Update& update : updates_) {
      if (!in_place) Add(meeting_.In(kOutput, rank), kept, out, kept, update.first - kept);
      Add(meeting_.In(kOperand, update.source), update.in_first, out, update.first,
          update.last - update.first);
      kept = update.last;
    }
    if (!in_place) Add(meeting_.In(kOutput, rank), kept, out, kept, spec_.out_rows - kept);
  }

  void Add(const void* const* in, int64_t in_row, void* const* out, int64_t out_row,
           int64_t num_rows) {
    Transfer transfer;
    transfer.bit_width = BitWidth(meeting_.in_parts[kOperand].dtype);
    transfer.num_in = transfer.num_out = 1;
    transfer.in = in;
    transfer.out = out;
    transfer.in_offset = in_row * spec_.row_elements;
    transfer.out_offset = out_row * spec_.row_elements;
    transfer.num_elements = num_rows * spec_.row_elements;
    work_.Add(transfer);
  }

  static constexpr int64_t kZeros[1] = {0};

  const Meeting& meeting_;
  Work& work_;
  const OperationSpec& spec_;
  int64_t num_ids_ = 0;
  std::vector<Update> updates_;
};

std::string Plan(const Meeting& meeting, Work& work) { return Planner(meeting, work).Plan(); }

OperationStats stats;

}  // namespace

void SetRaggedChecks(bool on) { checks.store(on, std::memory_order_relaxed); }

const Operation kRaggedAllToAll = {"ragged_all_to_all", Plan, stats};

}  // namespace strata::core
