// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// ragged_all_to_all against plain loops over rows, with good offsets and with all kinds of bad
// ones.
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "core/operation.h"

namespace strata::core {
namespace {

constexpr int64_t kRowElements = 3;

struct Ragged {
  Ragged(int num_ranks, int per_rank, int64_t in_rows, int64_t out_rows, bool in_place)
      : n(num_ranks), k(per_rank), in_rows(in_rows), out_rows(out_rows), in_place(in_place) {
    for (int r = 0; r < n; ++r) {
      operand.emplace_back();
      for (int64_t i = 0; i < in_rows * kRowElements; ++i) operand[r].push_back(1000 * r + i);
      output.emplace_back(out_rows * kRowElements, -1 - r);
      result.push_back(in_place ? output[r] : std::vector<int32_t>(out_rows * kRowElements, 77));
      for (auto* ids : {&input_offsets, &send_sizes, &output_offsets, &recv_sizes}) {
        ids->emplace_back(n * k, 0);
      }
    }
  }

  // Each row of each rank by itself: the last of its writers counts.
  std::vector<std::vector<int32_t>> Expected() const {
    auto expected = output;
    for (int s = 0; s < n; ++s) {
      for (int i = 0; i < n * k; ++i) {
        const __int128 in = input_offsets[s][i], out = output_offsets[s][i];
        for (int64_t row = 0; row < out_rows; ++row) {
          const __int128 at = row - out;  // of this update's rows
          if (at < 0 || at >= send_sizes[s][i] || in + at < 0 || in + at >= in_rows) continue;
          for (int64_t e = 0; e < kRowElements; ++e) {
            expected[i / k][row * kRowElements + e] =
                operand[s][static_cast<int64_t>(in + at) * kRowElements + e];
          }
        }
      }
    }
    return expected;
  }

  std::string Run() {
    const Part ids{DType::kS64, n * k};
    const std::vector<Part> in_parts = {{DType::kS32, in_rows * kRowElements},
                                        {DType::kS32, out_rows * kRowElements},
                                        ids,
                                        ids,
                                        ids,
                                        ids};
    std::vector<const void*> in;
    std::vector<void*> out;
    for (auto& v : operand) in.push_back(v.data());
    for (int r = 0; r < n; ++r) in.push_back(in_place ? result[r].data() : output[r].data());
    for (auto* all : {&input_offsets, &send_sizes, &output_offsets, &recv_sizes}) {
      for (auto& v : *all) in.push_back(v.data());
    }
    for (auto& v : result) out.push_back(v.data());
    OperationSpec spec;
    spec.in_rows = in_rows;
    spec.out_rows = out_rows;
    spec.row_elements = kRowElements;
    const std::vector<int> sources(n, -1);
    Work work;
    work.Clear();
    const std::string error = kRaggedAllToAll.plan(
        {spec, n, sources, in_parts, {in_parts[1]}, in.data(), out.data()}, work);
    if (!error.empty()) return error;
    work.Plan();
    std::thread other([&] { work.Run(); });
    work.Run();
    other.join();
    return "";
  }

  int n, k;
  int64_t in_rows, out_rows;
  bool in_place;
  std::vector<std::vector<int32_t>> operand, output, result;
  std::vector<std::vector<int64_t>> input_offsets, send_sizes, output_offsets, recv_sizes;
};

TEST(Ragged, RandomOffsetsGoodAndBad) {
  std::mt19937 random(5);
  for (int round = 0; round < 600; ++round) {
    auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    Ragged ragged(static_cast<int>(pick(1, 4)), static_cast<int>(pick(1, 3)), pick(0, 20),
                  pick(0, 20), round % 2 == 0);
    for (auto* ids : {&ragged.input_offsets, &ragged.send_sizes, &ragged.output_offsets}) {
      for (auto& of_rank : *ids) {
        for (auto& value : of_rank) value = pick(round % 3 == 0 ? -9 : 0, 9);
      }
    }
    ASSERT_EQ(ragged.Run(), "");
    ASSERT_EQ(ragged.result, ragged.Expected()) << round;
  }
}

TEST(Ragged, ExtremeNumbers) {
  const int64_t extremes[] = {std::numeric_limits<int64_t>::min(), -1, 0, 3, 1 << 30,
                              std::numeric_limits<int64_t>::max()};
  for (int64_t in : extremes) {
    for (int64_t size : extremes) {
      for (int64_t out : extremes) {
        Ragged ragged(2, 1, 5, 6, false);
        ragged.input_offsets[1][0] = in;
        ragged.send_sizes[1][0] = size;
        ragged.output_offsets[1][0] = out;
        ASSERT_EQ(ragged.Run(), "");
        ASSERT_EQ(ragged.result, ragged.Expected()) << in << " " << size << " " << out;
        SetRaggedChecks(true);
        ragged.Run();  // an error or not, it reads nothing that is not there
        SetRaggedChecks(false);
      }
    }
  }
}

TEST(Ragged, ChecksSayWhatIsWrong) {
  SetRaggedChecks(true);
  Ragged outside(2, 1, 5, 6, false);
  outside.send_sizes[1][0] = outside.recv_sizes[0][1] = 6;
  const std::string text = outside.Run();
  EXPECT_NE(text.find("rank 1, index 0: input_offsets 0, send_sizes 6, output_offsets 0, with 5 "
                      "rows of operand and 6 of output"),
            std::string::npos)
      << text;
  Ragged overlapping(2, 1, 5, 6, false);
  overlapping.send_sizes = {{2, 0}, {2, 0}};
  overlapping.recv_sizes = {{2, 2}, {0, 0}};
  overlapping.output_offsets = {{0, 0}, {1, 0}};
  EXPECT_NE(overlapping.Run().find("two writes to one row of rank 0"), std::string::npos);
  Ragged unexpected(2, 1, 5, 6, false);
  unexpected.send_sizes[0][1] = 2;
  EXPECT_NE(unexpected.Run().find("rank 1 expects recv_sizes 0 from rank 0"), std::string::npos);
  SetRaggedChecks(false);
}

TEST(Ragged, OtherOperandsAreErrors) {
  const std::vector<int> sources(1, -1);
  OperationSpec spec;
  Work work;
  const std::vector<Part> parts(5, Part{DType::kF32, 1});
  float value = 0;
  const std::vector<const void*> in(5, &value);
  void* out[] = {&value};
  EXPECT_NE(kRaggedAllToAll.plan({spec, 1, sources, parts, {parts[1]}, in.data(), out}, work), "");
}

}  // namespace
}  // namespace strata::core
