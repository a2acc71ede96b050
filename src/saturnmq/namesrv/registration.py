"""Reads REGISTER_BROKER requests: the forms of the body, its limits, and the topics that the route table may take.

`parse` touches nothing but its arguments, so a large body is parsed in a thread.

Requirements: NS-13, LIM-05, LIM-13, SEC-01.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from typing import Final

from saturnmq.namesrv.routes import FLAGS_MAX, QUEUES_MAX, Queues, Registration, pack
from saturnmq.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    read_compressed_registration,
)
from saturnmq.protocol.codes import COMPLETE_FIELD, GROUP_LENGTH_MAX, RETRY_PREFIX, VERSION_REGISTER_BODY, ResponseCode
from saturnmq.protocol.crc import crc32
from saturnmq.protocol.errors import BodyError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h
from saturnmq.protocol.names import LEGAL_NAME

TOPICS_PER_NAME_MAX: Final = 300_000  # of one broker name; one step over twice as many takes 50 ms
_FILTERS_MAX: Final = 16  # filter servers of one broker
_FILTER_CHARS_MAX: Final = 255
_LARGE_BYTES: Final = 65_536  # a body of this size takes about 10 ms to parse
_NO_TOPIC_OBJECTS: Final = 100  # objects of a body that are no topics
_TOPIC_CHARS_MAX: Final = 4096
_SPACE: Final = r"\s{0,200}"
_TABLE: Final = re.compile(rf'"topicConfigTable"{_SPACE}:{_SPACE}\{{')
_MEMBER: Final = re.compile(rf'{_SPACE}"([^"\\]{{0,1024}})"{_SPACE}:{_SPACE}')
_END: Final = re.compile(rf"{_SPACE}([,}}])")
_DECODER: Final = json.JSONDecoder()
# A broker has a topic named after itself, by default its host.
_HOST_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*")
# A Java broker does not limit the retry topics of its groups.
_NAME_CHARS_MAX: Final = GROUP_LENGTH_MAX + len(RETRY_PREFIX)


def is_large(request: Command, header: h.RegisterBroker) -> bool:
    """Whether a body takes longer to parse than the event loop may be blocked. Decompresses at most 64 KiB of it."""
    body = request.body or b""
    if len(body) > _LARGE_BYTES or not header.compressed:
        return len(body) > _LARGE_BYTES
    try:
        # Never more than the limit, whatever the body claims.
        return len(zlib.decompressobj().decompress(body, _LARGE_BYTES)) == _LARGE_BYTES
    except zlib.error:
        return False  # `parse` reports it


class RegisteredTopics:
    """The topics of a registration that the route table takes. own: broker and cluster name, which may contain dots.

    ignored: number of those with an illegal name or number, which no client could use; first: the first of their names.
    """

    def __init__(self, own_names: tuple[str, str]) -> None:
        self.queues: Queues = {}
        self.ignored = 0
        self.first = ""
        self._own_names = own_names

    def take(self, name: str, config: TopicConfig) -> None:
        """Add one topic."""
        if self._is_usable(name, config):
            self.queues[name] = pack(config)
            return
        # Counted, not refused: the other topics of the broker must have a route.
        self.ignored += 1
        self.first = self.first or name

    def _is_usable(self, name: str, config: TopicConfig) -> bool:
        """Whether the name is legal and the topic has 1 to QUEUES_MAX queues.

        Either number may be 0: a topic that is drained has no write queues.
        """
        read, write = config.read_queue_nums, config.write_queue_nums
        if min(read, write) < 0 or not 1 <= max(read, write) <= QUEUES_MAX or len(name) > _NAME_CHARS_MAX:
            return False
        if not (0 <= config.perm <= FLAGS_MAX and 0 <= config.topic_sys_flag <= FLAGS_MAX):
            return False
        if LEGAL_NAME.fullmatch(name) is not None:
            return True
        # A broker's own topic may have dots.
        return name in self._own_names and _HOST_NAME.fullmatch(name) is not None


def parse(request: Command, header: h.RegisterBroker, topics_max: int) -> tuple[Registration, RegisteredTopics]:
    """The registration, and which of its topics were taken.

    Raises BodyError, ResponseError for a wrong checksum, more than topics_max topics, or filter servers out of range.
    """
    body = request.body or b""
    # As Java computes it; 0 means that there is none.
    if header.body_crc32 and header.body_crc32 != crc32(body) & 0x7FFFFFFF:
        raise response_error(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    topics = RegisteredTopics((header.broker_name, header.cluster_name))
    version, filters = _read(request, header, topics_max, topics.take)
    if filters is not None and (len(filters) > _FILTERS_MAX or max(map(len, filters), default=0) > _FILTER_CHARS_MAX):
        text = f"a broker has at most {_FILTERS_MAX} filter servers with addresses of {_FILTER_CHARS_MAX} characters"
        raise response_error(ResponseCode.SYSTEM_ERROR, text)
    registration = Registration(
        header.cluster_name,
        header.broker_name,
        header.broker_id,
        header.broker_addr,
        header.ha_server_addr,
        version,
        topics.queues,
        filters,
        complete=request.ext.get(COMPLETE_FIELD) == "true",
    )
    return registration, topics


def _read(
    request: Command, header: h.RegisterBroker, topics_max: int, take: Callable[[str, TopicConfig], None]
) -> tuple[DataVersion, list[str] | None]:
    """Pass each topic of the body to `take`; return the version and the filter servers, None if the body has none."""
    body = request.body or b""
    if not body:
        return DataVersion(0, 0), None
    # Older brokers send the table alone.
    new = request.version >= VERSION_REGISTER_BODY
    if new and header.compressed:
        return read_compressed_registration(body, take, topics_max=topics_max)
    # A cheap upper bound, before anything is parsed.
    objects = body.count(b"{")
    if objects > topics_max + _NO_TOPIC_OBJECTS:
        raise response_error(
            ResponseCode.SYSTEM_BUSY, f"about {objects} topics of a broker exceed {topics_max} (topicsMax)"
        )
    remaining_body = _read_topics(body, take) if len(body) > _LARGE_BYTES else body
    if not new:
        table, filters = TopicConfigTable.decode(remaining_body), None
    else:
        decoded = RegisterBrokerBody.decode(remaining_body)
        table, filters = decoded.topic_config_serialize_wrapper, decoded.filter_server_list
    for name, config in table.topic_config_table.items():
        take(name, config)
    return table.data_version, filters


def _read_topics(body: bytes, take: Callable[[str, TopicConfig], None]) -> bytes:
    """Pass the topics of a large JSON body to `take`, one by one; return the body without them.

    One call of the JSON parser for all of them would hold the interpreter, and so the event loop, for 100 ms. Raises BodyError.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise BodyError(f"registration of {len(body)} bytes is not UTF-8: {error}") from error
    # Near the beginning: the search must not walk 16 MiB.
    begin = _TABLE.search(text, 0, _LARGE_BYTES + len(_TABLE.pattern))
    if begin is None:
        raise BodyError(f"registration of {len(body)} bytes has no topicConfigTable")
    at, ended = begin.end(), False
    while not ended:
        member = _MEMBER.match(text, at)
        if member is None:
            raise BodyError(f"registration has no topic at character {at}: {text[at : at + 40]!r}")
        try:
            # Of a bounded part of the text: a copy of all that follows would take quadratic time.
            value, used = _DECODER.raw_decode(text[member.end() : member.end() + _TOPIC_CHARS_MAX])
        except (ValueError, RecursionError) as error:
            raise BodyError(f"topic {member[1][:80]!r} of a registration cannot be read: {error}") from error
        for config in TopicConfigTable.from_json({"topicConfigTable": {member[1]: value}}).topic_config_table.values():
            take(member[1], config)
        end = _END.match(text, member.end() + used)
        if end is None:
            raise BodyError(f"registration is cut after topic {member[1][:80]!r}")
        at, ended = end.end(), end[1] == "}"
    # The rest is small, and parsed in one step.
    remaining_text = text[: begin.end()] + "}" + text[at:]
    if len(remaining_text) > _LARGE_BYTES:
        raise BodyError(
            f"registration has {len(remaining_text)} characters beside its topics, at most {_LARGE_BYTES} are allowed"
        )
    return remaining_text.encode()
