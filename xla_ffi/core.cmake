# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
#
# Defines the target `strata_core`: everything below the handlers, without XLA and Python. Included
# by the extension's build and by the tests of the core.
find_package(Threads REQUIRED)

set(core ${CMAKE_CURRENT_LIST_DIR}/core)
set(kernel_files ${core}/kernels_baseline.cc)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND kernel_files ${core}/kernels_avx2.cc ${core}/kernels_avx512.cc)
  set_source_files_properties(${core}/kernels_avx2.cc PROPERTIES COMPILE_OPTIONS "-mavx2;-mf16c")
  set_source_files_properties(${core}/kernels_avx512.cc PROPERTIES COMPILE_OPTIONS
    "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mf16c;-mprefer-vector-width=512")
endif()

add_library(strata_core STATIC
  ${kernel_files}
  ${core}/all_gather.cc
  ${core}/all_reduce.cc
  ${core}/all_to_all.cc
  ${core}/alloc_hook.cc
  ${core}/arena.cc
  ${core}/arena_pages.cc
  ${core}/collective.cc
  ${core}/collective_broadcast.cc
  ${core}/collective_permute.cc
  ${core}/collective_spec.cc
  ${core}/copy_bandwidth.cc
  ${core}/fabric.cc
  ${core}/kernels.cc
  ${core}/lanes.cc
  ${core}/operation.cc
  ${core}/page_mapper.cc
  ${core}/process_meeting.cc
  ${core}/ragged_all_to_all.cc
  ${core}/reduce_scatter.cc
  ${core}/types.cc
  ${core}/watchdog.cc
  ${core}/work.cc
  ${CMAKE_CURRENT_LIST_DIR}/platform/memory_linux.cc
  ${CMAKE_CURRENT_LIST_DIR}/platform/shared_linux.cc
  ${CMAKE_CURRENT_LIST_DIR}/platform/symbol_slots_linux.cc
  ${CMAKE_CURRENT_LIST_DIR}/platform/threads_linux.cc
)
target_include_directories(strata_core PUBLIC ${CMAKE_CURRENT_LIST_DIR})
target_compile_features(strata_core PUBLIC cxx_std_17)
# No contraction: a fused multiply-add would give other bits on another instruction set.
target_compile_options(strata_core PRIVATE -Wall -Wextra -Werror -ffp-contract=off)
# Hidden: the extension exports its entry alone, and cannot clash with another library's symbols.
set_target_properties(strata_core PROPERTIES
  POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_link_libraries(strata_core PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
