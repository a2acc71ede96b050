"""Hostile requests for the compiled modules, built with AddressSanitizer and UndefinedBehaviorSanitizer: any report ends the run.

    PYTHONPATH=tests python -m harness.fuzz.sanitized [--frames N] [--seed S]

Copies the package to a temporary folder, compiles `saturnmq.hot` there with gcc's sanitizers, and runs itself in an interpreter
that has their libraries loaded and Python's own allocator off, so that a read beyond an object is one beyond an allocation. The
connections of a broker get sends, half messages, batches, pulls, commits and ends of transactions in either serialization, most
of them damaged, in reads of any size, without sockets; every second round is one of SYNC_FLUSH, every third one of signed requests
and access control.

Requirements: FUZ-05.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from harness.fuzz.frames import mutate
from saturnmq.broker.services.half_table import UndecidedHalf
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command, Serialization, encode_frame
from saturnmq.protocol.headers.send_fields import SEND_V1_BY_V2
from saturnmq.protocol.message import BatchItem, encode_batch
from saturnmq.protocol.signatures import sign_v1

REPOSITORY: Final = Path(__file__).resolve().parents[3]
SANITIZERS: Final = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g"
LIBRARIES: Final = ("libasan.so", "libubsan.so")
ROUND_FRAMES: Final = 50_000  # after which the broker starts again with an empty store
CONNECTIONS: Final = 16
_V1, _BATCH = int(RequestCode.SEND_MESSAGE), int(RequestCode.SEND_BATCH_MESSAGE)
_CODES: Final = (_V1, int(RequestCode.SEND_MESSAGE_V2), _BATCH)
_FETCHES: Final = (int(RequestCode.PULL_MESSAGE), int(RequestCode.UPDATE_CONSUMER_OFFSET))
_FETCH: Final = {"consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "5",
                 "commitOffset": "1", "subscription": "*", "subVersion": "0", "expressionType": "TAG"}  # fmt: skip
_END: Final = int(RequestCode.END_TRANSACTION)
_END_FIELDS: Final = {"producerGroup": "g", "msgId": "x", "transactionId": "x", "fromTransactionCheck": "false"}
_HALF: Final = "TRAN_MSG\x01true\x02PGROUP\x01g"
_COMMIT_FIELDS: Final = ("consumerGroup", "topic", "queueId", "commitOffset")
ACCOUNT: Final = ("fuzzing", b"12345678")
ACCOUNTS: Final = f"""accounts:
  - accessKey: {ACCOUNT[0]}
    secretKey: {ACCOUNT[1].decode()}
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: SUB
"""
_FIELDS: Final = {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1795246686100", "h": "0", "i": "",
                  "j": "0", "k": "false", "m": "false"}  # fmt: skip
_ODD: Final = ("", "x", "-1", "0", "3", "2147483648", "9" * 30, "true", "\x01", "\x02\x02", "é", "\0", "T" * 300)
_PROPERTIES: Final = ("WAIT\x01true", "WAIT\x01false", "TAGS\x01t1", "KEYS\x01a b  c", "UNIQ_KEY\x017F000001", "CLUSTER\x01x",
                      "é\x01ü", "DELAY\x013", "TRAN_MSG\x01true", "TAGS\x01", "\x02", "A\x01" + "v" * 300,
                      "KEYS\x01" + "k " * 100)  # fmt: skip


class RequestMaker:
    """Makes sends, half messages, batches, pulls, commits and ends of transactions.

    seed: decides all of them. signed: by ACCOUNT.
    """

    def __init__(self, seed: int, *, signed: bool = False) -> None:
        self._chance = random.Random(seed)
        self._signed = signed
        self.undecided: dict[int, UndecidedHalf] = {}  # half messages of the broker

    def frame(self) -> bytes:
        """The next frame, of which two in three are damaged; its outer length is mostly right."""
        chance = self._chance
        fields = _FIELDS | {
            "i": "\x02".join(chance.choices(_PROPERTIES, k=chance.randrange(5))),
            "e": str(chance.randrange(5)),
        }
        if chance.random() < 0.3:
            fields |= {"i": f"{_HALF}\x02{fields['i']}", "f": "4"}
        code = chance.choice((*_CODES, *_FETCHES, _END))
        if code == _END:
            half_offset, physical = self._half()
            fields = _END_FIELDS | {"tranStateTableOffset": str(half_offset), "commitLogOffset": str(physical),
                                    "commitOrRollback": chance.choice(("8", "12"))}  # fmt: skip
        if code in _FETCHES:
            offset = {"queueOffset": str(chance.randrange(5)), "commitOffset": str(chance.randrange(5))}
            names = _COMMIT_FIELDS if code == _FETCHES[1] else _FETCH
            fields = {name: value for name, value in (_FETCH | offset).items() if name in names}
        if chance.random() < 0.2:
            fields[chance.choice(list(fields))] = chance.choice(_ODD)
        if code == _V1:
            fields = {SEND_V1_BY_V2.get(name, name): value for name, value in fields.items()}
        body = self._batch() if code == _BATCH else chance.randbytes(chance.randrange(120))
        request = Command(
            code, ext=fields, body=None if code in _FETCHES or code == _END else body, opaque=chance.randrange(-9, 2**31),
            flag=chance.choice((0, 0, 0, 2)), serialization=chance.choice((Serialization.JSON, Serialization.ROCKETMQ)),
        )  # fmt: skip
        if self._signed and chance.random() < 0.9:
            sign_v1(request, *ACCOUNT)
        raw = encode_frame(request)
        if chance.random() < 0.33:
            return raw
        raw = mutate(raw, chance)
        return struct.pack(">i", len(raw) - 4) + raw[4:] if len(raw) > 8 and chance.random() < 0.95 else raw

    def _half(self) -> tuple[int, int]:
        """Offsets of an undecided half message, or of none."""
        chance = self._chance
        if self.undecided and chance.random() < 0.9:
            half = self.undecided[next(iter(self.undecided))]
            return half.offset, half.physical + (chance.random() < 0.1)
        return chance.randrange(5), chance.randrange(5000)

    def _batch(self) -> bytes:
        chance = self._chance
        items = [
            BatchItem(chance.randbytes(chance.randrange(40)), "\x02".join(chance.choices(_PROPERTIES, k=2)).encode(), 0)
            for _ in range(chance.randrange(6))
        ]
        raw = encode_batch(items)
        return mutate(raw, chance) if raw and chance.random() < 0.5 else raw


class Discards(asyncio.Transport):
    """The transport of a connection without a socket: drops what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 40_000) if name in ("peername", "sockname") else default

    def write(self, data: Any) -> None:
        """Drop it."""

    def writelines(self, parts: Any) -> None:
        """Drop them."""

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""


async def attack(frames: int, seed: int, *, sync: bool, signed: bool) -> int:
    """Send frames to a broker of this process; returns how many messages it stored.

    sync: SYNC_FLUSH. signed: with access control.
    """
    from saturnmq.broker import Broker, BrokerSettings
    from saturnmq.net import NetSettings
    from saturnmq.net.connection import Connection
    from saturnmq.store import FlushDiskType, StoreProfile, StoreSettings

    folder = tempfile.mkdtemp(prefix="saturnmq-sanitized-")
    flush = FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH
    accounts = Path(folder, "conf", "plain_acl.yml")
    accounts.parent.mkdir()
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)
    broker = Broker(
        BrokerSettings(
            bind_address="127.0.0.1",
            listen_port=0,
            fast_port_enable=False,
            fast_failure=False,
            acl_enable=signed,
            acl_home=folder,
        ),
        StoreSettings(profile=StoreProfile.STANDARD, store_path_root_dir=f"{folder}/store", flush_disk_type=flush),
        NetSettings(),
    )
    maker, chance = RequestMaker(seed, signed=signed), random.Random(seed)
    try:
        await broker.start()
        assert broker._server.plain_reads is not None, "nothing is compiled"
        maker.undecided = broker.master.transactions.table.pending
        connections: list[tuple[Connection, Discards]] = []
        rest = frames
        while rest > 0:
            while len(connections) < CONNECTIONS:
                connection, transport = Connection(broker._server), Discards()
                connection.connection_made(transport)
                connections.append((connection, transport))
            for connection, _ in connections:
                count = chance.randint(1, 6)
                data = b"".join(maker.frame() for _ in range(count))
                rest -= count
                cut = chance.randrange(len(data))
                for piece in (data[:cut], data[cut:]) if chance.random() < 0.3 else (data,):
                    if piece and not connection.closed:
                        connection.data_received(piece)
            await asyncio.sleep(0)
            for connection, transport in connections:
                if transport.closed:
                    connection.connection_lost(None)
            connections = [pair for pair in connections if not pair[1].closed]
        for connection, _ in connections:
            connection.connection_lost(None)
        return broker.stats.put_messages
    finally:
        await broker.stop()
        shutil.rmtree(folder, ignore_errors=True)


def build(folder: Path) -> dict[str, str]:
    """Compile a copy of the package in `folder` with the sanitizers; returns the environment of a process that uses it."""
    source = folder / "src"
    shutil.copytree(REPOSITORY / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info"))
    modules = sorted(str(path.with_suffix(".py")) for path in (source / "saturnmq" / "hot").glob("*.pxd"))
    words = [
        sys.executable,
        "-m",
        "Cython.Build.Cythonize",
        "-i",
        "-3",
        "-q",
        "-X",
        "annotation_typing=False",
        *modules,
    ]
    flags = {"CFLAGS": SANITIZERS, "LDFLAGS": SANITIZERS}
    subprocess.run(words, check=True, env=os.environ | flags, cwd=folder, stdout=subprocess.DEVNULL)
    named = [subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
             for name in LIBRARIES]  # fmt: skip
    return os.environ | {
        "PYTHONPATH": f"{source}{os.pathsep}{REPOSITORY / 'tests'}",
        "LD_PRELOAD": " ".join(named),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",
        "SATURNMQ_PURE": "0",
    }


def run(
    frames: int, seed: int, round_frames: int = ROUND_FRAMES, advanced: Callable[[int], object] = lambda done: None
) -> tuple[int, str]:
    """Build the modules and send them frames; returns how many messages were stored, and what a sanitizer reported.

    advanced: called with the number of frames that were sent.
    """
    stored = done = 0
    with tempfile.TemporaryDirectory(prefix="saturnmq-sanitized-") as folder:
        environment = build(Path(folder))
        while done < frames:
            count = min(round_frames, frames - done)
            words = [
                sys.executable,
                "-m",
                "harness.fuzz.sanitized",
                "--child",
                "--frames",
                str(count),
                "--seed",
                str(seed),
            ]
            ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
            if ended.returncode != 0 or "runtime error" in ended.stderr:
                report = ended.stderr[max(ended.stderr.find("==ERROR"), len(ended.stderr) - 20_000, 0) :]
                return stored, f"seed {seed}: exit status {ended.returncode}\n{report}"
            stored += int(ended.stdout.split()[-1])
            done, seed = done + count, seed + 1
            advanced(done)
    return stored, ""


def main() -> int:
    """Returns the exit status: 0 if no sanitizer reported anything."""
    parser = argparse.ArgumentParser(description="hostile sends for the compiled modules under ASan and UBSan")
    parser.add_argument("--frames", type=int, default=10_000_000)
    parser.add_argument(
        "--seed", type=int, default=None, help="the same seed gives the same frames (default: a new one)"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    if given.child:
        print(asyncio.run(attack(given.frames, seed, sync=bool(seed % 2), signed=seed % 3 == 0)), flush=True)
        return 0
    console = Console()
    console.print(f"again: PYTHONPATH=tests python -m harness.fuzz.sanitized --seed {seed} --frames {given.frames}")
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("frames", total=given.frames)
        stored, problem = run(given.frames, seed, advanced=lambda done: bar.update(task, completed=done))
    console.print(problem or f"{given.frames:,} frames, {stored:,} messages stored, no report", markup=False)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
