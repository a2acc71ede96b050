"""Floods and bombs beside a client that behaves: `PYTHONPATH=tests python -m harness.fuzz.abuse`, run by `make fuzz ABUSE=1`.

Each attack runs alone for some seconds against the plain broker while an honest client sends. A row says what is left of its rate,
how its latency changed, how long it took to recover and how memory grew. Bounds: G11 of docs/spec/07.

Requirements: G11, LIM-03, LIM-05, LIM-06, LIM-08.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from harness.fuzz.delivery import pause
from harness.fuzz.honest import HonestClient, Latencies
from harness.fuzz.servers import Servers
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command, encode_frame
from saturnmq.protocol.message import decode_properties, encode_properties

RATE_SHARE_MIN: Final = 0.8
P99_RATIO_MAX: Final = 3.0
RECOVERY_SECONDS_MAX: Final = 5.0
RSS_GROWTH_MAX: Final = 320 * 2**20  # serverRequestBytesMax and unsignedBytesMax together
QUIET_SECONDS: Final = 5.0
ATTACK_SECONDS: Final = 10.0
SLOW_SOCKETS: Final = 2_000
SOCKETS: Final = 5_000
PARKED_PULLS: Final = 30_000
AT_ONCE: Final = 8  # connections of an attack that sends
BYTES_PER_SECOND: Final = 20_000_000

Attack = Callable[[int], Awaitable[None]]  # of the broker's port; runs until it is cancelled


class Row(NamedTuple):
    """One attack: the honest client before and during it, seconds until its rate was back, growth of the broker in bytes."""

    name: str
    quiet: Latencies
    attacked: Latencies
    recovery_s: float
    rss_bytes: int

    @property
    def share(self) -> float:
        """Rate under attack over the rate before."""
        return self.attacked.rate / self.quiet.rate if self.quiet.rate else 0.0

    @property
    def p99_ratio(self) -> float:
        return self.attacked.p99_ms / self.quiet.p99_ms if self.quiet.p99_ms else 0.0

    def checks(self) -> list[tuple[str, str, str, bool]]:
        """Goal, bound, what was found and whether it holds, for each bound of G11."""
        quiet, attacked = self.quiet, self.attacked
        return [
            (
                "throughput", f">= {RATE_SHARE_MIN:.0%}", f"{quiet.rate:.0f} -> {attacked.rate:.0f} sends/s ({self.share:.0%})",
                self.share >= RATE_SHARE_MIN,
            ),
            (
                "p99", f"<= {P99_RATIO_MAX:g} x", f"{quiet.p99_ms:.1f} -> {attacked.p99_ms:.1f} ms ({self.p99_ratio:.1f} x)",
                self.p99_ratio <= P99_RATIO_MAX,
            ),
            ("recovery", f"<= {RECOVERY_SECONDS_MAX:g} s", f"{self.recovery_s:.1f} s", self.recovery_s <= RECOVERY_SECONDS_MAX),
            (
                "memory", f"<= +{RSS_GROWTH_MAX >> 20} MiB", f"{self.rss_bytes / 2**20:+.0f} MiB", self.rss_bytes <= RSS_GROWTH_MAX,
            ),
            ("failed sends", "0", str(attacked.failed), not attacked.failed),
        ]  # fmt: skip

    @property
    def ok(self) -> bool:
        """Whether every bound holds."""
        return all(holds for *_, holds in self.checks())


# ---- the attacks


async def slow_frames(port: int) -> None:
    """2,000 sockets that send a byte of a frame every 5 s, opened again when they are closed."""

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                for byte in struct.pack(">ii", 1000, 996):
                    writer.write(bytes((byte,)))
                    await writer.drain()
                    await pause(5)
            await pause(1)

    await asyncio.gather(*(one() for _ in range(SLOW_SOCKETS)))


async def connections(port: int) -> None:
    """5,000 sockets that say nothing."""
    writers = []
    for _ in range(SOCKETS):
        with contextlib.suppress(OSError):
            writers.append((await asyncio.open_connection("127.0.0.1", port))[1])
    await asyncio.Event().wait()


async def connects(port: int) -> None:
    """Connections opened and closed without pause."""

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.transport.abort()
            await pause(0.001)

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))


def _frame(header: bytes, body: bytes = b"", form: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), form << 24 | len(header)) + header + body


def sending(make: Callable[[int], bytes]) -> Attack:
    """An attack that sends these frames over a few connections, 20 a second each but at most BYTES_PER_SECOND in all."""

    async def one(port: int, which: int) -> None:
        number = which * 10**6
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                reading = asyncio.ensure_future(_discard(reader))
                try:
                    while not reading.done():
                        frame = make(number)
                        writer.write(frame)
                        number += 1
                        await writer.drain()
                        await pause(max(0.05, AT_ONCE * len(frame) / BYTES_PER_SECOND))
                finally:
                    reading.cancel()
                    writer.transport.abort()
            await pause(0.001)

    async def run(port: int) -> None:
        await asyncio.gather(*(one(port, which) for which in range(AT_ONCE)))

    return run


async def _discard(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 16):
            pass


def header_bomb(_number: int) -> bytes:
    """256 KiB of nested braces and quotes in a header."""
    return _frame(b'{"extFields":' + b"{" * 17 + b'"' + b'\\"' * 130_000)


def many_fields(number: int) -> bytes:
    """A header of 250 fields of 900 bytes."""
    return encode_frame(Command(RequestCode.HEART_BEAT, opaque=number, ext={f"k{i}": "v" * 900 for i in range(250)}))


_NONSENSE = b'{"clientID":"x","producerDataSet":[' + b'{"groupName":"g"},' * 200_000 + b"],"
_BOMB = zlib.compress(bytes(15 * 2**20))


def heartbeat_of_nonsense(number: int) -> bytes:
    """A heartbeat of 3.6 MB that is not JSON in the end."""
    return encode_frame(Command(RequestCode.HEART_BEAT, opaque=number, body=_NONSENSE))


def compressed_registration(number: int) -> bytes:
    """A compressed registration that grows from 15 KB to 15 MB; a broker does not serve its code, a NameServer does."""
    ext = {
        "brokerName": "x",
        "brokerAddr": "127.0.0.1:1",
        "clusterName": "c",
        "haServerAddr": "",
        "brokerId": "0",
        "compressed": "true",
    }
    return encode_frame(Command(RequestCode.REGISTER_BROKER, opaque=number, ext=ext, body=_BOMB))


def many_keys(number: int) -> bytes:
    """A message with 30 KB of keys."""
    text = encode_properties(
        {"KEYS": " ".join(f"k{number}-{i}" for i in range(2000))[:30_000], "WAIT": "true"}
    ).decode()
    fields = {"a": "p", "b": "AttackTopic", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": text,
              "j": "0", "k": "false", "m": "false"}  # fmt: skip
    assert decode_properties(text.encode())
    return encode_frame(Command(RequestCode.SEND_MESSAGE_V2, opaque=number, ext=fields, body=b"x"))


async def parked_pulls(port: int) -> None:
    """30,000 long polls of the honest client's topic with a tag that no message has."""
    fields = {"consumerGroup": "attack", "topic": "HonestTopic", "queueId": "0", "commitOffset": "0", "maxMsgNums": "32",
              "sysFlag": "6", "suspendTimeoutMillis": "60000",
              "subscription": "nothing", "subVersion": "1", "expressionType": "TAG"}  # fmt: skip

    async def one(which: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                reading = asyncio.ensure_future(_discard(reader))
                for number in range(PARKED_PULLS // AT_ONCE):
                    ext = {**fields, "queueOffset": str(10**6 + which)}
                    writer.write(encode_frame(Command(RequestCode.PULL_MESSAGE, opaque=number, ext=ext)))
                    if number % 64 == 0:
                        await writer.drain()
                        await asyncio.sleep(0)
                await reading
                writer.transport.abort()
            await pause(0.1)

    await asyncio.gather(*(one(which) for which in range(AT_ONCE)))


ATTACKS: Final[dict[str, Attack]] = {
    "2,000 slow frames": slow_frames,
    "5,000 silent connections": connections,
    "connect and close": connects,
    "header bombs of 256 KiB": sending(header_bomb),
    "headers of 250 long fields": sending(many_fields),
    "heartbeats of 3.6 MB nonsense": sending(heartbeat_of_nonsense),
    "compressed registrations": sending(compressed_registration),
    "messages with 30 KB of keys": sending(many_keys),
    "30,000 parked pulls": parked_pulls,
}


# ---- measuring


def measure(name: str, attack: Attack, servers: Servers, honest: HonestClient, seconds: float) -> Row:
    """Run one attack for some seconds while the honest client sends."""
    broker = next(port.server for port in servers.ports if port.number == servers.broker_port)
    honest.period()
    honest.wait(QUIET_SECONDS)
    quiet = honest.period()
    rss = broker.rss_bytes()

    async def run() -> tuple[Latencies, int]:
        work = asyncio.ensure_future(attack(servers.broker_port))
        await pause(seconds)
        attacked = await asyncio.to_thread(honest.period)
        grown = broker.rss_bytes() - rss
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        return attacked, grown

    attacked, grown = asyncio.run(run())
    begin = time.monotonic()
    while honest.period().rate < RATE_SHARE_MIN * quiet.rate and time.monotonic() - begin < 30:
        honest.wait(0.5)
    return Row(name, quiet, attacked, time.monotonic() - begin, grown)


def main() -> int:
    """Returns the exit status: 0 if every bound holds."""
    parser = argparse.ArgumentParser(description="floods and bombs beside a client that behaves")
    parser.add_argument("--seed", help="accepted as for the campaign; the attacks do not draw anything")
    parser.add_argument("--seconds", type=float, default=ATTACK_SECONDS, help="of each attack")
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    parser.add_argument(
        "--nice",
        type=int,
        default=0,
        help="priority of the attacker: 19 leaves the processors to servers and client, as another machine would",
    )
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    console = Console()
    rows = []
    with tempfile.TemporaryDirectory(prefix="saturnmq-abuse-") as folder, Servers(Path(folder)) as servers:
        with HonestClient(servers.broker_port) as honest:
            os.nice(given.nice)  # of this process, the attacker
            for name, attack in ATTACKS.items():
                if given.only in name:
                    with console.status(name):
                        rows.append(measure(name, attack, servers, honest, given.seconds))
        ended = [server.name for server in servers.all if server.process.poll() is not None]
    table = Table(title="an honest client beside attacks")
    for column in ("attack", "goal", "bound", "found", ""):
        table.add_column(column, justify="left" if column in ("attack", "goal") else "right")
    for row in rows:
        for number, (goal, bound, found, holds) in enumerate(row.checks()):
            table.add_row("" if number else row.name, goal, bound, found, "ok" if holds else "[red]FAILED")
    console.print(table)
    missed = sum(not holds for row in rows for *_, holds in row.checks())
    console.print(
        f"{missed} of {sum(len(row.checks()) for row in rows)} bounds missed; load of the machine ({os.cpu_count()} processors): "
        + ", ".join(f"{load:.1f}" for load in os.getloadavg())
    )
    for name in ended:
        console.print(f"{name} ended", style="red")
    return 0 if all(row.ok for row in rows) and not ended else 1


if __name__ == "__main__":
    sys.exit(main())
