"""An event loop with simulated time, network and threads: a whole system in one thread.

Code runs as some process: a context variable names it, and tasks and timers inherit it. A crashed process runs no more;
a frozen one runs later. Streams between processes keep their order, as TCP does; a cut link delays what is sent until
it heals.

Requirements: SIM-01..SIM-05.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import random
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final

CONNECT_AGAIN_SECONDS: Final = 0.2
KEPT_TASKS: Final = 4096


class Process:
    """One simulated process on its own machine. host: its address."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.alive = True
        self.frozen = False
        self.ahead_s = 0.0  # offset of its wall clock
        self.disk_s = 0.002  # maximum duration of a call in another thread
        self.failing_sync = False
        self.held: list[events.Handle] = []
        self.streams: dict[Stream, None] = {}


RUNNING: ContextVar[Process | None] = ContextVar("RUNNING", default=None)


def _may_run(handle: events.Handle, context: Context) -> bool:
    process = context.get(RUNNING)
    if process is None:
        return True
    if process.alive and process.frozen:
        process.held.append(handle)
    return process.alive and not process.frozen


class _Handle(events.Handle):
    def _run(self) -> None:
        if _may_run(self, self._context):  # type: ignore[attr-defined]
            super()._run()


class _Timer(events.TimerHandle):
    def _run(self) -> None:
        if _may_run(self, self._context):  # type: ignore[attr-defined]
            super()._run()


class _Future(asyncio.Future[Any]):
    """A future whose hash makes the iteration order of sets equal in every run."""

    def __init__(self, number: int, *, loop: SimLoop) -> None:
        super().__init__(loop=loop)
        self._number = number

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: SimLoop, **more: Any) -> None:
        self._number = loop.number()
        super().__init__(coro, loop=loop, **more)

    def __hash__(self) -> int:
        return self._number


class _Selector:
    """Waiting advances the clock, because no event comes from outside."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing is planned and no thread can wake this loop")
        self._loop.now += timeout
        return []


class SimLoop(asyncio.BaseEventLoop):
    """rng decides delays. happened: number of callbacks run; with the time it is a fingerprint of the run."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.now = 1000.0
        self.rng = rng
        self.net = Net(self)
        self.happened = 0
        self._selector = _Selector(self)
        self._clock_resolution = 1e-9
        self._numbers = 0
        self._kept: list[asyncio.Task[Any]] = []
        self._kept_max = KEPT_TASKS
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self.now

    def number(self) -> int:
        """The next number of a sequence."""
        self._numbers += 1
        return self._numbers

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(self.number(), loop=self)

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no I/O events."""

    def _write_to_self(self) -> None:
        """The loop never sleeps, so there is nothing to wake."""

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> events.Handle:
        self.happened += 1
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **more: Any) -> Any:
        """Keep tasks of crashed processes referenced: their `finally` blocks must never run."""
        task = _Task(coro, loop=self, **more)
        if len(self._kept) >= self._kept_max:
            self._kept = [one for one in self._kept if not one.done()]
            self._kept_max = 2 * len(self._kept) + KEPT_TASKS
        self._kept.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run the call on this thread, after the delay that it would have taken."""
        future: asyncio.Future[Any] = self.create_future()
        process = RUNNING.get()
        delay = self.rng.random() * (process.disk_s if process is not None else 0.001)

        def call() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # as an executor does: the caller gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(delay, call)
        return future

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        if more.get("sock") is not None:
            return _Further()
        return self.net.listen(protocol_factory, str(host), int(port))

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        return await self.net.connect(protocol_factory, str(host), int(port))

    # processes

    def run_as(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Create a task of this process."""
        context = copy_context()
        context.run(RUNNING.set, process)
        return self.create_task(work, context=context)

    def freeze(self, process: Process) -> None:
        process.frozen = True

    def thaw(self, process: Process) -> None:
        process.frozen = False
        held, process.held = process.held, []
        self._ready.extend(held)  # type: ignore[attr-defined]

    def kill(self, process: Process) -> None:
        """As SIGKILL: none of its code runs any more, and its peers' streams are reset."""
        process.alive = False
        process.held.clear()
        self.net.close_listeners(process)
        for stream in list(process.streams):
            stream.die()


class Stream(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, net: Net, process: Process, address: tuple[str, int], context: Context) -> None:
        super().__init__({"sockname": address})
        self.net = net
        self.process = process
        self.address = address
        self.context = context
        self.peer: Stream | None = None
        self.protocol: Any = None
        self.arrives = 0.0  # arrival time of what was sent last
        self.stalled: list[Callable[[], None]] = []
        self.closing = False
        self.lost = False
        self.paused = False
        self.unread: list[bytes | None] = []
        process.streams[self] = None

    # asyncio.Transport

    def is_closing(self) -> bool:
        return self.closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignored: every write is sent at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        if self.closing or not data:
            return
        copy = bytes(data)
        self._to_peer(lambda peer: peer.receive(copy))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        unread, self.unread = self.unread, []
        for data in unread:
            self.net.loop.call_soon(self.receive, data, context=self.context.copy())

    def is_reading(self) -> bool:
        return not self.paused

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def close(self) -> None:
        """End the stream after everything written has arrived."""
        if not self.closing:
            self.closing = True
            self._to_peer(lambda peer: peer.receive(None))
            self.net.loop.call_soon(self._lose, None, context=self.context.copy())

    def abort(self) -> None:
        if not self.lost:
            self.closing = True
            self.die()
            self.net.loop.call_soon(self._lose, None, context=self.context.copy())

    # the other end

    def _to_peer(self, event: Callable[[Stream], None]) -> None:
        """Deliver in order, after a delay; if the link is cut, after it heals."""
        peer, loop = self.peer, self.net.loop
        if peer is None:
            return

        def arrive() -> None:
            if self.net.is_cut(self.process, peer.process) or self.stalled:
                self.stalled.append(lambda: event(peer))
                self.net.stalled[self] = None
            else:
                event(peer)

        self.arrives = max(self.arrives + 1e-7, loop.now + self.net.delay())
        loop.call_at(self.arrives, arrive, context=peer.context.copy())

    def go_on(self) -> None:
        """Deliver what was stalled, after the link healed."""
        stalled, self.stalled = self.stalled, []
        peer = self.peer
        assert peer is not None
        for event in stalled:
            self.arrives = max(self.arrives + 1e-7, self.net.loop.now + self.net.delay())
            self.net.loop.call_at(self.arrives, event, context=peer.context.copy())

    def receive(self, data: bytes | None) -> None:
        """Deliver data to the protocol; None is the end of the stream."""
        if self.lost or self.closing:
            return
        if self.paused:
            self.unread.append(data)
        elif data is None:
            if not self.protocol.eof_received():
                self.close()
        else:
            self.protocol.data_received(data)

    def die(self) -> None:
        """Send nothing more: the peer's stream is reset."""
        self.process.streams.pop(self, None)
        self._to_peer(lambda peer: peer.reset())

    def reset(self) -> None:
        self.closing = True
        self._lose(ConnectionResetError(errno.ECONNRESET, "reset by the peer (simulated)"))

    def _lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = True
            self.process.streams.pop(self, None)
            self.protocol.connection_lost(error)


class _Socket:
    """The part of a socket that servers expose."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def setsockopt(self, *what: Any) -> None:
        """Ignored: buffer sizes have no effect."""

    def dup(self) -> _Socket:
        return self


class _Further:
    """Another server on the socket of a listener, which accepts everything."""

    def close(self) -> None:
        """Nothing to close."""


class _Listener:
    def __init__(self, net: Net, factory: Any, process: Process, address: tuple[str, int]) -> None:
        self.net, self.factory, self.process, self.address = net, factory, process, address
        self.context = copy_context()
        self.sockets = [_Socket(address)]

    def close(self) -> None:
        if self.net.listeners.get(self.address) is self:
            del self.net.listeners[self.address]


class Net:
    """Links between processes. cut: (sender, receiver) names that are disconnected."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.listeners: dict[tuple[str, int], _Listener] = {}
        self.cut: set[tuple[str, str]] = set()
        self.stalled: dict[Stream, None] = {}
        self.slow = 0.0  # probability of a delay of up to slow_s
        self.slow_s = 0.3
        self._port = 30_000

    def delay(self) -> float:
        rng = self.loop.rng
        late = rng.random() * self.slow_s if self.slow and rng.random() < self.slow else 0.0
        return rng.random() * 0.001 + late

    def is_cut(self, sender: Process, receiver: Process) -> bool:
        return (sender.name, receiver.name) in self.cut

    def partition(self, *groups: list[str]) -> None:
        """Connect only processes of the same group; a process in no group is connected to all."""
        self.cut = {(a, b) for x in groups for y in groups if x is not y for a in x for b in y}

    def heal(self) -> None:
        self.cut = set()
        stalled, self.stalled = self.stalled, {}
        for stream in stalled:
            stream.go_on()

    def _free_port(self) -> int:
        self._port += 1
        return self._port

    def listen(self, factory: Any, host: str, port: int) -> _Listener:
        process = RUNNING.get()
        assert process is not None, "servers run as a process"
        address = (host, port or self._free_port())
        if address in self.listeners:
            raise OSError(errno.EADDRINUSE, f"{address} is in use (simulated)")
        self.listeners[address] = _Listener(self, factory, process, address)
        return self.listeners[address]

    def close_listeners(self, process: Process) -> None:
        for listener in [one for one in self.listeners.values() if one.process is process]:
            listener.close()

    async def connect(self, factory: Any, host: str, port: int) -> tuple[Stream, Any]:
        process = RUNNING.get()
        assert process is not None, "clients run as a process"
        await asyncio.sleep(self.delay())  # simulated latency: no real-time poll
        listener = self.listeners.get((host, port))
        while listener is not None and (
            self.is_cut(process, listener.process) or self.is_cut(listener.process, process)
        ):
            await asyncio.sleep(CONNECT_AGAIN_SECONDS)  # simulated time: polls until the link heals
            listener = self.listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"no server listens at {host}:{port} (simulated)")
        here = Stream(self, process, (process.host, self._free_port()), copy_context())
        there = Stream(self, listener.process, listener.address, listener.context)
        here.peer, there.peer = there, here
        here._extra["peername"], there._extra["peername"] = there.address, here.address  # type: ignore[attr-defined]
        accepted = listener.context.copy()
        there.protocol = accepted.run(listener.factory)
        self.loop.call_soon(there.protocol.connection_made, there, context=accepted)
        here.protocol = factory()
        here.protocol.connection_made(here)
        await asyncio.sleep(self.delay())  # simulated latency: no real-time poll
        return here, here.protocol
