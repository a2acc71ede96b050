"""Replaces the machine for a simulated system: clocks, randomness, process id, syncs.

Requirements: SIM-01.
"""

from __future__ import annotations

import errno
import os
import random
import secrets
import shutil
import sys
import time
import uuid
from typing import Any

from harness.systemsim.loop import RUNNING, SimLoop
from saturnmq.broker.services.long_polling import ParkedPull
from saturnmq.net import reconnection
from saturnmq.net.connection import Connection

EPOCH_S = 1_800_000_000.0  # Unix time at loop time 0
_CLOCKS = {
    "time": time.time,
    "time_ns": time.time_ns,
    "monotonic": time.monotonic,
    "monotonic_ns": time.monotonic_ns,
    "thread_time": time.thread_time,
}


class _Seeded(random.Random):
    """Replaces the system's random source."""

    rng: random.Random

    def __init__(self, seed: object = None) -> None:
        super().__init__(self.rng.getrandbits(64))


def replace_the_machine(loop: SimLoop) -> None:
    """From now on this Python process uses simulated time, and randomness from the loop's seed; this cannot be undone.

    Files are real. A sync does nothing, except that it fails while the running process has a bad disk: writes of a
    killed process survive.
    """
    rng = loop.rng
    os.environ["TZ"] = "UTC"  # retention depends on the local hour
    time.tzset()

    def wall() -> float:
        process = RUNNING.get()
        return EPOCH_S + loop.now + (process.ahead_s if process is not None else 0.0)

    clocks = {
        "time": wall,
        "time_ns": lambda: int(wall() * 1e9),
        "monotonic": lambda: loop.now,
        "monotonic_ns": lambda: int(loop.now * 1e9),
        "thread_time": lambda: loop.now,  # work takes no time
    }
    for name, clock in clocks.items():
        setattr(time, name, clock)
    _replace_defaults({id(_CLOCKS[name]): clock for name, clock in clocks.items()})
    _Seeded.rng = rng
    random.seed(rng.getrandbits(64))
    reconnection.JITTER.setstate(random.getstate())
    usage = shutil.disk_usage("/")._replace(total=100 << 30, used=30 << 30, free=70 << 30)
    for module, name, stand_in in (
        (random, "SystemRandom", _Seeded),
        (secrets, "randbits", rng.getrandbits),
        (uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128), version=4)),
        (os, "getpid", lambda: 4711),
        (os, "fsync", _sync),
        (os, "fdatasync", _sync),
        (shutil, "disk_usage", lambda path: usage),
    ):
        setattr(module, name, stand_in)
    for kind in (Connection, ParkedPull):
        number_instances(kind, loop)


def number_instances(kind: type, loop: SimLoop) -> None:
    """Make the iteration order of sets of these objects, which hash by identity, equal in every run."""
    known: dict[int, tuple[int, object]] = {}

    def hash_of(one: object) -> int:
        if id(one) not in known:
            known[id(one)] = loop.number(), one
        return known[id(one)][0]

    kind.__hash__ = hash_of  # type: ignore[assignment,method-assign]


def _sync(fd: int) -> None:
    process = RUNNING.get()
    if process is not None and process.failing_sync:
        raise OSError(errno.EIO, "input/output error (simulated)")


def _replace_defaults(clocks: dict[int, Any]) -> None:
    """Replace clocks that modules imported by name, or functions took as default arguments when they were defined."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("saturnmq"):
            continue
        for attribute, value in list(vars(module).items()):
            if id(value) in clocks:
                setattr(module, attribute, clocks[id(value)])
        owners = [module, *(one for one in vars(module).values() if isinstance(one, type))]
        for function in [one for owner in owners for one in vars(owner).values() if hasattr(one, "__defaults__")]:
            defaults = function.__defaults__
            if defaults and any(id(one) in clocks for one in defaults):
                function.__defaults__ = tuple(clocks.get(id(one), one) for one in defaults)
            more = function.__kwdefaults__
            if more:
                more.update({key: clocks[id(one)] for key, one in more.items() if id(one) in clocks})
