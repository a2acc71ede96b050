"""A real Celery worker, its solo pool in a thread, against a broker."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import celery
import pytest
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Reject
from code_blocks import blocks_of
from kombu import pools
from kombu.common import Broadcast

from saturnmq import sync
from saturnmq.testing import SyncEmbeddedBroker

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")

WITHIN_S = 30.0


class Calls:
    """What tasks ran, with the time. Threads wait for it with a deadline."""

    def __init__(self) -> None:
        self.times: list[tuple[Any, float]] = []
        self._changed = threading.Condition()

    def add(self, call: Any) -> None:
        with self._changed:
            self.times.append((call, time.time()))
            self._changed.notify_all()

    def wait(self, count: int, within_s: float = WITHIN_S) -> list[Any]:
        """The calls, as soon as there are so many. Raises AssertionError."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.times) >= count, within_s), self.times[-5:]
            return [call for call, _ in self.times]


def make_app(server: SyncEmbeddedBroker, queue: str, **options: Any) -> celery.Celery:
    app = celery.Celery(queue, broker=f"rocketmq://{server.name_servers}/", backend="rpc://", set_as_current=False)
    app.conf.update(
        broker_transport="saturnmq.kombu:Transport",
        broker_transport_options={"queues": 1, "requeue_delay": 0.01, **options},
        task_default_queue=queue,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
    )
    return app


def close(app: celery.Celery) -> None:
    """Close the application and what outlives it: connections of senders and of results, each with its thread."""
    results = app.backend.result_consumer
    if results._connection is not None:
        results.stop()
    app.close()
    pools.reset()


@contextmanager
def working(app: celery.Celery) -> Iterator[None]:
    """A running worker. Its level of the root logger, which it sets for the whole process, ends with it."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        with start_worker(app, perform_ping_check=False, pool="solo", loglevel="ERROR", shutdown_timeout=30):
            yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


@pytest.fixture(scope="module")
def server() -> Iterator[SyncEmbeddedBroker]:
    with SyncEmbeddedBroker() as server:
        yield server


@pytest.fixture(scope="module")
def calls() -> Calls:
    return Calls()


@pytest.fixture(scope="module")
def app(server: SyncEmbeddedBroker, calls: Calls) -> Iterator[celery.Celery]:
    """An application with a running worker."""
    app = make_app(server, "shop.orders")

    @app.task(name="note", shared=False)
    def note(value: Any) -> Any:
        calls.add(value)
        return value

    @app.task(name="unlucky", shared=False, bind=True, acks_late=True)
    def unlucky(task: celery.Task, value: str, requeue: bool) -> None:
        redelivered = bool(task.request.delivery_info["redelivered"])
        calls.add((value, redelivered))
        if not redelivered:
            raise Reject(value, requeue=requeue)

    with working(app):
        calls.add("ready")
        yield app
    close(app)


@pytest.fixture
def fresh(calls: Calls) -> Calls:
    calls.times.clear()
    return calls


@pytest.mark.spec("INT-03", "INT-06")
@pytest.mark.realtime
def test_an_idle_worker_starts_a_task_within_a_tenth_of_a_second(app: celery.Celery, fresh: Calls) -> None:
    app.tasks["note"].delay("first")  # opens the connection of the sender
    fresh.wait(1)
    latencies = []
    for number in range(10):
        idle = threading.Event()
        idle.wait(0.05)  # the worker waits for the broker, not for its next look
        sent = time.time()
        app.tasks["note"].delay(number)
        fresh.wait(number + 2)
        latencies.append(fresh.times[-1][1] - sent)
    assert sorted(latencies)[2] < 0.1, latencies  # a look once a second is so quick once in ten times


def scheduled(app: celery.Celery) -> list[Any]:
    """The tasks that the worker holds until their time."""
    (tasks,) = app.control.inspect(limit=1).scheduled().values()
    return tasks


@pytest.mark.spec("INT-06")
def test_eta_is_a_delay_of_the_broker(server: SyncEmbeddedBroker, app: celery.Celery, fresh: Calls) -> None:
    with sync.Client.from_url(server.url) as client:
        puller = client.puller()

        def stored() -> int:
            return sum(puller.max_offset(queue) for queue in puller.queues("shop|2Eorders"))

        before = stored()
        eta = datetime.now(UTC) + timedelta(seconds=1)
        app.tasks["note"].apply_async(("later",), eta=eta)
        assert stored() == before or time.time() >= eta.timestamp(), "the broker has it, not the worker"
        assert scheduled(app) == []
        assert fresh.wait(1) == ["later"]
        assert stored() == before + 1
    assert fresh.times[0][1] >= eta.timestamp()
    app.tasks["note"].apply_async(("in two months",), countdown=60 * 86_400)  # longer than the broker can
    app.tasks["note"].delay("now")
    assert fresh.wait(2) == ["later", "now"]
    assert [task["request"]["args"] for task in scheduled(app)] == [["in two months"]]


def test_a_late_acknowledged_task_is_rejected_or_requeued(
    server: SyncEmbeddedBroker, app: celery.Celery, fresh: Calls
) -> None:
    app.tasks["unlucky"].delay("again", requeue=True)
    assert fresh.wait(2) == [("again", False), ("again", True)]
    app.tasks["unlucky"].delay("never", requeue=False)
    assert fresh.wait(3)[2] == ("never", False)
    with sync.Client.from_url(server.url) as client, client.consumer("dead", start="first") as inbox:
        inbox.subscribe("%DLQ%shop|2Eorders")
        message = inbox.recv(timeout=10)
        assert message.properties["DEAD_LETTER_REASON"] == "rejected"
        message.ack()


def test_results_come_back_by_the_rpc_backend(app: celery.Celery, fresh: Calls) -> None:
    results = [app.tasks["note"].delay(number) for number in range(5)]
    assert [result.get(timeout=10) for result in results] == [0, 1, 2, 3, 4]


@pytest.mark.spec("INT-05")
def test_inspect_and_control_work_and_leave_no_topics(server: SyncEmbeddedBroker, app: celery.Celery) -> None:
    def topics() -> set[str]:
        return {name for name in server.inner.broker.topics.names() if not name.startswith("%")}

    (ping,) = app.control.inspect(timeout=1, limit=1).ping().values()
    assert ping == {"ok": "pong"}
    before = topics()
    for _ in range(10):
        assert len(app.control.inspect(limit=1).stats()) == 1
    app.control.broadcast("rate_limit", arguments={"task_name": "note", "rate_limit": "1000/s"}, reply=True, limit=1)
    (queues,) = app.control.inspect(limit=1).active_queues().values()
    assert [queue["name"] for queue in queues] == ["shop.orders"]
    assert topics() == before
    assert {name for name in before if name.startswith("exchange")} <= {
        "exchange||", "exchange||celery|2Epidbox", "exchange||reply|2Ecelery|2Epidbox", "exchange||celeryev"
    }  # fmt: skip


def test_events_reach_a_monitor_in_another_connection(app: celery.Celery) -> None:
    events: list[Any] = []
    with app.connection_for_read() as reading, app.connection_for_write() as writing:
        receiver = app.events.Receiver(reading, handlers={"*": events.append}, routing_key="task.#")

        def send(*args: Any, **kwargs: Any) -> None:
            with app.events.Dispatcher(writing, hostname="worker-7") as dispatcher:
                dispatcher.send("worker-online")
                dispatcher.send("task-started", uuid="3f2c")

        receiver.on_consume_ready = send
        receiver.capture(limit=1, timeout=10, wakeup=False)
    assert [(event["type"], event["hostname"]) for event in events] == [("task-started", "worker-7")]


def test_a_broadcast_task_runs_in_every_worker(server: SyncEmbeddedBroker) -> None:
    calls = Calls()

    def worker(number: int) -> celery.Celery:
        app = make_app(server, f"unused-{number}")
        app.conf.task_queues = (Broadcast("everywhere"),)
        app.conf.task_routes = {"everywhere": {"queue": "everywhere", "exchange": "everywhere"}}

        @app.task(name="everywhere", shared=False)
        def everywhere() -> None:
            calls.add(threading.get_ident())  # Celery runs the tasks of one application in all workers of a process

        return app

    apps = [worker(1), worker(2)]
    with working(apps[0]), working(apps[1]):
        apps[0].send_task("everywhere")
        assert len(set(calls.wait(2))) == 2
    for app in apps:
        close(app)


def test_the_first_example_of_the_documentation_runs(server: SyncEmbeddedBroker) -> None:
    names: dict[str, Any] = {"__name__": "tasks"}
    first = blocks_of("docs/celery.md")[0]
    exec(first.file(server.name_servers), names)
    with working(names["app"]):
        assert names["add"].delay(2, 2).get(timeout=10) == 4
    close(names["app"])


def test_a_worker_that_stops_leaves_unfinished_tasks_to_the_next(server: SyncEmbeddedBroker) -> None:
    calls, app = Calls(), make_app(server, "unfinished")
    app.conf.update(worker_prefetch_multiplier=10)

    @app.task(name="first", shared=False, acks_late=True)
    def first(number: int) -> None:
        calls.add(number)
        if number == 0 and len(calls.times) == 1:
            raise SystemExit(0)  # the worker's process is asked to end while the task runs

    for number in range(3):
        first.delay(number)
    with working(app):
        calls.wait(1)
    with working(app):
        ran = calls.wait(4)
    close(app)
    assert sorted(ran) == [0, 0, 1, 2]


@pytest.mark.spec("INT-07")
@pytest.mark.realtime
@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(300)])])
def test_a_killed_broker_loses_no_task_and_repeats_none(count: int) -> None:
    with SyncEmbeddedBroker() as server:
        check_count_through_a_kill(server, count)


def check_count_through_a_kill(server: SyncEmbeddedBroker, count: int) -> None:
    calls, half, killed = Calls(), threading.Event(), threading.Event()
    app = make_app(server, "counted")

    @app.task(name="count", shared=False)
    def count_task(number: int) -> None:
        calls.add(number)
        if number == count // 2:
            half.set()
            killed.wait(WITHIN_S)

    with working(app):
        for number in range(count):
            count_task.delay(number)
        assert half.wait(120)
        server.thread.call(server.inner.kill_broker())
        killed.set()
        server.thread.call(server.inner.start_broker())
        started = time.time()
        for number in range(count, count + 20):
            count_task.delay(number)
        ran = Counter(calls.wait(count + 20, within_s=120))
    close(app)
    assert ran == Counter(range(count + 20))
    fetched_after = min(count // 2 + 1000, count)  # what the worker did not hold when the broker was killed
    assert min(when for call, when in calls.times if call >= fetched_after) - started < 10
