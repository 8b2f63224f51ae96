// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The functions of strata_jax._core with which strata_jax/joining.py joins processes.
#ifndef STRATA_JOINING_H_
#define STRATA_JOINING_H_

#include <nanobind/nanobind.h>

namespace strata {

void BindJoining(nanobind::module_& m);

}  // namespace strata

#endif  // STRATA_JOINING_H_
