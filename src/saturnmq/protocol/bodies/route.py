"""JSON bodies for topics, broker registration and routes.

Import them through `bodies`. Attributes are the snake case of the JSON names. An absent member takes its default. Times are Unix
ms. See docs/spec/00 section 5 and docs/spec/01 section 2.4.
"""
# No `from __future__ import annotations`: `body` evaluates the annotations when it creates the class.

import struct
import zlib
from collections.abc import Callable
from dataclasses import field
from typing import Final

from saturnmq.protocol.bodies.fields import Body, body
from saturnmq.protocol.codes import ResponseCode, perm_text
from saturnmq.protocol.errors import BodyError, LocalProtocolError, response_error
from saturnmq.protocol.json_dialect import dumps, loads

REGISTER_BYTES_MAX: Final = 64 * 1024 * 1024  # decompressed; 300,000 long topic names take half of it
_PART_BYTES_MAX: Final = 65_536  # of the version, and of the filter servers
_LINE_BYTES_MAX: Final = 4096  # of a topic

_I32: Final = struct.Struct(">i")


@body(frozen=True)
class DataVersion(Body):
    """Version of a table. Two versions are equal when timestamp and counter are (NS-15)."""

    timestamp: int = 0
    counter: int = 0

    def next(self, now_ms: int) -> "DataVersion":
        """The version after one more change."""
        return DataVersion(now_ms, self.counter + 1)


@body()
class TopicConfig(Body):
    """Configuration of a topic on one broker."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False

    def describe(self) -> str:
        """The configuration in the format of Apache RocketMQ's log, error and command line texts."""
        return (
            f"TopicConfig [topicName={self.topic_name}, readQueueNums={self.read_queue_nums}, "
            f"writeQueueNums={self.write_queue_nums}, perm={perm_text(self.perm)}, "
            f"topicFilterType={self.topic_filter_type}, topicSysFlag={self.topic_sys_flag}, "
            f"order={'true' if self.order else 'false'}]"
        )


@body()
class TopicConfigTable(Body):
    """All topics of a broker (requests 21 and 103, topics.json)."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()


# Compressed registration (request 103 with compressed=true): zlib, level 9, of this layout, big-endian (docs/spec/01 section 2.4).
#   at  type  field           meaning
#    0  i32   version_bytes   then the DataVersion as JSON
#    .  i32   topics          count; then for each
#    .  i32   topic_bytes     then the text "name read write perm filterType"; sysFlag and order are not carried
#    .  i32   filters_bytes   then the filter server list as JSON
@body()
class RegisterBrokerBody(Body):
    """Body of REGISTER_BROKER (103)."""

    topic_config_serialize_wrapper: TopicConfigTable = field(default_factory=TopicConfigTable)
    filter_server_list: list[str] = field(default_factory=list)

    def encode_compressed(self) -> bytes:
        """Encode the compressed form. Raises LocalProtocolError for a topic name that contains a space."""
        table = self.topic_config_serialize_wrapper
        parts = [table.data_version.encode()]
        topics = [_topic_line(topic) for topic in table.topic_config_table.values()]
        filters = dumps(self.filter_server_list)
        packed = [_I32.pack(len(parts[0])), parts[0], _I32.pack(len(topics))]
        for line in (*topics, filters):
            packed += (_I32.pack(len(line)), line)
        return zlib.compress(b"".join(packed), 9)


def read_compressed_registration(
    data: bytes | None,
    take: Callable[[str, TopicConfig], None],
    *,
    bytes_max: int = REGISTER_BYTES_MAX,
    topics_max: int = 2**31 - 1,
) -> tuple[DataVersion, list[str]]:
    """Read the compressed form of RegisterBrokerBody and pass each topic to `take`; return the version and the filter servers.

    At most bytes_max bytes are decompressed. Raises BodyError, and ResponseError (SYSTEM_BUSY) for more than topics_max topics.
    """
    raw = _inflate(data or b"", bytes_max)
    version, at = _chunk(raw, 0, _PART_BYTES_MAX)
    count, at = _count(raw, at)
    if count > topics_max:
        raise response_error(ResponseCode.SYSTEM_BUSY, f"{count} topics of a broker exceed {topics_max} (topicsMax)")
    for _ in range(count):
        line, at = _chunk(raw, at, _LINE_BYTES_MAX)
        topic = _topic_of_line(line)
        take(topic.topic_name, topic)
    filters, at = _chunk(raw, at, _PART_BYTES_MAX)
    if at != len(raw):
        raise BodyError(f"compressed registration has {len(raw) - at} bytes after its end")
    servers = loads(filters)
    if not isinstance(servers, list):
        raise BodyError("the filter servers of a compressed registration must be an array")
    return DataVersion.decode(version), [str(server) for server in servers]


def _topic_line(topic: TopicConfig) -> bytes:
    if " " in topic.topic_name:
        raise LocalProtocolError(f"topic name {topic.topic_name!r} has a space: it cannot be registered compressed")
    queues = f"{topic.read_queue_nums} {topic.write_queue_nums}"
    return f"{topic.topic_name} {queues} {topic.perm} {topic.topic_filter_type}".encode()


def _topic_of_line(line: bytes) -> TopicConfig:
    try:
        name, read, write, perm, filter_type = line.decode().split(" ")
        return TopicConfig(name, int(read), int(write), int(perm), filter_type)
    except ValueError as error:
        raise BodyError(f"topic {line[:80]!r} of a compressed registration is not five words") from error


def _inflate(data: bytes, bytes_max: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(data, bytes_max)
    except zlib.error as error:
        raise BodyError(f"compressed registration of {len(data)} bytes is not zlib: {error}") from error
    if inflater.unconsumed_tail:
        raise BodyError(f"compressed registration holds more than {bytes_max} bytes")
    if not inflater.eof:
        raise BodyError(f"compressed registration of {len(data)} bytes is cut")
    return raw


def _count(raw: bytes, at: int) -> tuple[int, int]:
    if len(raw) - at < 4:
        raise BodyError(f"compressed registration ends at byte {len(raw)}")
    (count,) = _I32.unpack_from(raw, at)
    at += 4
    if not 0 <= count <= len(raw) - at:
        raise BodyError(f"compressed registration claims {count} at byte {at - 4}, {len(raw) - at} bytes are left")
    return count, at


def _chunk(raw: bytes, at: int, bytes_max: int) -> tuple[bytes, int]:
    count, at = _count(raw, at)
    if count > bytes_max:
        raise BodyError(
            f"compressed registration has a part of {count} bytes at byte {at}, at most {bytes_max} are allowed"
        )
    return raw[at : at + count], at + count


@body(aliases={"topic_sys_flag": ("topicSynFlag",)})
class QueueData(Body):
    """Queues of a topic on one broker."""

    broker_name: str
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


@body()
class BrokerData(Body):
    """Addresses of a broker name by broker id; id 0 is the master."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = field(default_factory=dict)


@body()
class TopicRouteData(Body):
    """Route of a topic: its queues and brokers (105)."""

    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None


@body()
class ClusterInfo(Body):
    """Brokers by name and broker names by cluster (106)."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


@body()
class KVTable(Body):
    """Text values by name (28, 103, 219)."""

    table: dict[str, str] = field(default_factory=dict)


@body()
class TopicList(Body):
    """Topic names (206, 224, 304, 305, 311..313)."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None
