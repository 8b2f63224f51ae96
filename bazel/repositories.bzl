# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Repositories made of what is installed on this machine; nothing is downloaded."""

# Prints sys.executable and the folders that hold the headers, one a line; jaxlib is not imported.
_FIND = """
import importlib.util, sys, sysconfig

def folder(name):
    spec = importlib.util.find_spec(name)
    return spec.submodule_search_locations[0] if spec else ""

print(sys.executable, sysconfig.get_path("include"), folder("jaxlib"), folder("nanobind"), sep="\\n")
"""

_PYTHON_BUILD = """
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["python/**/*.h"]),
    includes = ["python"],
)

cc_library(
    name = "xla_ffi",
    hdrs = glob(["jaxlib/xla/ffi/api/*.h"]),
    includes = ["jaxlib"],
)

cc_library(
    name = "nanobind",
    srcs = ["nanobind/src/nb_combined.cpp"] + glob([
        "nanobind/src/*.h",
        "nanobind/ext/robin_map/include/**/*.h",
    ]),
    hdrs = glob(["nanobind/include/**/*.h"]),
    copts = [
        "-std=c++17",
        "-fvisibility=hidden",
        "-fno-strict-aliasing",
        "-Iexternal/{name}/nanobind/ext/robin_map/include",
    ],
    includes = ["nanobind/include"],
    local_defines = ["NDEBUG", "NB_COMPACT_ASSERTIONS"],
    # What nb_combined.cpp includes.
    textual_hdrs = glob(["nanobind/src/*.cpp"], exclude = ["nanobind/src/nb_combined.cpp"]),
    deps = [":headers"],
)

py_runtime(
    name = "runtime",
    interpreter_path = "{python}",
    python_version = "PY3",
    # Many systems have no command `python`.
    stub_shebang = "#!{python}",
)

py_runtime_pair(
    name = "runtimes",
    py3_runtime = ":runtime",
)

toolchain(
    name = "toolchain",
    toolchain = ":runtimes",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

def _local_python(ctx):
    python = ctx.os.environ.get("PYTHON_BIN_PATH") or ctx.which("python3")
    if not python:
        fail("no python3 on the PATH; install Python 3.11 or newer, or set PYTHON_BIN_PATH")
    found = ctx.execute([python, "-c", _FIND])
    if found.return_code:
        fail("%s does not run:\n%s" % (python, found.stderr))
    executable, include, jaxlib, nanobind = found.stdout.split("\n")[:4]
    for header, cure in [
        (include + "/Python.h", "install Python's development files (Debian: python3-dev)"),
        (jaxlib + "/include/xla/ffi/api/ffi.h", "run: pip install jaxlib==0.10.2"),
        (nanobind + "/src/nb_combined.cpp", "run: pip install nanobind"),
    ]:
        if not ctx.path(header).exists:
            fail("%s sees no %s; %s, or name another interpreter in PYTHON_BIN_PATH" %
                 (executable, header, cure))
    ctx.symlink(include, "python")
    ctx.symlink(jaxlib + "/include", "jaxlib")
    ctx.symlink(nanobind, "nanobind")
    ctx.file("BUILD", _PYTHON_BUILD.replace("{python}", executable).replace("{name}", ctx.name))

local_python = repository_rule(
    implementation = _local_python,
    doc = "CPython, jaxlib's FFI headers and nanobind as one interpreter sees them.",
    environ = ["PYTHON_BIN_PATH", "PATH"],
    local = True,
)

_GOOGLETEST_BUILD = """
cc_library(
    name = "gtest_main",
    srcs = glob(["src/googletest/src/*.cc", "src/googletest/src/*.h"],
                exclude = ["src/googletest/src/gtest-all.cc"]),
    hdrs = glob(["src/googletest/include/**/*.h"]),
    copts = ["-std=c++17", "-Iexternal/{name}/src/googletest"],
    includes = ["src/googletest/include"],
    linkopts = ["-pthread"],
    visibility = ["//visibility:public"],
)
"""

def _local_googletest(ctx):
    source = ctx.os.environ.get("GOOGLETEST_DIR") or "/usr/src/googletest"
    if not ctx.path(source + "/googletest/src/gtest-all.cc").exists:
        fail("no sources of GoogleTest in %s; install them (Debian: libgtest-dev) or name their " %
             source + "folder in GOOGLETEST_DIR")
    ctx.symlink(source, "src")
    ctx.file("BUILD", _GOOGLETEST_BUILD.replace("{name}", ctx.name))

local_googletest = repository_rule(
    implementation = _local_googletest,
    doc = "GoogleTest from sources on this machine, as tests/cc/CMakeLists.txt takes it.",
    environ = ["GOOGLETEST_DIR"],
    local = True,
)
