"""Queues and locks of a consumer step by step, on a consumer that only records what it is asked for."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from loglines import own_messages
from saturnmq import Ack, Client, ClientError, ConfigError, Consumer, ConsumerStopped
from saturnmq.client.consumer.assigned_queue import AssignedQueue, QueueGeneration
from saturnmq.client.consumer.inbox import Inbox
from saturnmq.client.consumer.ordered_queue import OrderedGeneration, OrderedQueue
from saturnmq.client.consumer.queue_locks import MemberLocks
from saturnmq.client.consumer.rebalance_strategies import consistent_hash
from saturnmq.client.puller.puller import PullResult, PullStatus
from saturnmq.protocol.bodies import LockBatchResponse, MessageQueue
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from waiting import until

QUEUE = MessageQueue("T", "b0", 0)


class Owner:
    """A consumer that records calls by name; `answers` has what they return, otherwise None."""

    group, hooks, commits = "g", (), True

    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        outages = SimpleNamespace(forget=lambda *kept: self.calls.append(("forget", *kept)))
        self.core = SimpleNamespace(settings=SimpleNamespace(namespace=""), spawn=self._spawn, outages=outages)
        self.answers = {"prefetch_of": 4, "prefetch_bytes_of": 100, "bytes_left": True, "sends_back": False} | answers
        self.offsets = SimpleNamespace(update=lambda queue, offset, **more: self.calls.append(("update", offset, more)))
        self.counters = SimpleNamespace(
            consumed=lambda *counted, **more: self.calls.append(("consumed", *counted[:1], more))
        )

    def __getattr__(self, name: str) -> Any:
        if name == "sends_back":
            return self.answers[name]
        return lambda *given: (
            self.calls.append((name, *given)) if name not in self.answers else None,
            self.answers.get(name),
        )[1]

    def _spawn(self, name: str, work: Any, **more: Any) -> Any:
        work.close()
        self.calls.append(("spawn", name, more))
        return SimpleNamespace(cancel=lambda: self.calls.append(("cancel",)), add_done_callback=lambda callback: None)

    def taken(self) -> list[tuple[Any, ...]]:
        calls, self.calls = self.calls, []
        return calls


def message(offset: int) -> Any:
    record = SimpleNamespace(queue_offset=offset, topic="T", reconsume_times=0)
    return SimpleNamespace(offset=offset, attempt=1, record=record, _record=record)


def ordered(owner: Owner) -> OrderedQueue:
    return OrderedQueue(cast(Any, owner), QUEUE, cast(Any, 0), None, 1.0, auto_commit=True)


@pytest.mark.parametrize(
    ("count", "size", "span", "full", "low"),
    [
        (0, 0, 0, False, True), (2, 50, 2, False, True), (3, 50, 3, False, False), (2, 51, 2, False, False),
        (3, 99, 2000, False, False), (4, 4, 4, True, False), (1, 100, 1, True, False), (2, 2, 2000, False, True),
        (2, 2, 2001, True, False),
    ],
)  # fmt: skip
def test_pulling_stops_at_a_limit_and_goes_on_at_half(count: int, size: int, span: int, full: bool, low: bool) -> None:
    """Of 4 messages or 100 bytes; the distance of 2000 has no half."""
    queue = AssignedQueue(cast(Any, Owner()), QUEUE, cast(Any, 0))
    offsets = [0, *range(span - count + 2, span + 1)][:count]
    queue.generation.process_queue.put((cast(Any, offset), size - count + 1 if not offset else 1) for offset in offsets)
    queue.check_capacity()
    assert (queue._full, queue._capacity.is_set()) == (full, low)


@pytest.mark.spec("PL-02")
def test_flow_control_line_has_first_and_last_offset_and_span(caplog: pytest.LogCaptureFixture) -> None:
    queue = AssignedQueue(cast(Any, Owner()), QUEUE, cast(Any, 0))
    queue.generation.process_queue.put([(cast(Any, 10), 5), (cast(Any, 14), 7)])
    with caplog.at_level(logging.INFO):
        queue._log_wait()
    (line,) = caplog.messages
    assert line.endswith(" first=10 last=14 messages=2 bytes=12 span=4 times=1")


def test_queue_is_full_while_it_is_paused_or_the_consumer_has_no_bytes_left() -> None:
    queue = AssignedQueue(cast(Any, Owner()), QUEUE, cast(Any, 0))
    queue.pause()
    assert queue._full and not queue.may_hand_out
    queue.resume()
    assert not queue._full and queue._capacity.is_set()
    assert AssignedQueue(cast(Any, Owner(bytes_left=False)), QUEUE, cast(Any, 0))._full


def test_queue_that_restarts_forgets_messages_and_wakes_its_loop() -> None:
    owner = Owner()
    queue = AssignedQueue(cast(Any, owner), QUEUE, cast(Any, 5))
    before, queue.unverified = queue.generation, True
    before.process_queue.put([(cast(Any, 5), 1)])
    queue.restart_at(cast(Any, 3))
    assert before.process_queue.dropped and queue.generation is not before and not queue.unverified
    assert (queue.next_offset, queue.position, queue._capacity.is_set()) == (3, 3, True)
    assert owner.taken() == [("update", 3, {"increase_only": False}), ("room_made",)]
    queue.drop()
    assert owner.taken() == [("forget", "pull", ("g", QUEUE))], "no loop was started"
    queue.start()
    assert owner.taken() == [("spawn", "pull T 0", {"vital": False})]
    queue.reset(cast(Any, 2))
    assert owner.taken() == [
        ("update", 2, {"increase_only": False}), ("room_made",), ("cancel",), ("spawn", "pull T 0", {"vital": False}),
    ]  # fmt: skip


def test_parked_pull_of_a_suspected_queue_is_made_again_once() -> None:
    owner = Owner()
    owner.offsets.forget = lambda queue: owner.calls.append(("offset forgotten", queue))
    queue = AssignedQueue(cast(Any, owner), QUEUE, cast(Any, 5))
    queue.start()
    owner.taken()
    queue.suspect_parked()
    pulled_again = [("cancel",), ("spawn", "pull T 0", {"vital": False})]
    assert queue.unverified and owner.taken() == [("offset forgotten", QUEUE), *pulled_again]
    queue.suspect_parked()
    assert not owner.taken(), "it is not verified yet"


async def test_hooks_see_the_dead_letter_that_could_not_be_sent() -> None:
    failures: list[tuple[Any, ...]] = []

    def settle_failed(context: Any, error: BaseException) -> None:
        failures.append((context.verdict, context.reason, str(error)))

    async def refused(message: Any, reason: str) -> None:
        raise SaturnError(f"not sent: {reason}")

    owner = Owner(sends_back=True)
    owner.hooks = (SimpleNamespace(settle_failed=settle_failed),)  # type: ignore[assignment]
    owner.send_back = SimpleNamespace(max_times=3, dead_letter=refused)
    generation = ordered(owner).generation
    context = generation.contexts[0] = cast(Any, SimpleNamespace())
    with pytest.raises(SaturnError):
        await generation._dead_letter(message(0), Ack.REJECT, "bad")
    assert failures == [(Ack.REJECT, "bad", "not sent: bad")] and (context.verdict, context.reason) == (None, "")


@pytest.mark.parametrize(("start", "is_current", "begins"), [(3, True, [3]), (3, False, []), (None, True, [])])
async def test_recreated_queue_begins_again_unless_another_offset_was_chosen(
    start: int | None, is_current: bool, begins: list[int]
) -> None:
    queue: Any = AssignedQueue(cast(Any, Owner()), QUEUE, cast(Any, 5))
    started: list[int] = []

    async def new_start(mark: Any) -> int | None:
        return start

    async def start_over(offset: int) -> None:
        started.append(offset)

    queue._identity, queue._start_over = SimpleNamespace(new_start=new_start), start_over
    await queue._check_wait(queue.generation if is_current else QueueGeneration(queue, cast(Any, 5)), None)
    assert started == begins


@pytest.mark.parametrize("has_pulled", [False, True])
def test_smaller_queue_is_suspected_unless_its_position_was_just_verified(has_pulled: bool) -> None:
    """A pull that found the position makes the verification one of the past."""
    owner = Owner()
    owner.offsets.forget = lambda queue: owner.calls.append(("offset forgotten", queue))
    queue = AssignedQueue(cast(Any, owner), QUEUE, cast(Any, 5))
    queue._verified = True

    def answer(status: PullStatus, next_offset: int) -> None:
        assert not queue._take(queue.generation, PullResult(status, cast(Any, next_offset), cast(Any, 0), cast(Any, 9)))

    if has_pulled:
        answer(PullStatus.NO_NEW_MESSAGE, 5)
    answer(PullStatus.OFFSET_ILLEGAL, 3)
    assert (queue.unverified, queue.next_offset) == ((True, 5) if has_pulled else (False, 3))
    assert (("offset forgotten", QUEUE) in owner.taken()) is has_pulled


async def test_queue_that_is_dropped_ends_its_loop_and_hands_out_nothing() -> None:
    queue = AssignedQueue(cast(Any, Owner()), QUEUE, cast(Any, 0))
    generation = queue.generation
    await queue.join()
    queue.pause()
    assert not generation.hand_out(message(0), 1.0) and [each.offset for each in generation.parked] == [0]
    queue.resume()
    generation.verdicts[1] = Ack.SUCCESS
    assert not generation.hand_out(message(1), 1.0) and generation.hand_out(message(2), 1.0)
    loop = queue._task = asyncio.ensure_future(asyncio.Event().wait())
    queue.drop()
    assert not generation.hand_out(message(3), 1.0) and list(generation.delivered) == [2]
    await queue.join()
    assert loop.cancelled()


@pytest.mark.parametrize(("stored", "is_reset"), [(None, False), (4, False), (5, False), (6, True)])
async def test_regained_lock_continues_where_another_member_was(stored: int | None, is_reset: bool) -> None:
    async def read(queue: MessageQueue) -> int | None:
        return stored

    owner = Owner()
    owner.offsets.read, owner.offsets.forget = read, lambda queue: owner.calls.append(("forget offset",))
    queue = OrderedQueue(cast(Any, owner), QUEUE, cast(Any, 5), None, 1.0, auto_commit=True)
    before = queue.generation
    await queue.lock_answered(granted=True, was_valid=True)
    assert owner.taken() == [] and not queue.unverified, "never lost"
    await queue.lock_answered(granted=False, was_valid=True)
    assert not queue._trusted
    await queue.lock_answered(granted=True, was_valid=True)
    assert queue._trusted and queue.unverified and (queue.generation is not before) is is_reset
    assert queue.next_offset == (6 if is_reset else 5) and ("forget offset",) in owner.calls


async def test_message_not_settled_in_time_is_handed_out_again_where_it_cannot_be_sent_back() -> None:
    owner = Owner()
    generation = QueueGeneration(AssignedQueue(cast(Any, owner), QUEUE, cast(Any, 0)), cast(Any, 0))
    late = message(0)
    generation.process_queue.put([(cast(Any, 0), 1)])
    assert generation.hand_out(late, 1.0) and generation.delivered == {0: (1.0, late)}
    await generation.expire(late)
    assert generation.delivered == generation.verdicts == {} and len(generation.process_queue) == 1
    assert owner.taken() == [("consumed", "T", {"failed": True}), ("deliver", [late])]
    assert generation.hand_out(late, 2.0) and generation.delivered == {0: (2.0, late)}
    await generation.settle(late, Ack.SUCCESS)
    assert generation.delivered == {} and generation.verdicts == {0: Ack.SUCCESS}


def test_message_of_before_a_seek_is_given_back_once_its_time_is_over() -> None:
    queue = ordered(Owner())
    old, new = message(0), message(1)
    for head, before, is_held in ((old, 2.0, True), (new, 0.9, True), (new, 1.0, False)):
        queue.head, queue.handed, queue.handed_at = head, old, 1.0
        assert queue.expired(before) == [] and (queue.handed is old) is is_held
    queue.head = queue.handed = None
    assert queue.expired(9.0) == []


def test_queue_that_stays_goes_on_with_parked_and_waiting_messages() -> None:
    owner = Owner()
    queue = ordered(owner)
    parked, waiting = message(0), message(1)
    queue.generation.parked = [parked]
    queue._now.waiting.append(waiting)
    queue.stay()
    assert owner.taken() == [], "it did not leave"
    queue.leaving = True
    assert queue._full
    queue.stay()
    assert not queue.leaving and queue._capacity.is_set() and queue.generation.parked == [] and queue.head is waiting
    assert owner.taken() == [("deliver_first", [parked]), ("deliver", [waiting])]
    queue.handed, queue.leaving = parked, True
    queue.give_back(waiting)
    assert owner.taken() == [] and queue.handed is parked
    queue.give_back(parked)
    assert owner.taken() == [("wake_rebalance",)] and queue.handed is None


async def test_attempts_of_an_ordered_queue_are_forgotten_once_they_are_many() -> None:
    queue = ordered(Owner())
    generation = cast(OrderedGeneration, queue.generation)
    generation.settled_attempts = {(number, 1): (message(number), Ack.SUCCESS) for number in range(4096)}
    last = queue.head = message(4090)
    last.attempt = 2
    generation.process_queue.put((cast(Any, number), 1) for number in range(4091))
    generation.hand_out(last, 1.0)
    await generation.settle(last, Ack.SUCCESS)
    assert list(generation.settled_attempts) == [(number, 1) for number in range(4090, 4096)] + [(4090, 2)]


@pytest.mark.parametrize(("size", "starved"), [(51, True), (50, False)])
def test_pulling_goes_on_once_half_of_the_bytes_are_settled(size: int, starved: bool) -> None:
    queue = AssignedQueue(cast(Any, Owner()), QUEUE, cast(Any, 0))
    queue.generation.process_queue.put([(cast(Any, 0), size)])
    member: Any = SimpleNamespace(_assigned={QUEUE: queue}, _starved=True, settings=SimpleNamespace(prefetch_bytes=100))
    Consumer.room_made(member)
    assert (member._starved, queue._capacity.is_set()) == (starved, not starved and size <= 50)


async def test_each_item_wakes_one_reader() -> None:
    inbox: Inbox[int] = Inbox(lambda item: item > 0)
    readers = [asyncio.ensure_future(inbox.receive()) for _ in range(4)]
    await asyncio.sleep(0)
    inbox.put([1])
    assert len(inbox._readers) == 3
    inbox.prepend([2, 3])
    assert len(inbox._readers) == 1 and len(inbox) == 3
    assert [await reader for reader in readers[:3]] == [2, 3, 1]
    inbox.close(lambda: SaturnError("closed"))
    with pytest.raises(SaturnError, match="closed"):
        await readers[3]


async def test_locks_are_held_as_brokers_answer(caplog: pytest.LogCaptureFixture) -> None:
    """Granted and denied ones of one answer; none after an error, a denial or a release, though a broker may still hold one."""
    queues = [MessageQueue("T", "b0", number) for number in range(3)]
    now, asked, answers = 100.0, list[tuple[str, int, int]](), list[Command]()

    async def call(address: str, command: Command, timeout_ms: int) -> Command:
        asked.append((address, command.code, timeout_ms))
        return answers.pop(0)

    async def master_address(topic: str, broker: str) -> str:
        return f"{broker}:1"

    failures: list[str] = []
    outages = SimpleNamespace(
        failed=lambda kind, key, where, error: failures.append(f"{kind} {key} {where} {error}"),
        succeeded=lambda *given: None,
    )
    core: Any = SimpleNamespace(
        client_id="c", master_address=master_address, remote=SimpleNamespace(call=call), outages=outages,
        answer_error=lambda answer, where, **more: SaturnError(f"{where} {answer.code}"),
    )  # fmt: skip
    locks = MemberLocks(core, "g", clock=lambda: now)

    def granted(*held: MessageQueue) -> Command:
        return Command(41).reply(body=LockBatchResponse(list(held)).encode())

    answers += [granted(*queues[:2]), Command(41).reply(1, "no"), granted(queues[0]), Command(42).reply(1, "no")]
    assert await locks.lock(queues) == {queues[0]: True, queues[1]: True, queues[2]: False}
    assert [locks.valid(queue) for queue in queues] == [True, True, False] and locks.possibly_locked() == set(
        queues[:2]
    )
    assert await locks.lock(queues[2:]) == {} and locks.possibly_locked() == set(queues)
    now = 129.9
    assert await locks.lock(queues[:2]) == {queues[0]: True, queues[1]: False}
    assert [locks.valid(queue) for queue in queues] == [True, False, False]
    now = 159.9
    assert not locks.valid(queues[0]), "30 s from the request"
    now = 159.8
    await locks.unlock(queues[:1])
    assert not locks.valid(queues[0]) and locks.possibly_locked() == {queues[2]}
    assert failures == ["queue lock ('g', 'b0') broker=b0 b0@b0:1 1"]
    assert own_messages(caplog) == ["queues not unlocked group=g broker=b0 error=b0@b0:1 1"]
    assert asked == [("b0:1", 41, 1000)] * 3 + [("b0:1", 42, 1000)] and answers == []


@pytest.mark.parametrize(
    ("nodes", "valid"),
    [(0, False), (1, True), (10_000, True), (10_001, False), (True, False), (1.0, False), ("1", False)],
)
def test_member_has_one_to_ten_thousand_virtual_nodes(nodes: Any, valid: bool) -> None:
    make: Callable[[], Any] = lambda: consistent_hash(nodes)  # noqa: E731
    if valid:
        assert make()([QUEUE], ["m"], "m") == [QUEUE]
    else:
        with pytest.raises(ConfigError, match=r"must be 1\.\.10000"):
            make()


async def test_queues_that_are_assigned_replace_those_of_before() -> None:
    inbox = Client(name_servers="127.0.0.1:1").consumer("g")
    for topics in (("T", "RMQ_SYS_TRACE_TOPIC"), ("U",)):
        await inbox.assign([MessageQueue(topic, "b0", 0) for topic in topics], "a||b")
        assert [set(table) for table in (inbox._subscriptions, inbox._tags, inbox._since_ms)] == [set(topics)] * 3
        assert inbox._manual == {MessageQueue(topic, "b0", 0) for topic in topics}
        assert all(tags == {"a", "b"} for tags in inbox._tags.values())
    other = Client(name_servers="127.0.0.1:1").consumer("g")
    await other.subscribe("RMQ_SYS_TRACE_TOPIC")
    for wrong in ("", "a b", "x" * 128):
        with pytest.raises(SaturnError):
            await other.subscribe(wrong)
    assert set(other._subscriptions) == {"%RETRY%g", "RMQ_SYS_TRACE_TOPIC"}
    for call in (lambda: inbox.subscribe("T"), lambda: other.assign([])):
        with pytest.raises(ClientError, match="mutually exclusive"):
            await call()


def test_limits_of_a_topic_are_divided_by_the_queues_of_this_member() -> None:
    options: dict[str, Any] = {"prefetch_per_topic": 100, "prefetch_bytes_per_topic": 5}
    inbox = Client(name_servers="127.0.0.1:1").consumer("g", **options)
    queue: Any = SimpleNamespace(queue=QUEUE, checks=0)
    queue.check_capacity = lambda: vars(queue).update(checks=queue.checks + 1)
    inbox._assigned[QUEUE] = queue
    assert (inbox.prefetch_of("T"), inbox.prefetch_bytes_of("T")) == (100, 5)
    for share, prefetch, size, checks in ((3, 33, 1, 1), (3, 33, 1, 1), (200, 1, 1, 2), (0, 100, 5, 3), (1, 100, 5, 4)):
        inbox._divide_thresholds("T", share)
        assert (inbox.prefetch_of("T"), inbox.prefetch_bytes_of("T"), queue.checks) == (prefetch, size, checks)
    inbox._divide_thresholds("U", 2)
    assert queue.checks == 4
    inbox.resize(3, 7)
    assert (inbox.concurrency, inbox.prefetch, queue.checks) == (3, 7, 5)
    plain = Client(name_servers="127.0.0.1:1").consumer("g", prefetch=9)
    assert (plain.prefetch_of("T"), plain.prefetch_bytes_of("T")) == (9, None)


async def test_missing_topic_is_looked_for_less_and_less_often(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        inbox = client.consumer("g")
        times: list[float] = []

        async def rebalance() -> None:
            times.append(asyncio.get_running_loop().time())

        monkeypatch.setattr(inbox, "_rebalance", rebalance)
        await inbox.subscribe("absent")
        looking = asyncio.ensure_future(inbox._rebalance_loop())
        await until(lambda: len(times) == 7, 90)
        looking.cancel()
    pauses = [round(after - before, 1) for before, after in itertools.pairwise(times)]
    assert pauses == [2, 4, 8, 16, 20, 20], times


@pytest.mark.parametrize("loop", ["_ack_timeout_loop", "_rebalance_loop"])
async def test_task_that_dies_ends_its_consumer_and_no_other(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    begun = asyncio.Event()

    async def dies() -> None:
        await begun.wait()
        raise RuntimeError("a defect")

    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        inbox = client.consumer("g")
        monkeypatch.setattr(inbox, loop, dies)
        await inbox.subscribe("T")
        async with inbox, client.producer("p") as out:
            begun.set()
            with pytest.raises(ConsumerStopped, match="of consumer g died: RuntimeError: a defect"):
                await inbox.recv(30)
            await out.send("T", b"x")


async def test_statistics_have_the_time_that_pulls_take_and_a_lone_member_asks_little(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", c.route(read=1, write=1))
        async with client.consumer("g") as inbox:
            await inbox.subscribe("T")
            with pytest.raises(TimeoutError):
                await inbox.recv(2)
            c.broker.put("T", 0, b"x")
            await (await inbox.recv(30)).ack()
            status = inbox.counters.status("T")
            with pytest.raises(ClientError, match=r"queue b0/9 of T is not owned by this consumer"):
                inbox.position(MessageQueue("T", "b0", 9))
            with pytest.raises(TimeoutError):
                await inbox.recv(60)
        counted = Counter(command.code for command in c.broker.requests)
    assert (round(status.pull_rt / 100), status.consume_failed_msgs) == (20, 0)
    assert counted[203] == 0, "there is no other member to compare subscriptions with"
