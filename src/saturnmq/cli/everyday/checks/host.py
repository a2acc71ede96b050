"""Checks of this machine: versions, descriptors, kernel settings, disk space and the time of an fdatasync.

Requirements: CLI-06, OPS-09.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import saturnmq
from saturnmq.cli.everyday.checks.finding import Finding, note, ok, problem
from saturnmq.cli.runtime import version_facts

NOFILE_WANTED: Final = 655_350
NOFILE_MIN: Final = 65_536
CLEAN_PERCENT: Final = 75  # diskMaxUsedSpaceRatio: retention starts before the files expire
FORCED_PERCENT: Final = 85  # files that have not expired are deleted
REFUSED_PERCENT: Final = 90  # writes are refused
FLUSH_SLOW_MS: Final = 5.0
FLUSH_BAD_MS: Final = 20.0
FLUSH_BYTES: Final = 4096
LARGE_MEMORY_KB: Final = 48_000_000


class Setting(NamedTuple):
    """A kernel setting below /proc/sys/vm and the value of Apache RocketMQ's os.sh; at_least, at_most: others are good too."""

    name: str
    value: int
    at_least: bool = False
    at_most: bool = False
    large_memory: bool = False


KERNEL: Final = (
    Setting("overcommit_memory", 1),
    Setting("min_free_kbytes", 5_000_000, at_least=True, large_memory=True),
    Setting("zone_reclaim_mode", 0),
    Setting("max_map_count", 655_360, at_least=True),
    Setting("dirty_background_ratio", 50),
    Setting("dirty_ratio", 50),
    Setting("page-cluster", 3),
    Setting("dirty_writeback_centisecs", 360_000),
    Setting("swappiness", 10, at_most=True),
)


def versions() -> Iterator[Finding]:
    """Version of SaturnMQ, and of what it runs on."""
    facts = version_facts()
    text = ", ".join(f"{name} {facts[name]}" for name in ("python", "loop", "protocol", "commit"))
    yield ok("version", "saturnmq", f"{saturnmq.__version__}, {text}")
    yield ok("hot path", "implementation", facts["hot"])


def descriptors(limits: tuple[int, int] | None) -> Iterator[Finding]:
    """The limit of file descriptors. limits: soft and hard, -1 for none; servers raise the soft one themselves."""
    if limits is None:
        yield ok("nofile", "limit", "this system has none")
        return
    soft, hard = (2**31 if limit < 0 else limit for limit in limits)
    text = f"soft {soft}, hard {hard}"
    if hard < NOFILE_MIN:
        advice = f"set LimitNOFILE={NOFILE_WANTED} in the unit, or nofile in /etc/security/limits.conf"
        yield problem("nofile", "limit", f"{text}: fewer than {NOFILE_MIN} connections and files together", advice)
    else:
        yield ok("nofile", "limit", text)


def descriptor_limits() -> tuple[int, int] | None:
    """Soft and hard limit of this process; None where there is none."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def kernel(proc: Path = Path("/proc")) -> Iterator[Finding]:
    """Kernel settings against those of os.sh."""
    memory_kb = _memory_kb(proc)
    for setting in KERNEL:
        name = f"vm.{setting.name}"
        try:
            value = int((proc / "sys" / "vm" / setting.name).read_text(encoding="ascii"))
        except (OSError, ValueError):
            yield note("kernel", name, "cannot be read", "look at it as root: sysctl " + name)
            continue
        suffices = value == setting.value or (setting.at_least and value > setting.value)
        if suffices or (setting.at_most and value < setting.value):
            yield ok("kernel", name, str(value))
        elif setting.large_memory and memory_kb < LARGE_MEMORY_KB:
            yield ok("kernel", name, f"{value}; {setting.value} is for machines with 48 GB and more")
        else:
            advice = f"sysctl -w {name}={setting.value}, and the same line in /etc/sysctl.d/"
            yield note("kernel", name, f"{value}; Apache RocketMQ's os.sh sets {setting.value}", advice)


def _memory_kb(proc: Path) -> int:
    try:
        return int((proc / "meminfo").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def scheduler(folder: Path, sys_block: Path = Path("/sys/dev/block")) -> Iterator[Finding]:
    """The I/O scheduler of the disk that holds a folder."""
    device = _existing(folder).stat().st_dev
    device_path = sys_block / f"{os.major(device)}:{os.minor(device)}"
    for queue in (
        device_path / "queue",
        device_path.resolve().parent / "queue",
    ):  # of the disk, or of the disk of a partition
        try:
            text = (queue / "scheduler").read_text(encoding="ascii").strip()
        except OSError:
            continue
        active = text.partition("[")[2].partition("]")[0] or text
        if active in ("none", "deadline", "mq-deadline"):
            yield ok("kernel", "I/O scheduler", active)
        else:
            advice = f"echo mq-deadline > {queue / 'scheduler'}"
            yield note("kernel", "I/O scheduler", f"{active}; os.sh sets deadline", advice)
        return
    yield ok("kernel", "I/O scheduler", f"the disk of {folder} has none that can be read")


def disk_space(folder: Path) -> Iterator[Finding]:
    """Use of the disk that holds a folder."""
    usage = shutil.disk_usage(_existing(folder))
    percent = 100 * (usage.total - usage.free) // max(usage.total, 1)
    yield disk_finding(str(folder), percent, f"{percent} % used, {usage.free // 2**20} MiB free")


def disk_finding(subject: str, percent: int, text: str) -> Finding:
    """The finding for a disk that is used by this percentage."""
    advice = "free space, or lower fileReservedTime (hours) so that old messages are deleted sooner"
    if percent >= REFUSED_PERCENT:
        return problem("disk", subject, f"{text}: from {REFUSED_PERCENT} % on writes are refused", advice)
    if percent >= FORCED_PERCENT:
        return problem(
            "disk", subject, f"{text}: from {FORCED_PERCENT} % on files are deleted before they expire", advice
        )
    if percent >= CLEAN_PERCENT:
        return note("disk", subject, f"{text}: expired files are deleted at any hour", advice)
    return ok("disk", subject, text)


def flush_time(folder: Path, rounds: int) -> Iterator[Finding]:
    """The duration of an fdatasync of 4 KiB in a folder, in a file that has no name and leaves nothing behind."""
    if not folder.is_dir():
        yield note("fdatasync", str(folder), "there is no such folder yet", "name the folder of the store: --data DIR")
        return
    try:
        times = sorted(_flushes(folder, rounds))
    except OSError as error:
        advice = "let the user of the broker write there: chown"
        yield problem("fdatasync", str(folder), f"cannot be measured: {error.strerror}", advice)
        return
    median = statistics.median(times)
    text = f"median {median:.2f} ms, maximum {times[-1]:.2f} ms of {rounds}"
    advice = (
        "with SYNC_FLUSH every batch of messages waits that long: use a disk with a protected write cache, or an SSD"
    )
    if median >= FLUSH_BAD_MS:
        yield problem("fdatasync", str(folder), text, advice)
    elif median >= FLUSH_SLOW_MS:
        yield note("fdatasync", str(folder), text, advice)
    else:
        yield ok("fdatasync", str(folder), text)


def _flushes(folder: Path, rounds: int) -> Iterator[float]:
    sync: Any = getattr(os, "fdatasync", os.fsync)
    with tempfile.TemporaryFile(dir=folder) as file:  # O_TMPFILE on Linux: no name
        for _ in range(rounds):
            os.write(file.fileno(), bytes(FLUSH_BYTES))
            began = time.perf_counter()
            sync(file.fileno())
            yield (time.perf_counter() - began) * 1000


def _existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder
