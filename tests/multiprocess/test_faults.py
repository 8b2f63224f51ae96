# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""Processes that are killed, stopped, end early, fork, or run something else than the others.

The others get an error in time that names who it was, and nothing is left behind on the host.
"""

from __future__ import annotations

import pathlib
import re
import signal
import time

import pytest

import launch
import plain

# What a rank has of the host: descriptors of sockets, and files in memory that are mapped.
_TRACES = r"""
import re
def traces():
    found = {os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
             if os.path.islink(f"/proc/self/fd/{n}")}
    sockets = [int(name[8:-1]) for name in found if name.startswith("socket:[")]
    files = re.findall(r"(\d+) +/memfd:strata_jax", open("/proc/self/maps").read())
    say("traces", os.getpid(), *[f"s{n}" for n in sockets], *[f"f{n}" for n in set(files)])
"""


def _leftovers(outputs: list[str]) -> list[str]:
    """Returns which of the traces that ranks said are still on the host."""
    pids, marks = set(), set()
    for words in re.findall(r"traces (.*)", "\n".join(outputs)):
        pid, *rest = words.split()
        pids.add(pid)
        marks |= set(rest)
    assert pids and any(m[0] == "s" for m in marks) and any(m[0] == "f" for m in marks), outputs
    left = [f"process {pid}" for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]
    unix = {line.split()[6] for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]}
    left += [f"socket {m[1:]}" for m in marks if m[0] == "s" and m[1:] in unix]
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            mapped = set(re.findall(r"(\d+) +/memfd:strata_jax", maps.read_text()))
        except OSError:
            continue
        left += [f"file {n} in {maps}" for n in mapped if f"f{n}" in marks]
    left += [str(path) for path in pathlib.Path("/dev/shm").glob("strata*")]
    return left


_KILLED = (
    _TRACES
    + r"""
moment, victim = sys.argv[1], int(sys.argv[2])
strata_jax.init()
def step(v):
    return strata_jax.psum(v, "x")
small, large = sharded(step), sharded(lambda v: strata_jax.psum(v, "x") * 0.5)
x, y = (place(np.ones((num_devices, size), np.float32)) for size in (100, 4 << 20))
jax.block_until_ready([small(x), large(y)])
traces()
barrier("ready")
def die():
    say("killed at", time.time())
    os.kill(os.getpid(), signal.SIGKILL)
if rank == victim:
    if moment == "waited for":
        time.sleep(0.3)
        die()
    threading.Timer(0.5, die).start()
    while moment == "allocating":
        kept = [jnp.full(5000 + 1000 * i, i, jnp.float32) for i in range(50)]
try:
    while True:
        jax.block_until_ready(large(y) if moment == "working" else small(x))
except Exception as error:
    say("error at", time.time())
    say("error", str(error).replace("\n", " "))
begin = time.time()
try:
    small(x).block_until_ready()
    say("no error")
except Exception as error:
    say("later after", time.time() - begin)
raise SystemExit(5)
"""
)


@pytest.mark.parametrize(
    ("moment", "victim"), [("waited for", 1), ("waited for", 0), ("working", 2), ("allocating", 1)]
)
def test_a_kill(moment: str, victim: int) -> None:
    result = launch.run(
        _KILLED, num_processes=3, arguments=[moment, str(victim)], status=128 + signal.SIGKILL
    )
    ended_at = time.time()
    killed = re.search(r"killed at (\S+)", result.out[victim])
    pid = re.search(r"traces (\d+)", result.out[victim])
    assert killed and pid, result.report()
    assert ended_at - float(killed[1]) < 6, result.report()
    assert f"rank {victim} failed first" in result.messages, result.report()
    for rank, out in enumerate(result.out):
        if rank == victim:
            continue
        at = re.search(r"error at (\S+)", out)
        text = re.search(r"error (?!at)(.*)", out)
        later = re.search(r"later after (\S+)", out)
        assert at and text and later, result.report()
        assert float(at[1]) - float(killed[1]) < 2, result.report()
        assert float(later[1]) < 0.5, result.report()
        assert f"rank {victim} (device {victim * 2048})" in text[1], result.report()
        assert f"process {victim} (pid {pid[1]}) has died" in text[1], result.report()
        assert "all_reduce" in text[1] and "jit_" in text[1], result.report()
        assert f"strata_jax: process {victim} (pid {pid[1]}) has died" in result.err[rank]
    assert "exit status 5" in result.messages, result.report()
    assert _leftovers(list(result.out)) == []


_STEP = """
strata_jax.init()
def step(v):
    return strata_jax.psum(v, "x")
f, x = sharded(step), place(np.ones((num_devices, 100), np.float32))
f(x).block_until_ready()
barrier("ready")
"""


def test_a_kill_without_the_launcher() -> None:
    ended = plain.run(
        _STEP
        + """
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 2:
    time.sleep(1)
f(x)
""",
        num_processes=3,
    )
    text = plain.report(ended)
    assert [end.status for end in ended] == [1, -signal.SIGKILL, 1], text
    for end in (ended[0], ended[2]):
        assert "rank 1 (device 2048) is gone: process 1 (pid " in end.output, text
        assert end.seconds - ended[1].seconds < 7, text


def test_a_kill_of_the_coordinator_without_the_launcher() -> None:
    ended = plain.run(
        _STEP
        + """
if rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
f(x)
time.sleep(20)
"""
    )
    text = plain.report(ended)
    assert ended[1].status not in (0, None) and ended[1].seconds - ended[0].seconds < 5, text
    ours = ended[1].output.find("strata_jax: process 0 (pid ")
    assert ours >= 0 and "strata-jax launch" in ended[1].output, text
    abort = ended[1].output.find("Terminating process because")
    assert abort < 0 or ours < abort, text


_STOPPED = """
strata_jax.init(timeout_s=3)
psum = sharded(lambda v: strata_jax.psum(v, "x"))
host = np.random.default_rng(rank).standard_normal((num_devices, 16 << 20)).astype(np.float32)
x = place(host)
other = multihost_utils.process_allgather(np.array([os.getpid()]))[1 - rank, 0]

def quarantined():
    return strata_jax.stats()["arena"]["quarantined_bytes"]

for attempt in range(4):
    barrier(f"attempt {attempt}")
    if rank == 0:
        threading.Timer(0.3 + 0.013 * attempt, lambda: os.kill(other, signal.SIGSTOP)).start()
    try:
        while True:
            psum(x).block_until_ready()
    except Exception as error:
        text = str(error)
    if rank == 1:
        continue
    say("error", text.replace("\\n", " "))
    held = quarantined()
    # What may be handed out meanwhile: as many arrays as it takes to get all memory there is.
    fresh = [jnp.full(16 << 20, i, jnp.float32) for i in range(4)]
    jax.block_until_ready(fresh)
    os.kill(other, signal.SIGCONT)
    deadline = time.monotonic() + 5
    while quarantined() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert quarantined() == 0
    time.sleep(0.3)
    for i, array in enumerate(fresh):
        assert (np.asarray(array) == i).all(), "written into"
    del fresh, array
    say("held", held)
barrier("after")
y = psum(place(np.ones((num_devices, 5), np.float32)))
check(y, np.full((num_devices, 1, 5), 2, np.float32))
say("all right")
"""


def test_a_stop_in_the_middle_of_work() -> None:
    result = launch.run(_STOPPED, timeout_s=90)
    out = result.out[0]
    assert "all right" in out and "all right" in result.out[1], result.report()
    held = [int(n) for n in re.findall(r"held (\d+)", out)]
    assert max(held) == 64 << 20, result.report()  # where it was stopped within its work
    errors = re.findall(r"error (.*)", out)
    assert all("rank 1 (device 2048) of process 1 (pid " in e for e in errors), result.report()
    assert all("is stopped, by a signal or a debugger" in e for e in errors), result.report()


def test_exits_with_work_in_flight() -> None:
    # Report mpi4jax 22: also results that nobody holds.
    for num_devices in (1, 2):
        result = launch.run(
            """
            strata_jax.init()
            def work(v):
                u = jnp.zeros((300, 300)) + v.sum()
                u = lax.fori_loop(0, 30, lambda i, a: jnp.tanh(a @ a), u)
                return strata_jax.psum(v + u.sum(), "x")
            f, g = sharded(lambda v: strata_jax.psum(v, "x")), sharded(work)
            x = place(np.ones((num_devices, 100), np.float32))
            jax.block_until_ready([f(x), g(x)])
            barrier("ready")
            if rank == 0:
                for i in range(4):
                    g(x), f(x)
            else:
                time.sleep(3)
                ys = [h(x) for i in range(4) for h in (g, f)]
                jax.block_until_ready(ys)
                check(ys[-1], np.full((num_devices, 1, 100), num_devices, np.float32))
                say("all right")
            """,
            num_devices=num_devices,
        )
        assert "all right" in result.out[1], result.report()
        assert result.err == ["", ""], result.report()


@pytest.mark.parametrize("how", ["raise KeyError('mine')", "sys.exit(3)"])
def test_a_rank_that_ends_early(how: str) -> None:
    # JAX lets it go only once the others come to their end, too.
    ended = plain.run(_STEP + f"if rank == 1:\n    {how}\nf(x)\n")
    text = plain.report(ended)
    assert [end.status for end in ended] == [1, 3 if "exit" in how else 1], text
    assert "rank 1 (device 2048) is gone: process 1 (pid " in ended[0].output, text
    assert "has ended its program" in ended[0].output, text
    assert max(end.seconds for end in ended) < 20, text


def test_different_programs() -> None:
    result = launch.run(
        """
        strata_jax.init(timeout_s=4)
        turns = iter(range(9))
        def error_of(name, f, size):
            f.__name__ = f.__qualname__ = name
            begin = time.time()
            try:
                jax.block_until_ready(sharded(f)(place(np.ones((num_devices, size), np.float32))))
                say(name, "no error")
            except Exception as error:
                say(name, f"{time.time() - begin:.2f}", str(error).replace("\\n", " "))
            barrier(f"turn {next(turns)}")
        psum, gather = (lambda v: strata_jax.psum(v, "x")), (lambda v: lax.all_gather(v, "x"))
        error_of("shape", lambda v: psum(v), 100 + rank)
        error_of("kind", [lambda v: psum(v), lambda v: gather(v).sum(0)][rank], 100)
        error_of("number", [lambda v: psum(v), lambda v: gather(psum(v)).sum(0)][rank], 100)
        error_of(["first", "second"][rank], lambda v: psum(v), 100)
        error_of("same", lambda v: psum(v), 100)
        """
    )
    for rank in range(2):
        found = {
            line.split()[0]: (float(line.split()[1]), line)
            for line in result.out[rank].splitlines()
            if "no error" not in line
        }
        for name, parts in {
            "shape": ("float32[100]", "float32[101]", "shapes or dtypes differ"),
            "kind": ("all_reduce", "all_gather"),
            "number": ("collectives of their programs differ",),
        }.items():
            seconds, line = found[name]
            assert seconds < 2 and all(part in line for part in parts), result.report()
            assert "rank 0 (device 0)" in line and "rank 1 (device 2048)" in line, result.report()
        own, other = ("first", "second") if rank == 0 else ("second", "first")
        seconds, line = found[own]
        assert 3 < seconds < 7 and f"in jit_{own}" in line, result.report()
        # Or "gave up", whichever was first.
        assert re.search(rf"which \w+ \w+ all_reduce psum.7 \(operation 0\) in jit_{other};", line)
        assert "same" not in found, result.report()


def test_programs_that_differ_where_they_may(tmp_path: pathlib.Path) -> None:
    code = """
        import importlib.util
        path = f"{sys.argv[1]}/{rank}/steps_{rank}.py"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write("\\n" * rank + "def step(v, psum, c):\\n    return psum(v, 'x') * c + c\\n")
        spec = importlib.util.spec_from_file_location("steps", path)
        steps = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(steps)
        strata_jax.init(timeout_s=10)
        f = sharded(lambda v: steps.step(v, strata_jax.psum, float(rank + 1)))
        for i in range(3):
            y = f(place(np.full((num_devices, 100), i + 1, np.float32)))
            want = (i + 1) * num_devices * (rank + 1) + rank + 1
            for found in shards(y).values():
                np.testing.assert_array_equal(found, np.full((1, 100), want, np.float32))
        say(len(os.sched_getaffinity(0)), "all right")
    """
    pin = "import os\nif os.environ['JAX_PROCESS_ID'] == '1':\n    os.sched_setaffinity(0, {0})\n"
    launch.run(
        pin + launch.PREAMBLE.format(dump_s=50) + launch.textwrap.dedent(code),
        preamble=False,
        arguments=[str(tmp_path)],
    )


def test_forks() -> None:
    # Report 18852. A child reads arrays and changes nobody's; it and what it starts hold nothing.
    result = launch.run(
        _TRACES
        + r"""
import ctypes, gc, subprocess, warnings
warnings.filterwarnings("ignore")
strata_jax.init(timeout_s=20)
f = sharded(lambda v: strata_jax.psum(v, "x"))
x = np.random.default_rng(0).standard_normal((num_devices, 300_000)).astype(np.float32)
y = f(place(x))
found = next(iter(shards(y).values()))
copy, pointer = found.copy(), y.addressable_shards[0].data.unsafe_buffer_pointer()
shared = "/memfd:strata_jax"
assert shared in open("/proc/self/maps").read()

def child():
    lines = [line.split() for line in open("/proc/self/maps") if shared in line]
    if any(line[1] == "rw-s" for line in lines):
        return 2  # what others see of writes
    held = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
            if os.path.islink(f"/proc/self/fd/{n}")]
    if any("memfd" in name or "pidfd" in name for name in held):
        return 3
    global y, found
    if not (found == copy).all():
        return 4
    ctypes.memset(pointer, 0xFF, copy.nbytes)
    if (found == copy).any() or strata_jax.stats()["pending"]:
        return 5
    found = y = None
    gc.collect()
    return 0

for turn in range(3):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = child()
        finally:
            os._exit(code)
    deadline = time.monotonic() + 15
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.02)
    if ended == (0, 0):
        os.kill(pid, signal.SIGKILL)
    assert ended == (pid, 0), ended
assert (found == copy).all()
names = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True).stdout
assert "socket:" not in names and "memfd" not in names, names
check(f(place(x)), reference.all_reduce("sum", x[:, None]))
traces()
barrier("ready")

if rank == 1:
    if os.fork() == 0:  # outlives its parent
        time.sleep(20)
        os._exit(0)
    say("killed at", time.time())
    os.kill(os.getpid(), signal.SIGKILL)
try:
    jax.block_until_ready(f(place(x)))
except Exception as error:
    say("error at", time.time(), error)
""",
        status=128 + signal.SIGKILL,
    )
    killed = re.search(r"killed at (\S+)", result.out[1])
    error = re.search(r"error at (\S+) (.*)", result.out[0])
    assert killed and error and "rank 1 (device 2048) is gone" in error[2], result.report()
    assert float(error[1]) - float(killed[1]) < 2, result.report()
    assert _leftovers(list(result.out)) == []
