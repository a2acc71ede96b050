"""Puts that are given together, and entries of others that are dispatched together: both as one by one."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from test_broker_dledger import Alone, bodies_of, message, one_settings, put, run

from saturnmq.broker import dledger_dispatch, dledger_store
from saturnmq.broker.dledger_store import LedgerStore
from saturnmq.net import NetSettings
from saturnmq.protocol.codes import SCHEDULE_TOPIC, SysFlag
from saturnmq.protocol.message import Host, Message, encode_properties
from saturnmq.store import PutStatus

Told = list[tuple[bytes, PutStatus, str]]


async def given(store: LedgerStore, *messages: Message) -> Told:
    """What was told of messages that were put in one turn, in the order of the words."""
    told: Told = []

    def tell(one: Message) -> Any:
        return lambda status, reason: told.append((bytes(one.body), status, reason))

    for one in messages:
        store.put_soon(one, tell(one))
    assert told == [], "nothing is told before the caller went on"
    await put(store, b"last")  # what comes another way follows
    return told


@pytest.mark.spec("DL-A03", "DL-B05", "DL-B07")
def test_what_is_given_in_one_turn_is_appended_in_its_order(tmp_path: Path) -> None:
    async def work() -> None:
        async with Alone(tmp_path) as store:
            sent = [message(b"%d" % number, "TU"[number % 2]) for number in range(7)]
            told = await given(store, *sent)
            assert told == [(b"%d" % number, PutStatus.PUT_OK, "") for number in range(7)]
            assert [one.queue_offset for one in sent] == [0, 0, 1, 1, 2, 2, 3]
            offsets = [one.physical_offset for one in sent]
            assert offsets == sorted(offsets) and offsets[0] == 48
            assert bodies_of(store, "T") == [b"0", b"2", b"4", b"6", b"last"]
            assert bodies_of(store, "U") == [b"1", b"3", b"5"]

    run(work)


@pytest.mark.spec("DL-A06", "DL-B06", "ST-03")
def test_a_message_that_cannot_be_taken_harms_none_of_the_others(tmp_path: Path) -> None:
    """One is illegal, one has room in no entry; queue offsets have no hole."""

    async def work() -> None:
        async with Alone(tmp_path, message_bytes_max=4_194_304) as store:
            long = message(bytes(FILE_MAX))
            told = await given(store, message(b"a"), message(b"illegal", "t" * 200), long, message(b"b"))
            by_body = {body[:7]: (status, reason) for body, status, reason in told}
            assert by_body[b"a"] == by_body[b"b"] == (PutStatus.PUT_OK, "")
            assert by_body[b"illegal"] == (PutStatus.MESSAGE_ILLEGAL, "topic of 200 characters, at most 127")
            assert by_body[bytes(7)] == (
                PutStatus.UNKNOWN_ERROR, "the message is longer than an entry of the ledger may be"
            )  # fmt: skip
            assert bodies_of(store) == [b"a", b"b", b"last"]

    run(work)


@pytest.mark.spec("DL-B06", "DL-C03")
def test_who_is_given_a_message_and_leads_no_more_refuses_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with Alone(tmp_path) as store:
            told: Told = []
            store.put_soon(message(b"x"), lambda status, reason: told.append((b"x", status, reason)))
            store.serving = False
            answer = store.put(message(b"y"))
            assert told == [(b"x", answer.status, answer.reason)]
            assert answer.status is PutStatus.SERVICE_NOT_AVAILABLE
            store.serving = True
            member = store.member
            assert member is not None and member.node is not None
            member.node.state.disk_full = True
            told.clear()
            store.put_soon(message(b"z"), lambda status, reason: told.append((b"z", status, reason)))
            assert store.put(message(b"y")).reason == "the disk is full"
            assert told == [(b"z", PutStatus.OS_PAGE_CACHE_BUSY, "the disk is full")]
            member.node.state.disk_full = False
            await put(store, b"first")
            assert bodies_of(store) == [b"first"]

    run(work)


@pytest.mark.spec("DL-B06")
def test_an_error_on_the_way_is_told_to_everyone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with Alone(tmp_path) as store:
            calls = iter(["ok", "fails"])

            def encode(one: Message) -> bytes:
                if next(calls, "") == "fails":
                    raise RuntimeError("no such thing")
                return real(one)

            real = dledger_store.encode_record
            monkeypatch.setattr(dledger_store, "encode_record", encode)
            told = await given(store, message(b"a"), message(b"b"))
            assert told == [(body, PutStatus.UNKNOWN_ERROR, "no such thing") for body in (b"a", b"b")]
            assert bodies_of(store) == [b"last"]

    run(work)


# ---- dispatch

FILE_MAX = 262_144  # of the ledger's files in these tests


def any_message(rng: random.Random, number: int) -> Message:
    """Mostly plain ones, and one of each kind that is not."""
    properties = {"UNIQ_KEY": f"FD0000000000000000000000000000022DC05FFD2B27{number // 5:08X}{number:04X}"}
    if rng.random() < 0.5:
        properties["TAGS"] = rng.choice(["a", "b", "ü"])
    if rng.random() < 0.3:
        properties["KEYS"] = f"k{number % 7} order"
    topic, flag, host = rng.choice(["T", "U", "Über"]), 0, Host("127.0.0.1", 1)
    odd = rng.random()
    if odd < 0.05:
        flag = rng.choice([SysFlag.PREPARED, SysFlag.ROLLBACK, SysFlag.COMMIT])
    elif odd < 0.1:
        topic, properties = SCHEDULE_TOPIC, properties | {"DELAY": "3"}
    elif odd < 0.15:
        host = Host("::1", 1)
    elif odd < 0.2:
        properties = {}
    raw = encode_properties(properties)
    body = rng.randbytes(rng.randrange(700))
    return message(body, topic, queue_id=number % 3, sys_flag=int(flag), born_host=host, properties_raw=raw)


def dispatched(folder: Path, step: int) -> tuple[dict[str, bytes], dict[str, bytes], list[Any], set[Any]]:
    """Files of queues and index, and who was called, when a ledger is dispatched anew, so many entries at once."""
    settings, raft = one_settings(folder)
    store = LedgerStore(settings, raft, NetSettings(), clock_ms=lambda: 1_700_000_000_000)
    store.open()
    appended: list[Any] = []
    foreign: set[Any] = set()
    store.on_append = lambda *call: appended.append(call)
    store.on_foreign = lambda *call: foreign.add(call)
    store.queues.clear()
    assert store.index is not None and store.member is not None
    store.index.clear()
    store.dispatched = store.member.files.begin_pos
    store.log.committed_pos = store.member.files.end_pos
    while store.dispatch_some(step):
        pass
    assert store.dispatched == store.member.files.end_pos
    assert store.index_queue is not None and store.index_queue.put_in()
    queues = {f"{topic} {queue_id}": bytes(queue._tail) for (topic, queue_id), queue in store.queues.by_key.items()}
    index = {str(number): path.read_bytes() for number, path in enumerate(store.index.paths)}
    store.close_files()
    return queues, index, appended, foreign


@pytest.mark.spec("DL-B12", "RP-01", "RP-02", "CQ-02", "IX-02")
@pytest.mark.parametrize("seed", range(3))
def test_many_entries_are_dispatched_as_single_ones(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)

    async def work() -> None:
        async with Alone(tmp_path / "made") as store:
            for number in range(900):
                store.put_soon(any_message(rng, number), lambda status, reason: None)
            await put(store, b"last")

    run(work)
    shutil.copytree(tmp_path / "made", tmp_path / "single")
    many = dispatched(tmp_path / "made", 200)
    calls: list[int] = []

    def plain(store: LedgerStore, count_max: int) -> int:
        calls.append(dledger_dispatch.dispatch_plain(store, count_max))
        return calls[-1]

    monkeypatch.setattr(dledger_store, "dispatch_plain", plain)
    shutil.copytree(tmp_path / "single", tmp_path / "counted")
    assert dispatched(tmp_path / "counted", 7) == many
    assert sum(calls) > 600 and max(calls) <= 7
    monkeypatch.setattr(dledger_store, "dispatch_plain", lambda store, count_max: 0)
    single = dispatched(tmp_path / "single", 200)
    assert single[0] == many[0] and len(many[0]) > 9
    assert single[1] == many[1] and many[1]
    assert single[2] == many[2] and single[3] == many[3]
