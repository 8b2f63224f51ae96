// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// Numbers of runs that are the same in all processes, whatever XLA's run ids are.
#include "core/launches.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <utility>

namespace strata::core {
namespace {

std::pair<uint32_t, uint32_t> Of(Launches& launches, int64_t run_id) {
  const Launches::Number number = launches.Of(run_id);
  return {number.executable, number.run};
}
using Number = std::pair<uint32_t, uint32_t>;

TEST(Launches, CountsFromTheFirstRun) {
  Launches launches;
  EXPECT_EQ(Of(launches, 1000), Number(0, 0));
  EXPECT_EQ(Of(launches, 1001), Number(0, 1));
  EXPECT_EQ(Of(launches, 1001), Number(0, 1));  // another device, or another turn
  EXPECT_EQ(Of(launches, 1500), Number(0, 500));
  EXPECT_EQ(Of(launches, 1002), Number(0, 2));  // overtaken by the one before
}

TEST(Launches, TellsExecutablesApartInTheOrderOfTheirFirstRuns) {
  Launches one, other;
  EXPECT_EQ(Of(one, 7'000'000), Number(0, 0));
  EXPECT_EQ(Of(one, -3'000'000), Number(1, 0));
  EXPECT_EQ(Of(one, 7'000'001), Number(0, 1));
  EXPECT_EQ(Of(one, -2'999'999), Number(1, 1));
  // Other ids on another process, the same numbers.
  EXPECT_EQ(Of(other, 12), Number(0, 0));
  EXPECT_EQ(Of(other, 900'000), Number(1, 0));
  EXPECT_EQ(Of(other, 13), Number(0, 1));
  EXPECT_EQ(Of(other, 900'001), Number(1, 1));
}

TEST(Launches, IdsWrapAround) {
  Launches launches;
  EXPECT_EQ(Of(launches, std::numeric_limits<int32_t>::max()), Number(0, 0));
  EXPECT_EQ(Of(launches, std::numeric_limits<int32_t>::min()), Number(0, 1));
  Launches through_zero;
  EXPECT_EQ(Of(through_zero, -1), Number(0, 0));
  EXPECT_EQ(Of(through_zero, 0), Number(0, 1));
}

}  // namespace
}  // namespace strata::core
