"""The state of a group's broker that is not in the log, as one member reports it to another over the DLedger port.

    u32   length of the head
          head: JSON with group, member, leads, term, timer, sizes
          topics, groups, offsets, delays: bodies of the answers to codes 21, 201, 43 and 45, of the sizes in the head

Any bytes either parse or raise BodyError.

Requirements: DL-C07, DL-X18, SEC-18.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Final

from saturnmq.protocol.errors import BodyError

_LENGTH: Final = struct.Struct(">I")
_TABLES: Final = 4


@dataclass(frozen=True, slots=True)
class GroupState:
    """leads: the member leads in this term and serves. timer: progress of timed messages, as JSON; "" if it is not known."""

    group: str
    member: str
    leads: bool
    term: int
    timer: str
    topics: bytes
    groups: bytes
    offsets: bytes
    delays: bytes

    def encode(self) -> bytes:
        tables = (self.topics, self.groups, self.offsets, self.delays)
        fields = {
            "group": self.group,
            "member": self.member,
            "leads": self.leads,
            "term": self.term,
            "timer": self.timer,
            "sizes": [len(table) for table in tables],
        }
        head = json.dumps(fields, separators=(",", ":")).encode()
        return b"".join((_LENGTH.pack(len(head)), head, *tables))

    @classmethod
    def decode(cls, body: bytes) -> GroupState:
        """Raises BodyError."""
        try:
            (length,) = _LENGTH.unpack_from(body)
            at = _LENGTH.size + length
            fields = json.loads(body[_LENGTH.size : at])
            texts = [fields["group"], fields["member"], fields["timer"]]
            leads, term, sizes = fields["leads"], fields["term"], fields["sizes"]
        except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
            raise BodyError(f"the state of a member cannot be read: {error}") from None
        if (
            any(type(text) is not str for text in texts)
            or (type(leads), type(term), type(sizes)) != (bool, int, list)
            or len(sizes) != _TABLES
            or any(type(size) is not int or size < 0 for size in sizes)
            or at + sum(sizes) != len(body)
        ):
            raise BodyError("the state of a member has a head that does not describe it")
        tables = []
        for size in sizes:
            tables.append(body[at : at + size])
            at += size
        group, member, timer = texts
        return cls(group, member, leads, term, timer, *tables)
