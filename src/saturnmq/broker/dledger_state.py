"""The state of a group's broker that is not in the log, as one member reports it to another over the DLedger port.

    u32   length of the head
          head: JSON with group, member, leads, term, timer, sizes, covered, complete, undecided; the last three were added later
          topics, groups, offsets, delays: bodies of the answers to codes 21, 201, 43 and 45, of the sizes in the head

Any bytes either parse or raise BodyError.

Requirements: DL-C07, DL-X18, SEC-18.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from saturnmq.protocol.errors import BodyError

_LENGTH: Final = struct.Struct(">I")
_TABLES: Final = 4


@dataclass(frozen=True, slots=True)
class MemberState:
    """leads: the member leads in this term and serves. timer: progress of timed messages, as JSON; "" if it is not known.

    covered: topics and groups have every change before this position of the log; -1: the member does not write changes to the log,
    as a Java broker and older versions. complete, undecided: see broker/table_changes.py.
    """

    group: str
    member: str
    leads: bool
    term: int
    timer: str
    topics: bytes
    groups: bytes
    offsets: bytes
    delays: bytes
    covered: int = -1
    complete: bool = True
    undecided: bool = False

    def encode(self) -> bytes:
        tables = (self.topics, self.groups, self.offsets, self.delays)
        fields = {
            "group": self.group,
            "member": self.member,
            "leads": self.leads,
            "term": self.term,
            "timer": self.timer,
            "sizes": [len(table) for table in tables],
            "covered": self.covered,
            "complete": self.complete,
            "undecided": self.undecided,
        }
        head = json.dumps(fields, separators=(",", ":")).encode()
        return b"".join((_LENGTH.pack(len(head)), head, *tables))

    @classmethod
    def decode(cls, body: bytes) -> MemberState:
        """Raises BodyError."""
        try:
            (length,) = _LENGTH.unpack_from(body)
            at = _LENGTH.size + length
            fields = json.loads(body[_LENGTH.size : at])
            texts = [fields["group"], fields["member"], fields["timer"]]
            leads, term, sizes = fields["leads"], fields["term"], fields["sizes"]
            covered, complete = fields.get("covered", -1), fields.get("complete", True)
            undecided = fields.get("undecided", False)
        except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BodyError(f"the state of a member cannot be read: {error}") from None
        if (
            any(type(text) is not str for text in texts)
            or (type(leads), type(term), type(sizes)) != (bool, int, list)
            or (type(covered), type(complete), type(undecided)) != (int, bool, bool)
            or len(sizes) != _TABLES
            or any(type(size) is not int or size < 0 for size in sizes)
            or at + sum(sizes) != len(body)
        ):
            raise BodyError("the state of a member has a head that does not describe it")
        ends = list(accumulate(sizes, initial=at))
        topics, groups, offsets, delays = (body[begin:end] for begin, end in pairwise(ends))
        group, member, timer = texts
        return cls(group, member, leads, term, timer, topics, groups, offsets, delays, covered, complete, undecided)
