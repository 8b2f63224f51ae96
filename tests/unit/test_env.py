# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Environment variables, versions and other conditions of init(): each wrong one has a text."""

from __future__ import annotations

import jax
from absl import logging as absl_logging
from absl.testing import absltest, parameterized

import one_process
from strata_jax import _compat, _env


class SettingsTest(parameterized.TestCase):
    def test_defaults(self):
        settings = _env.read_settings({"PATH": "/bin", "JAX_PLATFORMS": "cpu"})
        self.assertEqual(settings, _env.Settings())
        self.assertEqual((settings.warn_s, settings.timeout_s), (20.0, None))
        self.assertFalse(settings.strict)

    @parameterized.parameters(
        ("STRATA_WARN_S", "1.5", "warn_s", 1.5),
        ("STRATA_TIMEOUT_S", "1e3", "timeout_s", 1000.0),
        ("STRATA_WORKERS", "3", "num_workers", 3),
        ("STRATA_ISA", "auto", "isa", ""),
        ("STRATA_ISA", "AVX2", "isa", "avx2"),
        ("STRATA_ISA", "avx512", "isa", "avx512"),
        ("STRATA_ISA", "baseline", "isa", "baseline"),
        ("STRATA_ARENA_BYTES", "4096", "arena_bytes", 4096),
        ("STRATA_ARENA_BYTES", "64m", "arena_bytes", 64 << 20),
        ("STRATA_KEEP_BYTES", "2G", "keep_bytes", 2 << 30),
        ("STRATA_KEEP_BYTES", "0", "keep_bytes", 0),
        ("STRATA_KEEP_BYTES", " 8K ", "keep_bytes", 8192),
        ("STRATA_ARENA", "off", "arena", False),
        ("STRATA_POPULATE", "OFF", "populate", False),
        ("STRATA_SPIN_US", "0", "spin_us", 0.0),
        ("STRATA_SPIN_US", "150", "spin_us", 150.0),
        ("STRATA_HUGE_PAGES", "off", "huge_pages", False),
        ("STRATA_HUGE_PAGES", "on", "huge_pages", True),
        ("STRATA_STRICT", "1", "strict", True),
        ("STRATA_STRICT", "0", "strict", False),
        ("STRATA_STRICT", "", "strict", False),
    )
    def test_good_values(self, name, value, attribute, expected):
        self.assertEqual(getattr(_env.read_settings({name: value}), attribute), expected)

    @parameterized.parameters(
        ("STRATA_WARN_S", "soon", "seconds"),
        ("STRATA_WARN_S", "0", "above 0"),
        ("STRATA_WARN_S", "nan", "seconds"),
        ("STRATA_TIMEOUT_S", "-1", "above 0"),
        ("STRATA_TIMEOUT_S", "inf", "seconds"),
        ("STRATA_WORKERS", "0", "from 1"),
        ("STRATA_WORKERS", "two", "whole number"),
        ("STRATA_WORKERS", "1.5", "whole number"),
        ("STRATA_WORKERS", "9" * 30, "whole number"),
        ("STRATA_ISA", "sse9", "auto, avx512, avx2, baseline"),
        ("STRATA_ARENA_BYTES", "lots", "number of bytes"),
        ("STRATA_ARENA_BYTES", "-5", "number of bytes"),
        ("STRATA_ARENA_BYTES", "1KB", "number of bytes"),
        ("STRATA_ARENA_BYTES", "200T", "less than 128T"),
        ("STRATA_KEEP_BYTES", "99999999999999999999G", "less than 128T"),
        ("STRATA_HUGE_PAGES", "yes", "on, off"),
        ("STRATA_ARENA", "0", "on, off"),
        ("STRATA_POPULATE", "1", "on, off"),
        ("STRATA_SPIN_US", "-1", "from 0 to 1000000"),
        ("STRATA_SPIN_US", "1.5", "from 0 to 1000000"),
        ("STRATA_SPIN_US", "1000001", "from 0 to 1000000"),
        ("STRATA_STRICT", "true", "0, 1"),
    )
    def test_bad_values(self, name, value, allowed):
        with self.assertRaises(ValueError) as caught:
            _env.read_settings({name: value})
        text = str(caught.exception)
        self.assertIn(name, text)
        self.assertIn(repr(value), text)
        self.assertIn(allowed, text)

    def test_unknown_name(self):
        with self.assertRaisesRegex(ValueError, "STRATA_TIMEOUT.*STRATA_TIMEOUT_S"):
            _env.read_settings({"STRATA_TIMEOUT": "5"})

    def test_init_refuses_and_leaves_nothing_behind(self):
        one_process.in_subprocess(
            """
            x = np.ones((8, 5), np.float32)
            for name, value in (("STRATA_TIMEOUT_S", "never"), ("STRATA_NO_SUCH", "1")):
                os.environ[name] = value
                try:
                    strata_jax.init()
                    raise SystemExit("init() did not raise")
                except ValueError as error:
                    assert name in str(error), error
                assert not strata_jax.stats()["active"]
                check(sharded(psum)(x), x)
                assert operations() == 0
                del os.environ[name]
            strata_jax.init()
            check(sharded(psum)(x), x)
            assert operations() == 1
            """
        )

    @parameterized.parameters("baseline", "avx2", "auto")
    def test_every_instruction_set_gives_the_same_bits(self, isa):
        one_process.in_subprocess(
            f"""
            import ml_dtypes
            from strata_jax import _core
            flags = next(l for l in open("/proc/cpuinfo") if l.startswith("flags")).split()
            if {isa!r} == "avx2" and not {{"avx2", "f16c"}} <= set(flags):
                sys.exit()
            strata_jax.init()
            assert {isa!r} in ("auto", _core.isa()), _core.isa()
            rng = np.random.default_rng(0)
            narrow = (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float16, np.int8)
            for dtype in (np.float32, *narrow):
                x = (rng.standard_normal((4, 100_003)) * 9).astype(np.float32).astype(dtype)
                want = reference.all_reduce("sum", list(x))[0]
                for shard in sharded(psum)(x).addressable_shards:
                    assert np.asarray(shard.data).tobytes() == want.tobytes(), dtype
            """,
            env={"STRATA_ISA": isa},
        )

    def test_an_instruction_set_that_the_machine_lacks(self):
        one_process.in_subprocess(
            """
            flags = next(l for l in open("/proc/cpuinfo") if l.startswith("flags")).split()
            if "avx512f" in flags:
                strata_jax.init()
                sys.exit()
            try:
                strata_jax.init()
                raise SystemExit("init() did not raise")
            except ValueError as error:
                assert "avx512" in str(error) and "baseline" in str(error), error
            assert not strata_jax.stats()["active"]
            os.environ["STRATA_ISA"] = "auto"
            strata_jax.init()
            """,
            env={"STRATA_ISA": "avx512"},
        )

    @parameterized.parameters("1", "2", "16")
    def test_numbers_of_workers(self, workers):
        one_process.in_subprocess(
            """
            strata_jax.init()
            x = np.random.default_rng(0).standard_normal((8, 300_007)).astype(np.float32)
            f = sharded(lambda v: psum(jnp.tanh(psum(v) * 0 + v)))
            for _ in range(5):
                check(sharded(psum)(x), x)
                jax.block_until_ready(f(x))
            """,
            env={"STRATA_WORKERS": workers},
        )


class VersionsTest(parameterized.TestCase):
    @parameterized.parameters("0.10.1", "0.9.2", "0.4.38")
    def test_too_old(self, version):
        for versions in ((version, "0.11.0"), ("0.11.0", version)):
            with self.assertRaises(RuntimeError) as caught:
                _compat.check_window(*versions)
            for part in ("0.10.2", version, "pip install"):
                self.assertIn(part, str(caught.exception))

    @parameterized.parameters("0.10.2", "0.11.0", "0.12.0.1", "0.12.0", "0.11.1.dev20260101")
    def test_inside_is_silent(self, version):
        with self.assertNoLogs(absl_logging.get_absl_logger(), "WARNING"):
            _compat.check_window(version, version)

    @parameterized.parameters("0.12.1", "0.13.0", "1.0.0")
    def test_newer_warns_and_goes_on(self, version):
        with self.assertLogs(absl_logging.get_absl_logger(), "WARNING") as logs:
            _compat.check_window(version, "0.12.0")
        self.assertLen(logs.output, 1)
        self.assertIn(version, logs.output[0])
        self.assertIn("0.12.0", logs.output[0])

    def test_this_one(self):
        self.assertEqual(_compat.JAX_VERSION, jax.version.__version_info__[:3])


class ConditionsTest(absltest.TestCase):
    def test_each_refusal_of_init_leaves_jax_whole(self):
        one_process.in_subprocess(
            """
            from unittest import mock
            from strata_jax import _compat, fabric
            x = np.ones((8, 5), np.float32)
            def refused(*words):
                try:
                    strata_jax.init()
                except RuntimeError as error:
                    for word in words:
                        assert word in str(error), (word, error)
                else:
                    raise SystemExit(f"init() did not raise: {words}")
                assert not strata_jax.stats()["active"]
                check(sharded(lambda v: psum(v) + 0)(x), x)
                assert operations() == 0
            with mock.patch.object(_compat, "ALLOCATOR_LIBRARY", "libnosuch.so"):
                refused("libnosuch.so")
            with mock.patch.object(_compat, "running_ffi_api_version", lambda: (0, 1)):
                refused("FFI API 0.", "0.1", "upgrade jaxlib")
            with mock.patch.object(_compat, "running_ffi_api_version", lambda: (9, 9)):
                refused("9.9")
            with mock.patch.dict(os.environ, {"JAX_NUM_PROCESSES": "2"}):
                refused("jax.distributed.initialize()", "JAX_NUM_PROCESSES")
            # A library that does not call the allocator.
            with mock.patch.object(_compat, "ALLOCATOR_LIBRARY", "libm.so.6"):
                refused("libm.so.6")
            strata_jax.init()
            check(sharded(psum)(x), x)
            assert operations() == 1
            """
        )

    def test_registering_after_a_backend_was_used_and_before(self):
        for first in ("jnp.ones(3)", "None"):
            one_process.in_subprocess(
                f"""
                {first}
                strata_jax.init()
                x = np.ones((8, 5), np.float32)
                check(sharded(psum)(x), x)
                assert operations() == 1
                """
            )


if __name__ == "__main__":
    absltest.main()
