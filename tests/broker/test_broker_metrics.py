"""What a broker's scrape holds: the exporter's names, our own families, and their values."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from wire import Clock, Wire, run, wire

from apachenames import labels_by_name
from metricstext import families, values
from saturnmq.broker.metrics import apache, own
from saturnmq.net import NO_RESPONSE
from saturnmq.protocol.bodies import ConsumerRunningInfo, ConsumeStatus
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.store.settings import FlushDiskType
from waiting import until

ACCUMULATION = "rocketmq_message_accumulation"
UNFILLED = {"rocketmq_group_consume_tps", "rocketmq_group_consume_total_offset"}
HEART_BEAT = "34"


def scrape(w: Wire) -> str:
    return b"".join(w.broker.metrics.pieces()).decode()


def value(text: str, name: str, **labels: str) -> float:
    """The value of the only sample that has these labels among others."""
    found = [v for key, v in values(text, name).items() if labels.items() <= dict(key).items()]
    assert len(found) == 1, (name, labels, values(text, name))
    return found[0]


async def traffic(w: Wire, clock: Clock) -> None:
    """Six messages, of which a group has read three and committed two; a minute of samples, the rates of its member."""
    await w.heartbeat("G", "T")
    for number in range(6):
        clock.ms += 10
        await w.send(body=b"x" * 10, queue=number % 2)
    await w.pull(offset=0)
    await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=2)
    await w.call(
        RequestCode.CONSUMER_SEND_MSG_BACK, group="G", offset=0, delayLevel=-1, originTopic="T", originMsgId="1"
    )
    clock.ms += 10_000
    for _ in w.broker.stats.sample_sets():
        pass
    status = ConsumeStatus(
        pull_rt=1.5, pull_tps=2, consume_rt=3, consume_ok_tps=4, consume_failed_tps=5, consume_failed_msgs=6
    )
    await polled(w, {"T": status})


async def polled(w: Wire, table: dict[str, ConsumeStatus]) -> list[Command]:
    """Let the broker ask its consumers, and answer with these rates; returns what it asked."""
    asked: list[Command] = []

    def answer(connection: Any, request: Command) -> Command | bytes:
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:  # the heartbeat's, which may come as late as this
            return NO_RESPONSE
        asked.append(request)
        return request.reply(body=ConsumerRunningInfo(status_table=table).encode())

    for connection in w.client.connections:
        connection.requests.handler = answer
    await w.broker.metrics.clients.poll()
    return asked


@pytest.mark.spec("EXP-02", "INT-12", "INT-11")
def test_names_and_labels_equal_those_of_the_exporter() -> None:
    async def main() -> str:
        clock = Clock()
        async with wire(clock_ms=clock) as w:
            await traffic(w, clock)
            w.broker.topics.ensure("%RETRY%G", 1)
            for topic in ("%RETRY%G", "%DLQ%G"):
                w.broker.offsets.set(topic, "G", 0, 0)
            return scrape(w)

    text, expected = run(main), labels_by_name()
    found = {name: family for name, family in families(text).items() if name.startswith("rocketmq_")}
    assert len(expected) == 89
    assert set(found) == set(expected) | {ACCUMULATION}
    assert {family.type for family in found.values()} == {"gauge"}
    for name, labels in (expected | {ACCUMULATION: expected["rocketmq_group_diff"]}).items():
        for sample in found[name].samples:
            assert tuple(sample.labels) == labels, name
    empty = {name for name, family in found.items() if not family.samples}
    assert empty == UNFILLED | {"rocketmq_broker_commitlog_diff"}


@pytest.mark.spec("INT-12")
def test_message_accumulation_can_be_switched_off() -> None:
    async def main() -> str:
        async with wire(metrics_accumulation=False) as w:
            return scrape(w)

    assert ACCUMULATION not in families(run(main))


async def test_own_gauges_show_the_store_the_clients_and_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker with one message, a group of producers, two groups of consumers, and a given disk."""
    for module in (apache, own):
        monkeypatch.setattr(module, "space", lambda folder: (1000, 400))
    async with wire() as w:
        await w.send(body=b"x" * 10)
        await w.heartbeat("G", "T")
        await w.heartbeat("H", "T")
        store = w.broker.store
        await until(lambda: store.flushed_offset == store.max_physical_offset)
        text = scrape(w)
        assert value(text, "rocketmq_brokeruntime_commitlogdir_capacity_total") == 1000
        assert value(text, "rocketmq_brokeruntime_commitlogdir_capacity_free") == 400
        for name, expected in (
            ("disk_size_bytes", 1000), ("disk_free_bytes", 400), ("writable", 1), ("master", 1), ("log_begin_bytes", 0),
            ("log_end_bytes", store.max_physical_offset), ("log_unflushed_bytes", 0), ("dispatch_behind_bytes", 0),
            ("topics", len(w.broker.topics.table)), ("sends_waiting", 0), ("put_failures_total", 0),
            ("put_messages_total", 1), ("put_bytes_total", store.max_physical_offset), ("read_messages_total", 0),
            ("start_time_seconds", w.broker.stats.started_ms / 1000),
        ):  # fmt: skip
            assert value(text, f"saturnmq_{name}") == expected, name
        for kind, count in (("producer", 1), ("consumer", 2)):
            assert value(text, "saturnmq_groups_online", kind=kind) == count
        for group in ("G", "H"):
            assert value(text, "saturnmq_group_members", group=group) == 1
        w.broker.role.slave = True
        assert value(scrape(w), "saturnmq_master") == 0


def test_values_are_those_of_the_brokers_own_statistics() -> None:
    async def main() -> tuple[str, Wire]:
        clock = Clock()
        async with wire(clock_ms=clock) as w:
            await traffic(w, clock)
            return scrape(w), w

    text, w = run(main)
    assert value(text, "rocketmq_producer_offset", topic="T", cluster="DefaultCluster", broker="broker-a") == 6
    assert value(text, "rocketmq_producer_tps", topic="T") == 0.6
    assert value(text, "rocketmq_consumer_tps", topic="T", group="G") == 0.3
    assert value(text, "rocketmq_consumer_offset", topic="T", group="G") == 2
    assert value(text, "rocketmq_group_diff", topic="T", group="G", countOfOnlineConsumers="1", msgModel="1") == 4
    assert value(text, ACCUMULATION, topic="T", group="G") == 4
    assert value(text, "rocketmq_send_back_nums", topic="T", group="G") == 1
    assert value(text, "rocketmq_topic_dlq_offset", group="G") == 1
    assert value(text, "rocketmq_producer_count", group="producers") == 1
    assert value(text, "rocketmq_group_count", group="G", localaddr="c1") == 1
    assert value(text, "rocketmq_broker_tps", brokerIP=w.broker.advertised_address) > 0
    assert value(text, "rocketmq_brokeruntime_msg_put_total_today_now", broker_version="407", des="V4_9_7") == 7
    assert value(text, "rocketmq_brokeruntime_commitlogdir_capacity_total") > 1 << 20
    assert value(text, "rocketmq_client_consume_rt", group="G", clientId="c1", topic="T") == 3
    assert value(text, "rocketmq_client_consume_fail_msg_count", group="G") == 6


def test_latency_is_the_age_of_the_next_message_and_zero_when_caught_up() -> None:
    async def main() -> tuple[str, str]:
        clock = Clock()
        async with wire(clock_ms=clock) as w:
            for number in range(3):
                clock.ms += 1000
                await w.send(body=b"%d" % number)
            await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=1)
            clock.ms += 500
            behind = scrape(w)
            await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=3)
            return behind, scrape(w)

    behind, caught_up = run(main)
    assert value(behind, "rocketmq_group_get_latency_by_storetime", group="G") == 1500
    assert value(caught_up, "rocketmq_group_get_latency_by_storetime", group="G") == 0


@pytest.mark.spec("MON-17")
def test_counters_rise_and_do_not_depend_on_sampling() -> None:
    async def main() -> tuple[str, str]:
        async with wire() as w:
            await w.send(body=b"1")
            await w.pull()
            before = scrape(w)
            for _ in range(4):
                await w.send(body=b"2")
            await w.pull()
            return before, scrape(w)

    before, after = run(main)
    for name, labels, first, second in (
        ("saturnmq_put_messages_total", {}, 1, 5),
        ("saturnmq_topic_put_messages_total", {"topic": "T"}, 1, 5),
        ("saturnmq_read_messages_total", {}, 1, 6),
        ("saturnmq_group_read_messages_total", {"topic": "T", "group": "G"}, 1, 6),
    ):
        assert (value(before, name, **labels), value(after, name, **labels)) == (first, second), name
        assert families(after)[name.removesuffix("_total")].type == "counter"


@pytest.mark.spec("INT-11")
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_histograms_count_appends_flushes_and_requests_by_code(flush: str) -> None:
    async def main() -> str:
        async with wire({"flush_disk_type": FlushDiskType(flush)}) as w:
            broker = w.broker
            broker._server.request_seconds = broker.metrics.request_seconds  # as with metricsPort
            for number in range(3):
                await w.send(body=b"%d" % number)
            await w.call(RequestCode.GET_BROKER_RUNTIME_INFO)
            await w.call(9999)
            return scrape(w)

    text = run(main)
    assert value(text, "saturnmq_append_seconds_count") == 3
    assert value(text, "saturnmq_request_seconds_count", code="310") == 3
    assert value(text, "saturnmq_request_seconds_count", code="28") == 1
    assert value(text, "saturnmq_request_seconds_count", code="other") == 1
    assert value(text, "saturnmq_scrub_damaged_total") == 0
    assert value(text, "saturnmq_fsync_seconds_count") >= (1 if flush == "SYNC_FLUSH" else 0)
    assert not any(sample.value < 0 for family in families(text).values() for sample in family.samples
                   if sample.name.startswith("saturnmq_") and sample.name.endswith(("_count", "_sum", "_bucket")))  # fmt: skip


def test_nothing_is_timed_by_code_without_a_metrics_port() -> None:
    async def main() -> str:
        async with wire() as w:
            await w.send()
            assert not w.broker.metrics.enabled
            return scrape(w)

    assert values(run(main), "saturnmq_request_seconds_count") == {}


@pytest.mark.spec("INT-11")
def test_connections_and_rejections_are_counted_by_bounded_labels() -> None:
    async def main() -> str:
        async with wire() as w:
            await w.send()
            w.broker.rejections.note("busy", "10.0.0.1:1", 'text "of" a peer')
            return scrape(w)

    text = run(main)
    assert value(text, "saturnmq_connections", port="main") >= 1
    assert value(text, "saturnmq_rejected_total", reason="busy") == 1
    assert "of" not in [label for key in values(text, "saturnmq_rejected_total") for _, label in key]


@pytest.mark.spec("INT-11")
def test_rates_of_members_are_asked_as_the_exporter_asks_and_bounded() -> None:
    async def main() -> tuple[list[Command], str]:
        async with wire() as w:
            await w.send()
            await w.heartbeat("G", "T")
            strange = {f"made-up-{number}": ConsumeStatus() for number in range(500)}
            asked = await polled(w, {"T": ConsumeStatus(pull_rt=1e300), **strange})
            return asked, scrape(w)

    asked, text = run(main)
    assert [(one.code, one.ext["consumerGroup"], one.ext["clientId"]) for one in asked] == [(307, "G", "c1")]
    assert len(values(text, "rocketmq_client_consume_rt")) == 1


def test_a_slave_has_the_exporters_families_without_rows() -> None:
    async def main() -> str:
        async with wire() as w:
            await w.send()
            w.broker.metrics._sources.role.slave = True  # type: ignore[misc]
            return scrape(w)

    found = families(run(main))
    assert not any(family.samples for name, family in found.items() if name.startswith("rocketmq_"))
    assert found["saturnmq_put_messages"].samples


@pytest.mark.spec("INT-11")
def test_a_large_table_is_scraped_in_small_steps() -> None:
    async def main() -> tuple[int, int, int]:
        async with wire() as w:
            await w.send()
            config, stats = w.broker.topics.table["T"], w.broker.stats
            for number in range(10_000):
                w.broker.topics.table[f"topic-{number}"] = config
                stats.put(f"topic-{number}", 1, 100)
                w.broker.offsets.set(f"topic-{number}", f"group-{number}", 0, number)
            pieces = [piece.count(b"\n") for piece in w.broker.metrics.pieces()]
            return max(pieces), len(pieces), sum(pieces)

    longest, count, lines = run(main)
    assert lines > 80_000
    assert longest <= 32 + 100  # rows of a step, and the HELP and TYPE lines of families with few rows
    assert count > lines // 132


@pytest.mark.spec("INT-11", "MON-17")
@pytest.mark.loop(real=True)
async def test_the_port_is_served_over_http_and_listed_as_open() -> None:
    from ports import free_port

    port = free_port()
    async with wire(metrics_port=port) as w:
        assert w.broker.unauthenticated["metrics"] == f"127.0.0.1:{port}"
        await w.send()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.close()
    text = answer.partition(b"\r\n\r\n")[2].decode()
    assert value(text, "saturnmq_request_seconds_count", code="310") == 1
    assert value(text, "rocketmq_producer_offset", topic="T") == 1
