"""Filters by expression over the wire: results and errors of pulls, and the filter data kept of groups."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire import Wire, run, wire

from recorded import VECTORS
from saturnmq.broker import BrokerSettings
from saturnmq.broker.state.filters import SAVE_SECONDS, Filters
from saturnmq.filter import SqlMatcher, compile_sql, tag_filter
from saturnmq.filter import sql as filter_sql
from saturnmq.protocol.bodies import CheckClientRequest, ConsumerData, HeartbeatData, SubscriptionData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import CorruptRecord, ResponseError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import Message, decode_properties, decode_records, encode_properties, java_hash
from saturnmq.protocol.offsets import QueueOffset
from saturnmq.store import StateFile, StoreProfile, StoreSettings
from saturnmq.store.queue.consume_queue import UNIT
from saturnmq.store.reading import StoreReader
from saturnmq.testing import EmbeddedBroker

SQL = {"expressionType": "SQL92"}


def bodies(answer: Command) -> list[bytes]:
    return [message.body for message in decode_records(answer.body or b"")]


async def subscribe(
    w: Wire, text: str, version: int = 1, *, topic: str = "T", group: str = "G", kind: str = "SQL92", **more: Any
) -> Command:
    subscriptions = [SubscriptionData(topic, text, sub_version=version, expression_type=kind, **more)]
    data = HeartbeatData("c1", [], [ConsumerData(group, subscription_data_set=subscriptions)])
    return await w.call(RequestCode.HEART_BEAT, data.encode())


async def numbered(w: Wire, count: int, **more: Any) -> None:
    for n in range(count):
        await w.send(body=b"%d" % n, properties={"a": str(n), "TAGS": "even" if n % 2 == 0 else "odd"}, **more)


@pytest.mark.spec("BP-01", "BP-03", "FIL-03", "FIL-09")
async def test_sql_pull_selects_by_properties_and_advances() -> None:
    async with wire(property_filter_enable=True) as w:
        await numbered(w, 10)
        answer = await w.pull(subscription="a BETWEEN 3 AND 5 OR TAGS = 'even' AND a > 7", **SQL)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "10")
        assert bodies(answer) == [b"3", b"4", b"5", b"8"]
        none = await w.pull(subscription="b IS NOT NULL", **SQL)
        assert (none.code, none.remark, none.ext["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "10")
        few = await w.pull(subscription="a > 2", maxMsgNums=2, **SQL)
        assert (bodies(few), few.ext["nextBeginOffset"]) == ([b"3", b"4"], "5")


@pytest.mark.spec("BP-03", "FIL-09")
async def test_long_run_of_unmatched_messages_is_scanned_in_steps() -> None:
    async with wire(property_filter_enable=True) as w:
        await w.send()
        for n in range(1800):
            w.broker.store.put(Message("T", b"", encode_properties({"a": str(n)}), 0))
        offset, steps = 0, []
        while True:
            answer = await w.pull(offset=offset, subscription="a = 1750", **SQL)
            before, offset = offset, int(answer.ext["nextBeginOffset"])
            assert offset > before or answer.code == 19
            if answer.code == 19:
                break
            steps.append((answer.code, offset - before))
        assert steps == [(20, 800), (20, 800), (0, 201)]


@pytest.mark.spec("BP-01", "FIL-03")
async def test_expression_checks_follow_apache_order() -> None:
    async with wire() as w:
        await w.send()
        broken = await w.pull(subscription="a >", **SQL)
        assert broken.code == 23 and "line 1, column 4" in (broken.remark or "")
        off = await w.pull(subscription="a > 1", **SQL)
        assert (off.code, off.remark) == (1, "The broker does not support consumer to filter message by SQL92")
        await subscribe(w, "a > 1")
        assert (await w.pull(sysFlag=0, subVersion=2)).code == 25
        assert (await w.pull(sysFlag=0, subVersion=1)).code == 1  # subscribed, but SQL92 is disabled
        assert len(w.broker.filters.groups) == 0
    async with wire(property_filter_enable=True) as w:
        await w.send()
        assert (await w.pull(sysFlag=0)).code == 24
        await subscribe(w, "a >")
        assert (await w.pull(sysFlag=0, subVersion=2)).code == 25
        gone = await w.pull(sysFlag=0, subVersion=1)
        text = "The broker's consumer filter data is not exist!Your expression may be wrong!"
        assert (gone.code, gone.remark) == (27, text)
        await subscribe(w, "a > 1", 2)
        w.broker.clients.consumers["G"].subscriptions["T"].sub_version = 3
        late = await w.pull(sysFlag=0, subVersion=3)
        assert (late.code, late.remark) == (28, "the consumer's consumer filter data not latest")


@pytest.mark.spec("BP-01", "FIL-04")
async def test_online_group_uses_its_latest_expression() -> None:
    async with wire(property_filter_enable=True) as w:
        await numbered(w, 6)
        await subscribe(w, "a < 2", 1)
        assert bodies(await w.pull(sysFlag=0, subVersion=1)) == [b"0", b"1"]
        await subscribe(w, "a > 3", 2)
        assert bodies(await w.pull(sysFlag=0, subVersion=2)) == [b"4", b"5"]
        await subscribe(w, "a = 0", 1)  # an old heartbeat changes nothing
        assert bodies(await w.pull(sysFlag=0, subVersion=2)) == [b"4", b"5"]
        await subscribe(w, "a >> 0", 3)
        assert (await w.pull(sysFlag=0, subVersion=3)).code == 27


@pytest.mark.spec("FIL-01", "FIL-02", "BP-01")
async def test_tag_expressions_are_parsed_like_apache() -> None:
    async with wire(property_filter_enable=True) as w:
        await w.send(body=b"null", properties={"TAGS": "null"})
        await w.send(body=b"other", properties={"TAGS": "other"})
        assert bodies(await w.pull(subscription="null")) == [b"null"]
        assert bodies(await w.pull(subscription="", expressionType="")) == [b"null", b"other"]
        assert (await w.pull(subscription=" || ")).code == 20  # no tag: matches nothing
        assert (await w.pull(subscription="||")).code == 23
        assert (await w.pull(subscription="other", expressionType="tag")).code == 23  # no such type
        long = " || ".join(f"t{n}" for n in range(200)) + " ||other"
        assert bodies(await w.pull(subscription=long)) == [b"other"]
        await subscribe(w, "other", kind="TAG")  # a heartbeat carries the tag codes, here none
        assert (await w.pull(sysFlag=0)).code == 20
        await subscribe(w, "other", 2, kind="TAG", code_set=[java_hash("other")])
        assert bodies(await w.pull(sysFlag=0)) == [b"other"]
        await subscribe(w, "some.Class", 3, kind="TAG", class_filter_mode=True)
        assert bodies(await w.pull(sysFlag=0)) == [b"null", b"other"]


@pytest.mark.spec("FIL-02")
def test_match_all_needs_no_predicate_and_tags_one_set_lookup() -> None:
    assert tag_filter("*") is tag_filter(None) is tag_filter("")
    assert tag_filter("*") == (None, None, None)
    codes, by_extension, by_record = tag_filter("a || b")
    assert codes == {java_hash("a"), java_hash("b")} and by_extension is by_record is None
    assert tag_filter("a || b").codes is codes


def counted(text: str, names: tuple[str, ...], evaluated: list[dict[str, str | None]]) -> Callable[[bytes], bool]:
    """Predicate of a filter that accepts a=1, and notes the properties that it is evaluated with."""

    def condition(get: Callable[[str], str | None]) -> bool:
        evaluated.append({name: get(name) for name in names})
        return get("a") == "1"

    return SqlMatcher(text, condition, frozenset(names), "").by_record


@pytest.mark.spec("FIL-09")
def test_result_of_a_filter_is_remembered_by_the_properties_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_sql, "_REMEMBERED_MAX", 3)
    evaluated: list[dict[str, str | None]] = []
    ask = counted("remembered", ("a", "b"), evaluated)
    for other in (b"x\x011\x02", b"x\x012\x02", b"MYa\x011\x02", b"y\x01a\x02"):
        assert ask(other + b"a\x011\x02b\x012") and ask(other + b"a\x011\x02b\x012\x02")
    assert evaluated == [{"a": "1", "b": "2"}], "properties that it does not read make no difference"
    assert not ask(b"x\x01a\x02") and not ask(b"b\x012\x02") and not ask(b"aa\x011\x02") and len(evaluated) == 3
    assert ask(b"b\x012\x02a\x011") and len(evaluated) == 3
    assert ask(b"a\x011\x02b\x013") and len(evaluated) == 4, "the fourth one: all are forgotten before"
    assert ask(b"a\x011\x02b\x013") and len(evaluated) == 4
    assert ask(b"a\x011\x02b\x012") and len(evaluated) == 5


@pytest.mark.spec("FIL-09")
def test_long_empty_or_many_properties_are_evaluated_each_time() -> None:
    evaluated: list[dict[str, str | None]] = []
    ask = counted("long", ("a", "b"), evaluated)
    for value, times in ((b"x" * 253, 1), (b"x" * 254, 2)):  # with b, its separator and its end 256 bytes, and 257
        evaluated.clear()
        assert not ask(b"b\x01" + value) and not ask(b"b\x01" + value) and len(evaluated) == times
    evaluated.clear()
    assert not ask(b"b\x01\x02a\x012") and not ask(b"b\x01\x02a\x012") and len(evaluated) == 2, (
        "of two, the last may be empty"
    )
    for count, times in ((8, 1), (9, 2)):
        evaluated.clear()
        ask = counted("many", tuple("abcdefghi"[:count]), evaluated)
        assert ask(b"a\x011") and ask(b"a\x011") and len(evaluated) == times


@pytest.mark.spec("FIL-03", "HB-08")
async def test_check_client_config_validates_expression() -> None:
    async def check(w: Wire, text: str, kind: str) -> tuple[int, str | None]:
        data = SubscriptionData("T", text, expression_type=kind)
        answer = await w.call(RequestCode.CHECK_CLIENT_CONFIG, CheckClientRequest("c1", "G", data).encode())
        return answer.code, answer.remark

    async with wire() as w:
        assert await check(w, "a > 1", "SQL92") == (
            1,
            "The broker does not support consumer to filter message by SQL92",
        )
        assert (await check(w, "||", "TAG"))[0] == 0  # tags are checked by the pull
    async with wire(property_filter_enable=True) as w:
        assert (await check(w, "a > 1", "SQL92"))[0] == 0
        code, remark = await check(w, "a > ", "SQL92")
        assert code == 23 and "expected" in (remark or "")
        assert (await check(w, "a > 1", "SQL99"))[0] == 23


async def held_pull(w: Wire, **more: Any) -> asyncio.Task[Command]:
    count = w.broker.long_polling.count
    held = asyncio.create_task(w.pull(suspend_ms=20_000, **more))
    while w.broker.long_polling.count == count:
        await asyncio.sleep(0)
    return held


@pytest.mark.spec("LP-03", "LP-04", "FIL-09")
async def test_parked_pull_is_woken_by_matching_properties() -> None:
    async with wire(property_filter_enable=True) as w:
        await w.send(queue=1)
        large = await held_pull(w, subscription="a > 5", **SQL)
        small = await held_pull(w, subscription="a < 5", **SQL)
        tagged = await held_pull(w, subscription="t")
        await w.send(body=b"none", properties={"a": "5", "TAGS": "u"})
        assert w.broker.long_polling.count == 3
        await w.send(body=b"six", properties={"a": "6"})
        answer = await large
        assert (bodies(answer), answer.ext["nextBeginOffset"]) == ([b"six"], "2")
        assert w.broker.long_polling.count == 2
        await w.send(body=b"four", properties={"a": "4", "TAGS": "t"})
        assert bodies(await small) == bodies(await tagged) == [b"four"]
        assert w.broker.long_polling.count == 0


@pytest.mark.spec("LP-03", "LP-04")
@pytest.mark.parametrize(("kind", "old", "new"), [("SQL92", "a = 1", "a = 2"), ("TAG", "one", "two")])
async def test_parked_pull_is_answered_when_subscription_changes(kind: str, old: str, new: str) -> None:
    async with wire(property_filter_enable=True) as w:
        await w.send(body=b"before", properties={"a": "2", "TAGS": "two"})
        await subscribe(w, old, 1, kind=kind, code_set=[java_hash(old)])
        await subscribe(w, "*", 1, kind="TAG", group="H")
        held = await held_pull(w, sysFlag=2, offset=1, subVersion=1)
        other = await held_pull(w, sysFlag=2, offset=1, subVersion=1, group="H")
        await subscribe(w, old, 2, kind=kind, code_set=[java_hash(old)])  # a newer version of the same expression
        assert w.broker.long_polling.count == 2
        await subscribe(w, new, 3, kind=kind, code_set=[java_hash(new)])
        assert (await held).code == 19
        assert w.broker.long_polling.count == 1
        again = await held_pull(w, sysFlag=2, offset=1, subVersion=3)
        await w.send(body=b"after", properties={"a": "2", "TAGS": "two"})
        assert bodies(await again) == bodies(await other) == [b"after"]


@pytest.mark.spec("LP-03")
async def test_properties_are_read_only_if_parked_pull_filters_by_them() -> None:
    async with wire(property_filter_enable=True) as w:
        asked: list[tuple[str, int, int]] = []
        inner = w.broker.long_polling._properties
        assert inner is not None

        def properties(topic: str, queue_id: int, offset: int) -> bytes | None:
            asked.append((topic, queue_id, offset))
            return inner(topic, queue_id, offset)

        w.broker.long_polling._properties = properties
        await w.send(queue=1)
        tagged = await held_pull(w, subscription="t")
        await w.send(properties={"TAGS": "u"})
        await w.send(properties={"TAGS": "t"})
        await tagged
        assert asked == []
        waiting = [await held_pull(w, offset=2, subscription="a = 1", **SQL) for _ in range(3)]
        await w.send(properties={"a": "1"})
        await asyncio.gather(*waiting)
        assert asked == [("T", 0, 2)]  # once for all


@pytest.mark.spec("FIL-05")
def test_retry_topic_filter_uses_failed_topic_if_enabled() -> None:
    async def work(support: bool) -> list[bytes]:
        async with wire(property_filter_enable=True, filter_support_retry=support) as w:
            await w.send()
            await subscribe(w, "a > 1")
            w.broker.topics.ensure("%RETRY%G", 1)
            for body, properties in (
                (b"yes", {"a": "2", "RETRY_TOPIC": "T"}),
                (b"no", {"a": "0", "RETRY_TOPIC": "T"}),
                (b"elsewhere", {"a": "0", "RETRY_TOPIC": "U"}),
            ):
                w.broker.store.put(Message("%RETRY%G", body, encode_properties(properties)))
            return bodies(await w.pull("%RETRY%G", group="G"))

    assert run(lambda: work(False)) == [b"yes", b"no", b"elsewhere"]
    assert run(lambda: work(True)) == [b"yes", b"elsewhere"]


@pytest.mark.spec("FIL-04", "CF-02", "CF-03")
async def test_group_filter_data_goes_offline_and_survives_restart(tmp_path: Path) -> None:
    now = [1_000_000]
    path = tmp_path / "store" / "config" / "consumerFilter.json"
    settings = BrokerSettings(property_filter_enable=True)
    store = StoreSettings(profile=StoreProfile.SMALL)
    async with EmbeddedBroker(tmp_path, settings=settings, store=store, clock_ms=lambda: now[0]) as server:
        w = Wire(server)
        await w.send(properties={"a": "2"})
        await subscribe(w, "a > 1", 7)
        record = w.broker.filters.groups.get("T", "G")
        assert record is not None and not record.dead
        now[0] += 10
        await w.call(RequestCode.UNREGISTER_CLIENT, clientID="c1", consumerGroup="G")
        assert record.dead and record.dead_time_ms == 1_000_010
        await w.client.close()
    saved = json.loads(path.read_bytes())["filterDataByTopic"]["T"]["groupFilterData"]["G"]
    assert (saved["expression"], saved["clientVersion"], saved["bornTime"], saved["dead"]) == (
        "a > 1",
        7,
        1_000_000,
        True,
    )
    now[0] += 60_000
    async with EmbeddedBroker(tmp_path, settings=settings, store=store, clock_ms=lambda: now[0]) as server:
        w = Wire(server)
        loaded = w.broker.filters.groups.get("T", "G")
        assert loaded is not None and loaded.dead and loaded.born_time_ms == 1_000_000
        await subscribe(w, "a > 1", 7)
        assert not loaded.dead
        assert (await w.pull(sysFlag=0, subVersion=7)).code == 0
        await w.client.close()


@pytest.mark.spec("FIL-04", "CF-03")
async def test_filter_file_is_written_on_change_and_drops_old_groups(tmp_path: Path) -> None:
    assert SAVE_SECONDS == 10
    now = [5_000]
    path = tmp_path / "consumerFilter.json"
    filters = Filters(
        BrokerSettings(property_filter_enable=True, filter_clean_span_ms=100), StateFile(path), lambda: now[0]
    )
    await filters.saved()
    assert not path.exists()
    subscription = SubscriptionData("T", "a = 1", sub_version=1, expression_type="SQL92")
    filters.subscribe("G", [subscription], now[0])
    filters.save_soon()
    await filters.writer.saved()
    first = path.stat().st_ino
    filters.subscribe("G", [subscription], now[0])  # the same heartbeat again
    filters.subscribe("H", [SubscriptionData("T", "tag")], now[0])
    await filters.saved()
    assert path.stat().st_ino == first
    filters.group_offline("G")
    now[0] += 99
    await filters.saved()
    assert json.loads(path.read_bytes())["filterDataByTopic"]["T"]["groupFilterData"]["G"]["deadTime"] == 5_000
    now[0] += 1
    await filters.saved()
    assert json.loads(path.read_bytes()) == {"filterDataByTopic": {}}


@pytest.mark.spec("CF-02", "FIL-04")
def test_damaged_filter_file_fails_start_unless_backup_exists(tmp_path: Path) -> None:
    path = tmp_path / "consumerFilter.json"
    path.write_bytes(b"{")
    filters = Filters(BrokerSettings(), StateFile(path), lambda: 1)
    with pytest.raises(CorruptRecord):
        filters.load()
    golden = VECTORS / "store/broker-rollover-ext/config/consumerFilter.json"
    path.with_name("consumerFilter.json.bak").write_bytes(golden.read_bytes())
    filters.load()
    record = filters.groups.get("VecSql", "vec_sql_group")
    assert record is not None and (record.expression, record.positions) == ("x > 1", [12, 93, 81])
    with pytest.raises(ResponseError):
        filters.groups.for_pull("VecSql", "other", 0)


PIECES = st.sampled_from(
    [b"a", b"b", b"aa", b"\x01", b"\x02", b"0", b"3", b"-1", b"\xff", b"\xc3", b" ", b"3\x01", b"a\x01", b"\x02a\x01"]
)


@pytest.mark.spec("FIL-09", "FUZ-06")
@settings(max_examples=500)
@given(st.lists(st.lists(PIECES, max_size=12).map(b"".join), max_size=12))
def test_cached_expression_results_equal_evaluation(several: list[bytes]) -> None:
    """One predicate for all inputs, evaluated twice, so that a result cached under the wrong key is detected."""
    matcher = compile_sql("a >= 3 OR b = 'a' OR aa IS NULL AND b IS NOT NULL")
    ask = matcher.by_record
    for raw in (*several, *several):
        assert ask(raw) is matcher.by_properties(decode_properties(raw.decode("utf-8", "replace")))


@pytest.mark.spec("CQ-14")
@pytest.mark.parametrize(("sizing", "map_bytes"), [({}, 14), ({"bloom_error_percent": 10, "bloom_consumers": 128}, 77)])
async def test_bit_maps_have_the_size_that_the_settings_give(sizing: dict[str, int], map_bytes: int) -> None:
    assert not BrokerSettings().calc_filter_bit_map and not BrokerSettings().property_filter_enable
    enabled = {"property_filter_enable": True, "calc_filter_bit_map": True}
    async with wire({"queue_extension_enable": True}, **enabled, **sizing) as w:
        await w.send()
        await subscribe(w, "a > 1")
        await w.send(properties={"a": "2"})
        queue = w.broker.store.queues.by_key["T", 0]
        assert queue.extension is not None
        content = queue.extension.read(UNIT.unpack(queue.read(QueueOffset(1), 1))[2])
        assert content is not None and len(content.bit_map) == map_bytes and any(content.bit_map)


@pytest.mark.spec("FIL-06", "CQ-14")
@pytest.mark.parametrize("enabled", [True, False])
async def test_bit_maps_avoid_reading_unmatched_messages(monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
    read: list[int] = []
    inner = StoreReader._properties_in_place

    def counted(*place: Any) -> bytes | None:
        read.append(1)
        return inner(*place)

    monkeypatch.setattr(StoreReader, "_properties_in_place", counted)
    now = [1000]
    store = StoreSettings(profile=StoreProfile.SMALL, queue_extension_enable=True)
    settings = BrokerSettings(property_filter_enable=True, calc_filter_bit_map=enabled)
    async with EmbeddedBroker(settings=settings, store=store, clock_ms=lambda: now[0]) as server:
        w = Wire(server)
        await numbered(w, 5)
        now[0] += 1
        await subscribe(w, "a >= 8")
        now[0] += 1
        await numbered(w, 10)
        assert read == []
        answer = await w.pull(sysFlag=0, subVersion=1)
        assert (bodies(answer), answer.ext["nextBeginOffset"]) == ([b"8", b"9"], "15")
        assert len(read) == (7 if enabled else 15)  # messages from before the subscription have no valid bits
        brought = await w.pull(subscription="a >= 9", **SQL)  # the pull's own expression has no bits
        assert (bodies(brought), len(read)) == ([b"9"], 22 if enabled else 30)
        await w.client.close()


@pytest.mark.spec("FIL-06", "CQ-13", "DUR-13")
async def test_bit_maps_are_rebuilt_after_kill(tmp_path: Path) -> None:
    store = StoreSettings(profile=StoreProfile.SMALL, queue_extension_enable=True)
    settings = BrokerSettings(property_filter_enable=True, calc_filter_bit_map=True)
    server = EmbeddedBroker(tmp_path, settings=settings, store=store)
    async with server:
        w = Wire(server)
        await subscribe(w, "a > 1", topic="T")
        await numbered(w, 4)
        await w.broker.filters.saved()
        queue = w.broker.store.queues.by_key[("T", 0)]
        before = [queue.extension.read(code) for _, _, code in UNIT.iter_unpack(queue.read(0, 4))]
        assert [content.bit_map != bytes(14) for content in before] == [False, False, True, True]
        await w.client.close()
        shutil.copytree(tmp_path, tmp_path / "killed", ignore=shutil.ignore_patterns("killed"))
    async with EmbeddedBroker(tmp_path / "killed", settings=settings, store=store) as again:
        queue = again.broker.store.queues.by_key[("T", 0)]
        assert [queue.extension.read(code) for _, _, code in UNIT.iter_unpack(queue.read(0, 4))] == before
