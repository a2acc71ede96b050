"""The transactional sink under kills, failures, aborts, late tasks, check-backs and several drivers at once, in any order.

`Model` runs the sink's commit and abort in threads that stop at every file they create and every request they send. A seed, drawn
by Hypothesis, chooses which thread goes on, fails or is killed. The broker is the strictest possible: it stores a message again
for every commit, also of a half that was rolled back.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saturnmq.client.receipt import TransactionState
from saturnmq.errors import ConnectFailed
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import StoreError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.ids import offset_message_id
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.spark import decision_log, transactional
from saturnmq.spark.connect import ConnectionOptions
from saturnmq.spark.decision_log import QUIET_MS, BatchDecision, DecisionLog, Fence, StoredHalf

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
GROUP = "G-model"
DRIVERS_MAX = 3
ROWS = 2  # of each of the two tasks of a batch
STEP_SECONDS_MAX = 30


class Killed(BaseException):
    """SIGKILL of the process that runs commit or abort: nothing of it runs any more."""


class Driver(threading.Thread):
    """A driver that runs one batch: its tasks, commit, after an error abort. `go` continues it from one step to the next."""

    def __init__(self, model: Model, batch: int, aborts: Sequence[transactional.Halves] = ()) -> None:
        """aborts: only abort the batch with these commit messages, beside a commit that has not ended."""
        super().__init__(daemon=True)
        self.model, self.batch, self.aborts = model, batch, aborts
        self.written: list[transactional.Halves] = []
        self.is_in_flight = False  # stands between sending a request and its execution
        self.is_ended = False
        self.result: str = ""
        self._order = "go"
        self._proceed, self._stopped = threading.Semaphore(0), threading.Semaphore(0)

    def go(self, order: str = "go") -> None:
        """Continue to the next step: go, fail (nothing happens), lose (the response is lost), kill."""
        self._order = order
        self._proceed.release()
        assert self._stopped.acquire(timeout=STEP_SECONDS_MAX)

    def pause(self, *, in_flight: bool = False) -> str:
        """Wait for the next order; raises Killed."""
        self.is_in_flight = in_flight
        self._stopped.release()
        assert self._proceed.acquire(timeout=STEP_SECONDS_MAX)
        self.is_in_flight = False
        if self._order == "kill":
            raise Killed
        return self._order

    def run(self) -> None:
        try:
            self.pause()
            if self.aborts:
                self.model.abort(self, self.aborts)
            else:
                self.model.run_batch(self)
                self.result = "committed"
        except Killed:
            self.result = "killed"
        except Exception as error:
            self.result = f"failed: {error}"
        finally:
            self.is_ended = True
            self._stopped.release()


def order_of_thread(*, in_flight: bool = False) -> str:
    """Stop the running driver, if this is one; return its order."""
    thread = threading.current_thread()
    return thread.pause(in_flight=in_flight) if isinstance(thread, Driver) else "go"


class SteppedLog(DecisionLog):
    """A decision log whose writer stops before and after everything that it writes."""

    def _create(self, path: Path, text: str) -> bool:
        if order_of_thread() == "fail":
            raise OSError(28, "no space left on device", str(path))
        created = super()._create(path, text)
        if order_of_thread() == "fail":
            raise OSError(5, "the folder could not be synced", str(path))
        return created

    def acknowledge(self, batch: str, claim: decision_log.Claim, halves: Any) -> None:
        if order_of_thread() == "fail":
            raise OSError(28, "no space left on device")
        super().acknowledge(batch, claim, halves)

    def finish(self, batch: str) -> None:
        if order_of_thread() == "fail":
            raise OSError(28, "no space left on device")
        super().finish(batch)


class Model:
    """Brokers, clock and drivers of one query and its decision log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_ms = int(time.time() * 1000)
        self.bodies: dict[int, tuple[Fence, int]] = {}  # half offset -> who wrote it, row
        self.unsettled: set[int] = set()
        self.rolled_back: set[int] = set()
        self.stored: Counter[int] = Counter()
        self.batch = 0
        self.drivers: list[Driver] = []
        self.live: Driver | None = None
        self.core = self.remote = self  # of the link

    # ---- brokers, in the form of a link

    def run(self, work: Any) -> Any:
        return asyncio.run(work)

    async def master_address(self, topic: str, broker: str) -> str:
        return f"{broker}:1"

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        order = order_of_thread(in_flight=True)
        if order == "fail":
            raise ConnectFailed("connection refused", sent=False)
        if command.code == RequestCode.END_TRANSACTION:
            self.end(int(command.ext["tranStateTableOffset"]), int(command.ext["commitOrRollback"]))
        if order == "lose":
            raise ConnectFailed("connection lost", sent=True)
        return Command(ResponseCode.SUCCESS)

    async def call_all(self, address: str, commands: Sequence[Command], timeout_ms: int) -> list[Command | Exception]:
        outcomes: list[Command | Exception] = []
        for command in commands:
            try:
                outcomes.append(await self.call(address, command, timeout_ms))
            except ConnectFailed as error:
                outcomes.append(error)
        return outcomes

    def end(self, offset: int, state: int) -> None:
        if state == COMMIT.value:
            assert offset not in self.rolled_back, f"half {offset} committed after it was rolled back"
            self.stored[self.bodies[offset][1]] += 1
        elif offset in self.unsettled:
            self.rolled_back.add(offset)
        self.unsettled.discard(offset)

    def write(self, batch: int, partition: int, rows: range) -> transactional.Halves:
        """A task: stores one half per row."""
        fence = Fence("q", str(batch), partition, 0, decision_log.new_token())
        halves = []
        for row in rows:
            offset = len(self.bodies)
            self.bodies[offset] = fence, row
            self.unsettled.add(offset)
            place = offset_message_id(("127.0.0.1", 1), PhysicalOffset(offset))
            halves.append(StoredHalf(f"U{offset}", "T", f"b{offset % 2}", QueueOffset(offset), place))
        return transactional.Halves(fence, tuple(halves))

    def check(self, offset: int) -> None:
        """A broker's check-back, answered by the driver."""
        fence, _ = self.bodies[offset]
        state = DecisionLog(str(self.folder)).verdict(fence, f"U{offset}")
        if state is not UNKNOWN:
            self.end(offset, state.value)

    # ---- Spark

    def run_batch(self, driver: Driver) -> None:
        """What Spark does with a micro-batch, in the driver's thread."""
        first, log = driver.batch * 2 * ROWS, SteppedLog(str(self.folder))
        driver.written = written = [
            self.write(driver.batch, n, range(first + n * ROWS, first + (n + 1) * ROWS)) for n in range(2)
        ]
        try:
            if driver.pause() == "fail":
                written = written[:1]  # a task failed: Spark aborts with the messages of the others
                raise StoreError("a task failed")
            transactional.commit(ConnectionOptions(), log, GROUP, written, str(driver.batch))
        except Exception:
            self.abort(driver, written)
            raise

    def abort(self, driver: Driver, written: Sequence[transactional.Halves]) -> None:
        transactional.abort(ConnectionOptions(), SteppedLog(str(self.folder)), GROUP, written, "q", str(driver.batch))

    def stop(self, driver: Driver) -> None:
        """Stop the query: Spark interrupts its own wait for the commit and aborts, while the commit goes on in its process."""
        self.live = None if self.live is driver else self.live
        self.drivers.append(Driver(self, driver.batch, driver.written))
        self.drivers[-1].start()
        assert self.drivers[-1]._stopped.acquire(timeout=STEP_SECONDS_MAX)

    def start(self) -> Driver:
        """Start a driver; commit and abort of earlier ones go on in their processes, but no batch is recorded for them."""
        self.live = Driver(self, self.batch)
        self.drivers.append(self.live)
        self.live.start()
        assert self.live._stopped.acquire(timeout=STEP_SECONDS_MAX)
        return self.live

    def go(self, driver: Driver, order: str) -> None:
        driver.go(order)
        if driver.is_ended:
            driver.join(STEP_SECONDS_MAX)
            self.drivers.remove(driver)
            if driver is self.live and driver.result == "committed":
                self.batch, self.live = self.batch + 1, None

    def play(self, rng: random.Random, moves: int) -> None:
        """Let things happen in an order chosen by rng; each run draws how often each of them happens."""
        often = {name: rng.choice((0.0, 0.03, 0.1, 0.3)) for name in ("fail", "lose", "kill")}
        kinds = ["go", "start", "check", "late", "tick", "stop"]
        weights = [1.0, 0.1, *(rng.choice((0.0, 0.02, 0.1, 0.3)) for _ in range(4))]
        for _ in range(moves):
            kind = rng.choices(kinds, weights)[0]
            if (kind == "start" and len(self.drivers) < DRIVERS_MAX) or not self.drivers:
                self.start()
            elif kind == "go":
                driver = rng.choice(self.drivers)
                self.go(driver, next((order for order, share in often.items() if rng.random() < share), "go"))
            elif kind == "stop" and (running := [driver for driver in self.drivers if driver.written]):
                if len(self.drivers) < DRIVERS_MAX:
                    self.stop(rng.choice(running))
            elif kind == "check" and self.unsettled:
                self.check(rng.choice(sorted(self.unsettled)))
            elif kind == "late":  # a task of the batch that Spark does not wait for
                row = self.batch * 2 * ROWS
                self.write(self.batch, 7, range(row, row + 1))
            elif kind == "tick" and not any(driver.is_in_flight for driver in self.drivers):
                self.now_ms += QUIET_MS  # no request is in flight for as long

    def settle(self, *, killed: bool) -> None:
        """End all drivers, run the batch until it is committed, and answer check-backs until no half is left."""
        for driver in list(self.drivers):
            while driver in self.drivers:
                self.go(driver, "kill" if killed else "go")
        batch, result = self.batch, ""
        for _ in range(4):
            if self.batch == batch:
                driver = self.start()
                while driver in self.drivers:
                    self.go(driver, "go")
                result = driver.result
        assert self.batch > batch, f"the batch fails for ever: {result}"
        for _ in range(3):
            self.now_ms += QUIET_MS
            for offset in sorted(self.unsettled):
                self.check(offset)


@contextmanager
def model() -> Iterator[Model]:
    folder = Path(tempfile.mkdtemp())
    with pytest.MonkeyPatch.context() as patch:
        made = Model(folder / "log")

        @contextmanager
        def linked(connection: ConnectionOptions) -> Iterator[Model]:
            yield made

        patch.setattr(transactional, "linked", linked)
        patch.setattr(transactional, "REACH_SECONDS", 0.0)
        patch.setattr(transactional, "PAUSE_S", (0.0, 0.0))
        for module in (decision_log, transactional):
            patch.setattr(module, "now_ms", lambda: made.now_ms)
        patch.setattr(os, "fsync", lambda handle: None)  # a loss of power is not part of the model
        try:
            yield made
        finally:
            for driver in list(made.drivers):
                made.go(driver, "kill")
            shutil.rmtree(folder, ignore_errors=True)


@settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.booleans())
def test_rows_are_committed_once_in_every_order_of_events(seed: int, killed: bool) -> None:
    with model() as played:
        rng = random.Random(seed)
        played.play(rng, rng.choice((20, 60, 150)))
        played.settle(killed=killed)
        assert played.stored == Counter(range(played.batch * 2 * ROWS))
        assert not played.unsettled, "half messages that no commit and no check-back settles"


def test_claim_of_batch_finished_meanwhile_is_withdrawn(tmp_path: Path) -> None:
    """A finished batch has no journals any more: without this check a slow driver would send all its ends a second time."""
    halves = tuple(StoredHalf(f"U{n}", "T", "b", QueueOffset(n), "") for n in range(2))
    fast, slow = DecisionLog(str(tmp_path)), DecisionLog(str(tmp_path))
    fast.decide(BatchDecision("q", "0", frozenset({"t"}), halves))
    create = slow._create

    def created(path: Path, text: str) -> bool:
        claim = fast.claim("0", iter(halves), 2)
        assert claim is not None
        fast.acknowledge("0", claim, claim.halves)
        fast.finish("0")
        return create(path, text)

    slow._create = created  # type: ignore[method-assign]
    assert slow.claim("0", iter(halves), 2) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.done", "0.json"]
