"""Options against the table of the specification, and the effect of connection and property options."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import MapType, StringType, StructField, StructType

from recorded import SPEC
from saturnmq import Outgoing
from saturnmq.client.connection.remote import Remote
from saturnmq.client.connection.url import ClientSettings, make_settings, parse_url
from saturnmq.config.settings import parse_duration_ms, parse_size
from saturnmq.net.signer import Signer
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import Host, Message, encode_properties, encode_record
from saturnmq.spark.connect import ConnectionOptions, Link, linked
from saturnmq.spark.decode import Selection, arrow_schema, decode_block
from saturnmq.spark.options import OPTION_NAMES, parse_options
from saturnmq.spark.sink_options import OPTION_NAMES as SINK_OPTION_NAMES
from saturnmq.spark.sink_options import parse_sink_options
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.spark.source_puller import SteadyPuller
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

GIVEN = {"nameServer": "127.0.0.1:9876", "topic": "T"}


def names_of(text: str, heading: str) -> list[str]:
    """Return the option names in the first column of the table below a heading."""
    part = text.split(heading, 1)[1].split("| Option |", 1)[1].split("\n\n", 1)[0]
    cells = [re.split(r"(?<!\\)\|", line)[1] for line in part.splitlines()[2:] if line.startswith("|")]
    found = []
    for word in re.findall(r"\.{0,3}[A-Za-z]{2,}", " ".join(cells)):
        starts = ("starting", "ending") if word.startswith("...") else ("",)
        found += [start + word.lstrip(".") for start in starts]
    return found


@pytest.mark.spec("SPK-10")
def test_every_specified_option_is_known() -> None:
    text = (SPEC / "06-spark.md").read_text()
    source, sink = names_of(text, "### 3.1 Options"), names_of(text, "## 5. Sinks")
    assert {"readFrom", "tlsKey", "endingOffsetsByTimestamp", "maxTriggerDelay"} <= set(source)
    assert {"inFlight", "compressAbove", "transactionMaxMessages"} <= set(sink)
    assert [name for name in source if name not in OPTION_NAMES] == []
    assert [name for name in sink if name not in SINK_OPTION_NAMES] == []


@pytest.mark.spec("SPK-10")
def test_tls_and_account_options_require_their_partners() -> None:
    alone = {"tlsCert": "a.pem", "tlsKey": "a.key", "tlsCa": "ca.pem"}
    with pytest.raises(ConfigError, match="tlsCa, tlsCert, tlsKey: of no use without option tls=true"):
        parse_options(GIVEN | alone)
    with pytest.raises(ConfigError, match="tlsKey needs tlsCert"):
        parse_options(GIVEN | {"tls": "true", "tlsKey": "a.key"})
    with pytest.raises(ConfigError, match="securityToken needs accessKey and secretKey"):
        parse_options(GIVEN | {"securityToken": "t"})
    with pytest.raises(ConfigError, match="tlsKeyPassword needs tlsKey"):
        parse_options(GIVEN | {"tls": "true", "tlsKeyPassword": "p"})
    settings = parse_options(GIVEN | alone | {"tls": "true", "tlsVerify": "false"}).make_client().settings
    assert (settings.tls, settings.tls_verify, settings.tls_ca) == (True, False, "ca.pem")
    assert (settings.tls_cert, settings.tls_key) == ("a.pem", "a.key")
    problems = ClientSettings(name_servers=("h:1",), tls_key="a.key").validate()
    assert problems == ["tls_key is of no use without tls_cert"]


@pytest.mark.spec("SPK-11", "ACL-18", "ACL-19")
def test_security_token_is_signed_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    options = parse_options(GIVEN | {"accessKey": "ak", "secretKey": "s3cret", "securityToken": "t0ken"})
    command = Command(RequestCode.PULL_MESSAGE, ext={"topic": "T", "Signature": "old"}, body=b"body")

    async def sign() -> Signer:
        remote = Remote(options.make_client().settings, lambda connection, request: None)
        await remote.close()
        assert remote._signer is not None
        return remote._signer

    signer = asyncio.run(sign())
    signer.sign(command)
    assert command.ext["SecurityToken"] == "t0ken"
    signed = hmac.new(
        b"s3cret", b"ak" + b"t0ken" + b"T" + b"body", hashlib.sha1
    ).digest()  # AccessKey, SecurityToken, topic
    assert command.ext["Signature"] == base64.b64encode(signed).decode()
    shown = repr(options) + repr(options.connection) + repr(options.make_client().settings) + repr(signer)
    assert "t0ken" not in shown and "s3cret" not in shown
    with pytest.raises(ConfigError) as caught:
        parse_options(GIVEN | {"securityToken": " ", "secretKey": " ", "batchRows": "0"})
    assert "securityToken=***" in str(caught.value)
    for name, value in (("ACCESS_KEY", "ak"), ("SECRET_KEY", "sk"), ("SECURITY_TOKEN", "env")):
        monkeypatch.setenv(f"SATURNMQ_{name}", value)
    assert parse_options(GIVEN).security_token == "env"
    other = parse_options(GIVEN | {"accessKey": "other", "secretKey": "sk"})
    assert other.security_token is None  # the environment's token belongs to another account


class Answers:
    """What a puller needs of a core: brokers 0 to 2 of one name, whose responses suggest the scripted broker ids."""

    def __init__(self, suggests: list[int]) -> None:
        self.settings = ClientSettings(name_servers=("h:1",))
        self.remote = self
        self.asked: list[int] = []
        self._suggests = iter(suggests)

    def check_running(self, what: str) -> None:
        """Always running."""

    async def read_address(self, topic: str, broker_name: str, broker_id: int) -> tuple[str, bool]:
        self.asked.append(broker_id)
        return "h:1", broker_id != 0

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        ext = {
            "nextBeginOffset": "1",
            "minOffset": "0",
            "maxOffset": "9",
            "suggestWhichBrokerId": str(next(self._suggests)),
        }
        return Command(0, ext=ext, body=b"")


@pytest.mark.spec("SRC-14")
@pytest.mark.parametrize(
    ("read_from", "asked"), [("auto", [0, 1, 0, 2]), ("master", [0, 0, 0, 0]), ("slave", [1, 1, 1, 1])]
)
def test_read_from_selects_broker_id(read_from: str, asked: list[int]) -> None:
    options = parse_options(GIVEN | {"readFrom": read_from})
    link = Link(options.make_client(), options.connection.read_from)
    core: Any = Answers([1, 0, 2, 1])

    async def work() -> None:
        puller = link.puller
        puller._core = core
        for _ in asked:
            await puller.pull(MessageQueue("T", "b", 0), 0)

    asyncio.run(work())
    assert core.asked == asked
    assert isinstance(link.puller, SteadyPuller) is (read_from != "auto")


@pytest.mark.spec("SRC-14")
def test_read_from_slave_falls_back_to_master(server: SyncEmbeddedBroker) -> None:
    with Client(name_servers=server.name_servers) as client, client.producer("P") as out:
        out.send_many("lonely", [Outgoing(value=b"%d" % n) for n in range(5)])
    assert sorted(row["body"] for row in rows(server, "lonely", readFrom="slave", columns="body")) == [
        b"%d" % n for n in range(5)
    ]
    with (
        linked(ConnectionOptions(server.name_servers)) as one,
        linked(ConnectionOptions(server.name_servers, read_from="slave")) as other,
    ):
        assert one is not other
    with pytest.raises(ConfigError, match="readFrom='leader': must be auto or master or slave"):
        parse_options(GIVEN | {"readFrom": "leader"})


def rows(server: SyncEmbeddedBroker, topic: str, **options: str) -> list[dict[str, Any]]:
    """Return what a worker reads."""
    source = RocketMQDataSource({"nameServer": server.name_servers, "topic": topic, **options})
    made = source.reader(source.schema())
    return [row for part in made.partitions() for batch in made.read(part) for row in batch.to_pylist()]


@pytest.mark.spec("SRC-08")
def test_properties_format_raw_json_and_map(server: SyncEmbeddedBroker) -> None:
    own = {"größe": 'a "b"', "n": "1"}
    with Client(name_servers=server.name_servers) as client, client.producer("P") as out:
        out.send_many("formats", [Outgoing(value=b"x", properties=own), Outgoing(value=b"y", properties=own)])
    given = {"columns": "body,properties"}
    (raw, _) = rows(server, "formats", **given)
    wanted = dict(pair.split("\x01") for pair in raw["properties"].split("\x02") if pair)
    assert own.items() <= wanted.items()
    for row in rows(server, "formats", **given, propertiesFormat="json"):
        assert own.items() <= json.loads(row["properties"]).items()
    (mapped, _) = rows(server, "formats", **given, propertiesFormat="map")
    assert dict(mapped["properties"]) == wanted

    source = RocketMQDataSource({**GIVEN, "propertiesFormat": "map"})
    field = next(item for item in source.schema() if item.name == "properties")
    assert field.dataType == MapType(StringType(), StringType(), True) and source.streamReader(source.schema())
    text = StructType([StructField("properties", StringType(), True)])
    with pytest.raises(ConfigError, match="column properties is string, must be map<string,string>"):
        source.reader(text)
    assert RocketMQDataSource({**GIVEN, "propertiesFormat": "json"}).reader(text)


@pytest.mark.spec("SRC-09")
@pytest.mark.parametrize("host", [Host("1.2.3.4", 5), Host("::1", 5)])
def test_properties_decode_equally_on_both_paths(host: Host) -> None:
    raw = encode_properties({"a": "1", "WAIT": "true"}) + b"\x02WAIT\x01false\x02empty\x01\x02\xff\x01?"
    block = encode_record(Message(topic="T", body=b"x", properties_raw=raw, born_host=host, store_host=host))
    columns = ("properties:json", "properties:map", "propertiesMap")
    batch = decode_block(block, columns, "b", Selection())[0]
    assert batch.schema.equals(arrow_schema(columns)) and batch.schema.names == [
        "properties",
        "properties",
        "propertiesMap",
    ]
    expected = {"a": "1", "WAIT": "false", "\ufffd": "?"}
    assert json.loads(batch.column(0)[0].as_py()) == expected
    assert dict(batch.column(1)[0].as_py()) == dict(batch.column(2)[0].as_py()) == expected
    empty = decode_block(encode_record(Message(topic="T", body=b"", properties_raw=b"")), columns, "b", Selection())[0]
    assert empty.column(0).to_pylist() == ["{}"] and empty.column(1).type == pa.map_(pa.string(), pa.string())


@pytest.mark.spec("SPK-11", "SEC-10")
def test_key_file_and_signature_reach_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    options = parse_options(GIVEN | {"keyFile": "/keys/app", "signature": "V2"})
    settings = options.make_client().settings
    assert (settings.key_file, settings.signature) == ("/keys/app", "v2")
    with pytest.raises(ConfigError, match="signature='v3': must be v1 or v2"):
        parse_options(GIVEN | {"signature": "v3"})


@pytest.mark.spec("SPK-11")
@pytest.mark.parametrize("how", ["option", "environment"])
def test_url_with_credentials_as_name_server_is_refused_unseen(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {name: text for name, text in GIVEN.items() if name.lower() != "nameserver"}
    if how == "environment":
        monkeypatch.setenv("NAMESRV_ADDR", "rmq://key:topsecret@h")
    else:
        given["nameServer"] = "rmq://key:topsecret@h"
    with pytest.raises(ConfigError, match="not a URL") as caught:
        parse_options(given)
    assert "topsecret" not in str(caught.value)


QUANTITIES = {
    "maxBytesPerPartition": "bytes_per_partition",
    "pullTimeoutMs": "pull_timeout_ms",
    "readTimeoutMs": "read_timeout_ms",
    "metadataRefreshMs": "refresh_ms",
}


def test_sizes_and_durations_take_the_forms_of_broker_files() -> None:
    """One parser for broker files, options of Spark and URLs; a bare `m` is MiB in a size and minutes in a duration."""
    sizes = {"64MiB": 64 << 20, "64m": 64 << 20, "64mb": 64 << 20, "1.5k": 1536, "1024": 1024, "1t": 1 << 40}
    durations = {
        "5min": 300_000,
        "5m": 300_000,
        "1d": 86_400_000,
        "1500 ms": 1500,
        "1500": 1500,
        "2H": 7_200_000,
        "10 seconds": 10_000,
    }
    for option, attribute in QUANTITIES.items():
        for form, value in (sizes if "Bytes" in option else durations).items():
            assert getattr(parse_options(GIVEN | {option: form}), attribute) == value, (option, form)
    for form, value in sizes.items():
        streamed = parse_options(GIVEN | {"maxBytesPerTrigger": form}, streaming=True)
        assert streamed.bytes_per_trigger == parse_size(form) == value
    for form, value in durations.items():
        streamed = parse_options(GIVEN | {"maxTriggerDelay": form, "minOffsetsPerTrigger": "1"}, streaming=True)
        assert streamed.trigger_delay_ms == parse_duration_ms(form) == value
    sink = parse_sink_options(
        GIVEN | {"batchBytes": "64KiB", "sendTimeoutMs": "5s", "transactionCheckAfter": "5min"}, {"body": "binary"}
    )
    assert (sink.batch_bytes, sink.send_timeout_ms, sink.check_after_ms) == (65_536, 5000, 300_000)
    url = "rmq://h?timeout=500ms&route_poll_ms=1min&body_bytes_max=8MiB&compress_from_bytes=4k&heartbeat_ms=20000"
    settings = make_settings(parse_url(url))
    assert (settings.timeout, settings.route_poll_ms, settings.heartbeat_ms) == (0.5, 60_000, 20_000)
    assert (settings.body_bytes_max, settings.compress_from_bytes) == (8 << 20, 4096)
    assert make_settings(parse_url("rmq://h?timeout=5")).timeout == 5.0, "a number without a unit is in seconds"


def test_invalid_sizes_and_durations_are_named_with_their_forms() -> None:
    for option, text, message in (
        ("maxBytesPerPartition", "64 XiB", "must be a size such as 67108864, 64MiB or 1GiB"),
        ("maxBytesPerPartition", "0", "must be a size of at least 1 byte, such as 67108864, 64MiB or 1GiB"),
        ("readTimeoutMs", "5 years", "must be a duration such as 90000, 500ms, 90s or 2h"),
        ("readTimeoutMs", "0s", "must be at least 1 ms"),
        ("metadataRefreshMs", "-1", "must be at least 0 ms"),
    ):
        with pytest.raises(ConfigError, match=f"option {option}={text!r}: {message}"):
            parse_options(GIVEN | {option: text})
    for key, text, message in (
        ("timeout", "soon", "is not a number of seconds or a duration such as 500ms or 90s"),
        ("heartbeat_ms", "soon", "is not a duration such as 90000, 500ms, 90s or 2h"),
        ("body_bytes_max", "big", "is not a size such as 67108864, 64MiB or 1GiB"),
    ):
        with pytest.raises(ConfigError, match=f"{key}: '{text}' {message}"):
            parse_url(f"rmq://h?{key}={text}")
