# Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
"""How the processes of a host find each other, and share their memory.

They meet in the key-value store of `jax.distributed`: each puts up what it is, and reads what all
others are. What decides (host, addresses, sizes) is then worked out by each from the same records.
Those of one host connect in pairs over Unix sockets with random names that vanish with their
process, check that the other is of the same user and was invited, and pass the descriptors of
their memory files. Each maps everything at the address at which its owner has it, and each pair
shows that it really reaches the other's memory. If one fails, all do. The sockets stay open: their
end tells that a process is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import select
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from strata_jax import _compat, _core
from strata_jax._version import __version__

_POLL_S = 0.5
_WARN_S = 20.0
_MOST_MESSAGE_BYTES = 1 << 16
_LARGEST_ARENA_BYTES = 1 << 40
_PIECE_BYTES = 2 << 20


@dataclasses.dataclass(frozen=True)
class Place:
    """Where this process is.

    Attributes:
        hosts: number of the host of each process of the job, by process index.
        members: process indices of this host, in the order of their slots.
        records: what each process of the job put up.
        address: where the shared memory begins, in all members.
        arena_bytes: address space of one arena.
    """

    hosts: tuple[int, ...]
    members: tuple[int, ...]
    records: tuple[dict[str, Any], ...]
    address: int = 0
    arena_bytes: int = 0

    @property
    def own(self) -> int:
        """This process's slot."""
        return self.members.index(_compat.distributed_process_index())

    @property
    def control_bytes(self) -> int:
        """Bytes of the control segment, which is at the beginning."""
        return int(_core.control_bytes(len(self.members)))

    @property
    def arena_address(self) -> int:
        """Where this process's arena is; its staging memory follows."""
        return self.address + self.control_bytes + 2 * self.own * self.arena_bytes


ALONE = Place(hosts=(0,), members=(0,), records=())


class _Store:
    """The key-value store, for one init() of the job."""

    def __init__(self, epoch: int, deadline: float) -> None:
        self._client = _compat.distributed_client()
        self._prefix = f"strata_jax/{epoch}"
        self._deadline = deadline

    def put(self, topic: str, value: dict[str, Any]) -> None:
        """Puts up a record of this process."""
        index = _compat.distributed_process_index()
        self._client.key_value_set(f"{self._prefix}/{topic}/{index}", json.dumps(value))

    def withdraw(self, topic: str) -> None:
        """Takes the record of this process down."""
        index = _compat.distributed_process_index()
        self._client.key_value_delete(f"{self._prefix}/{topic}/{index}")

    def get_all(
        self, topic: str, places: Sequence[dict[str, Any]] = ()
    ) -> tuple[dict[str, Any], ...]:
        """Returns the record of each process of the job, waiting for those that are late.

        Args:
            topic: of the records.
            places: who the processes are, if that is known: one that ends is then noticed.
        """
        found = []
        start = time.monotonic()
        warned = False
        num_processes = _compat.distributed_num_processes()
        for index in range(num_processes):
            while True:
                value = self._get(topic, index, _POLL_S)
                if value is not None:
                    break
                if places:
                    _check_alive(places, [index])
                now = time.monotonic()
                if now > self._deadline:
                    later = range(index + 1, num_processes)
                    missing = [index, *(i for i in later if self._get(topic, i, 0.01) is None)]
                    raise RuntimeError(
                        f"strata_jax.init() waited {now - start:.0f} s for {_names(missing)}, "
                        f"which did not call strata_jax.init(). Every process of the job must call "
                        f"it after jax.distributed.initialize(); look for an earlier error there, "
                        f"or give init(timeout_s=...) more seconds"
                    )
                if now - start > _WARN_S and not warned:
                    warned = True
                    print(
                        f"strata_jax: init() has waited {_WARN_S:.0f} s for process {index}",
                        file=sys.stderr,
                    )
            found.append(json.loads(value))
        return tuple(found)

    def _get(self, topic: str, index: int, timeout_s: float) -> str | None:
        return _compat.try_get(self._client, f"{self._prefix}/{topic}/{index}", timeout_s)


def _names(indices: Sequence[int]) -> str:
    if len(indices) == 1:
        return f"process {indices[0]}"
    return f"processes {', '.join(map(str, indices[:-1]))} and {indices[-1]}"


def _host_key() -> str:
    """Names what can share memory through a Unix socket: one kernel, one network, one user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}/{os.geteuid()}"


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


_epoch = 0  # how often all processes came together here; the same in all of them


def find_place(listener: socket.socket, timeout_s: float, arena_bytes: int, settings: str) -> Place:
    """Learns which processes are on this host, and agrees with them on addresses.

    Args:
        listener: where others connect to this process.
        timeout_s: seconds to wait for others.
        arena_bytes: address space wanted for an arena; 0 or less for a default.
        settings: what must be the same in all processes.

    Raises:
        RuntimeError: a process did not come; versions or settings differ; there is no address that
            all have free.
    """
    global _epoch
    store = _Store(_epoch, time.monotonic() + timeout_s)
    store.put(
        "place",
        {
            "host": _host_key(),
            "pid": os.getpid(),
            "pid_namespace": _pid_namespace(),
            "socket": listener.getsockname()[1:].decode("ascii"),
            "token": secrets.token_hex(16),
            "version": __version__,
            "settings": settings,
            "arena_bytes": arena_bytes,
            "left": min(_core.address_space_left(), 1 << 47),
            "memory": _core.physical_memory(),
            "cores": len(os.sched_getaffinity(0)),
            "flags": os.environ.get("XLA_FLAGS", ""),
        },
    )
    try:
        records = store.get_all("place")
    except RuntimeError:
        store.withdraw("place")  # for another try, once the missing ones come
        raise
    _epoch += 1
    _check_alike(records)
    keys = [record["host"] for record in records]
    order = list(dict.fromkeys(keys))
    hosts = tuple(order.index(key) for key in keys)
    index = _compat.distributed_process_index()
    members = tuple(i for i, host in enumerate(hosts) if host == hosts[index])
    if len(members) > _core.MAX_PROCESSES:
        raise RuntimeError(
            f"strata_jax.init(): {len(members)} processes are on this host, at most "
            f"{_core.MAX_PROCESSES} can share memory; start fewer processes with more devices each "
            f"(jax_num_cpu_devices)"
        )
    place = Place(hosts, members, records)
    size = _arena_bytes([records[i] for i in members])
    place = dataclasses.replace(place, arena_bytes=size)
    # All processes take part in this, also those that are alone on their host.
    total = place.control_bytes + 2 * len(members) * size
    store.put("free", {"addresses": _core.free_addresses(total)})
    free = store.get_all("free", records)
    common = [
        address
        for address in free[index]["addresses"]
        if all(address in free[i]["addresses"] for i in members)
    ]
    if not common and len(members) > 1:
        raise RuntimeError(
            f"strata_jax.init(): the {len(members)} processes of this host need {total} bytes of "
            f"address space at one address, and have none that is free in all; ask for less with "
            f"STRATA_ARENA_BYTES, or raise `ulimit -v`"
        )
    return dataclasses.replace(place, address=common[0] if common else 0)


def _arena_bytes(records: Sequence[dict[str, Any]]) -> int:
    """Returns the address space that each member's arena gets, from what all of them say."""
    wanted: int = max(record["arena_bytes"] for record in records)
    if wanted <= 0:
        wanted = min(2 * min(record["memory"] for record in records), _LARGEST_ARENA_BYTES)
    # Each maps an arena and staging memory of all.
    left: int = min(record["left"] for record in records) // (4 * len(records))
    return max(min(wanted, left, _LARGEST_ARENA_BYTES) // _PIECE_BYTES, 1) * _PIECE_BYTES


def _check_alike(records: Sequence[dict[str, Any]]) -> None:
    for name, what in (("version", "versions of strata_jax"), ("settings", "settings")):
        values: dict[str, list[int]] = {}
        for index, record in enumerate(records):
            values.setdefault(record[name], []).append(index)
        if len(values) > 1:
            listed = "; ".join(f"{value} in {_names(who)}" for value, who in values.items())
            raise RuntimeError(
                f"strata_jax.init(): the processes of this job have different {what}: {listed}. "
                f"They must be the same in all; start all processes alike"
            )
    for name, what in (("cores", "numbers of cores"), ("flags", "XLA_FLAGS")):
        if len({record[name] for record in records}) > 1:
            logging.info(
                "strata_jax: the processes have different %s: %s",
                what,
                [record[name] for record in records],
            )


def _peer(sock: socket.socket) -> tuple[int, int]:
    """Returns process id (0 where it means nothing here) and user of the other end."""
    size = struct.calcsize("iII")
    pid, uid, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


class _Link:
    """The connection to another process of the host while joining."""

    def __init__(self, sock: socket.socket, index: int, deadline: float) -> None:
        self.sock = sock
        self.index = index
        self._deadline = deadline
        self.pid, uid = _peer(sock)
        if uid != os.geteuid():
            raise RuntimeError(
                f"strata_jax.init(): process {index} is of user {uid}, but memory is shared with "
                f"processes of user {os.geteuid()} only"
            )

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # receive() tells
            socket.send_fds(self.sock, [json.dumps(message).encode()], fds)

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        self.sock.settimeout(max(self._deadline - time.monotonic(), 0.01))
        try:
            # Close on exec: not for a process that another thread starts now.
            data, fds, _, _ = socket.recv_fds(
                self.sock, _MOST_MESSAGE_BYTES, 3, socket.MSG_CMSG_CLOEXEC
            )
        except TimeoutError as error:
            raise RuntimeError(
                f"strata_jax.init(): process {self.index} (pid {self.pid}) has connected, but did "
                f"not answer in time; it is stopped, or much slower"
            ) from error
        except ConnectionResetError:
            data, fds = b"", []
        if not data:
            raise RuntimeError(
                f"strata_jax.init(): process {self.index} (pid {self.pid}) ended while the "
                f"processes of this host were joining; look for its error"
            )
        return json.loads(data), list(fds)


def make_listener() -> socket.socket:
    """Returns a socket with a random name of the abstract kind, which vanishes with the process."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0strata_jax-{secrets.token_hex(16)}")
    listener.listen(_core.MAX_PROCESSES)
    return listener


def _connect(listener: socket.socket, place: Place, deadline: float) -> Iterator[_Link]:
    """Connects to the members before this one; lets those after it connect."""
    own = place.members[place.own]
    own_token = place.records[own]["token"]
    for index in place.members[: place.own]:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(max(deadline - time.monotonic(), 0.01))
        try:
            sock.connect("\0" + place.records[index]["socket"])
        except OSError as error:
            raise RuntimeError(
                f"strata_jax.init(): cannot connect to process {index} "
                f"(pid {place.records[index]['pid']}): {error}; it has ended"
            ) from error
        link = _Link(sock, index, deadline)
        link.send({"index": own, "token": place.records[index]["token"]})
        answer, _ = link.receive()
        if answer.get("token") != own_token:
            raise RuntimeError(f"strata_jax.init(): process {index} does not know this process")
        yield link
    missing = set(place.members[place.own + 1 :])
    silent: list[socket.socket] = []  # have connected, and not said who they are
    while missing:
        readable = select.select([listener, *silent], [], [], _POLL_S)[0]
        if not readable:
            _check_alive(place.records, missing)
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"strata_jax.init(): {_names(sorted(missing))} of this host did not connect "
                    f"in time; look for errors there"
                )
        for ready in readable:
            if ready is listener:
                silent.append(listener.accept()[0])
                continue
            silent.remove(ready)
            found = _invited(ready, own_token, missing)
            if found is None:
                logging.warning("strata_jax: refused a connection that was not invited")
                ready.close()
                continue
            link = _Link(ready, found, deadline)
            link.send({"token": place.records[found]["token"]})
            missing.remove(found)
            yield link
    for sock in silent:
        sock.close()


def _invited(sock: socket.socket, token: str, expected: set[int]) -> int | None:
    """Returns the index of the process that says who it is, None if it is none that may."""
    if _peer(sock)[1] != os.geteuid():
        return None
    try:
        hello = json.loads(sock.recv(_MOST_MESSAGE_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(hello, dict) or hello.get("token") != token:
        return None
    index = hello.get("index")
    return index if isinstance(index, int) and index in expected else None


def _check_alive(places: Sequence[dict[str, Any]], indices: Iterable[int]) -> None:
    """Raises if one of some processes has ended, of those whose process ids mean something here."""
    own = places[_compat.distributed_process_index()]
    for index in indices:
        pid = places[index]["pid"]
        alike = all(places[index][name] == own[name] for name in ("host", "pid_namespace"))
        if alike and _has_ended(pid):
            raise RuntimeError(
                f"strata_jax.init(): process {index} (pid {pid}) ended while the processes of this "
                f"host were joining; look for its error"
            )


def _has_ended(pid: int) -> bool:
    """Whether a process is no more, or a zombie that nobody has waited for."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text.rpartition(") ")[2][:1] in "ZX"  # "pid (name) state ...", proc(5)


def _tell_all(links: Sequence[_Link], error: str) -> None:
    """Tells whether all went well here, and raises if it did not for somebody."""
    for link in links:
        link.send({"error": error})
    answers = [(link, link.receive()[0]["error"]) for link in links]
    if error:
        raise RuntimeError(f"strata_jax.init(): {error}")
    for link, other in answers:
        if other:
            raise RuntimeError(
                f"strata_jax.init(): process {link.index} could not join: {other}; so none does"
            )


def join(listener: socket.socket, place: Place, timeout_s: float, spin_us: float) -> None:
    """Shares memory with the other processes of this host.

    The arena of this process must be there already. Ends with the fabric in place, not started.

    Raises:
        RuntimeError: one of the processes could not; then it is raised in all of them.
    """
    deadline = time.monotonic() + timeout_s
    memory = _core.shared_memory(
        staging_address=place.arena_address + place.arena_bytes,
        staging_bytes=place.arena_bytes,
        num_processes=len(place.members),
    )
    number = secrets.randbits(63)
    _core.show_number(number)
    links: list[_Link] = []
    fds: list[int] = []
    try:
        _join(listener, place, deadline, spin_us, memory, number, links, fds)
    except BaseException:
        _core.abandon_join()
        for link in links:
            link.sock.close()
        raise
    finally:
        for fd in fds:
            os.close(fd)
    for link in links:
        link.sock.setblocking(True)
        link.sock.detach()  # the compiled core's from now on


def _join(
    listener: socket.socket,
    place: Place,
    deadline: float,
    spin_us: float,
    memory: Sequence[tuple[int, int, int]],
    number: int,
    links: list[_Link],
    received: list[int],
) -> None:
    """Joins; adds connections and descriptors to the lists, also where it fails."""
    own = place.own
    control_fd = -1
    if own == 0:
        control_fd = _core.make_control(len(place.members))
        received.append(control_fd)
    links.extend(_connect(listener, place, deadline))
    listener.close()
    for link in links:
        own_fds = [memory[0][0], memory[1][0], *([control_fd] if own == 0 else [])]
        link.send({"memory": [part[1:] for part in memory], "number": number}, own_fds)
    numbers: dict[int, int] = {}
    staging: dict[int, int] = {}
    peers = []
    by_index = {link.index: link for link in links}
    for slot, index in enumerate(place.members):
        if slot == own:
            (_, arena, arena_bytes), (_, stage, stage_bytes) = memory
            peers.append((index, os.getpid(), -1, -1, arena, arena_bytes, -1, stage, stage_bytes))
            continue
        message, fds = by_index[index].receive()
        received += fds
        (arena, arena_bytes), (stage, stage_bytes) = message["memory"]
        if slot == 0:
            control_fd = fds[2]
        numbers[slot], staging[slot] = message["number"], stage
        pid = by_index[index].pid
        sock = by_index[index].sock.fileno()
        peers.append((index, pid, sock, fds[0], arena, arena_bytes, fds[1], stage, stage_bytes))
    error = ""
    try:
        _core.join(own, control_fd, place.address, peers, spin_us)
    except RuntimeError as failure:
        error = str(failure)
    _tell_all(links, error)
    for slot, expected in numbers.items():
        if _core.echo(staging[slot], own, expected ^ (own + 1)) != expected:
            error = f"the memory of process {place.members[slot]} is not what is mapped here"
    _tell_all(links, error)
    for slot in numbers:
        if _core.echo_of(slot) != number ^ (slot + 1):
            error = f"process {place.members[slot]} does not reach the memory of this process"
    _tell_all(links, error)
