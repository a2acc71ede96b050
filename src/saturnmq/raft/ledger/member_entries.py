"""Configurations of a group as messages in the log, and the state file `members` that keeps them when the log is trimmed.

The body of such an entry is a whole message, so that every tool and a Java member can read the log: a rolled-back message of a
system topic, which no member dispatches to consume queues or index. Its prepared transaction offset is MARK. A producer cannot set
that field, so no client of a broker can forge an entry.

Requirements: DL-M05, DL-X21, DL-X16. Design: docs/decisions/0024-members.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from saturnmq.protocol.codes import SysFlag
from saturnmq.protocol.errors import MessageError
from saturnmq.protocol.message import ENTRY_HOST, Message, decode_record, encode_record, position_of
from saturnmq.raft.core.configuration import Configuration, ConfigurationGeneration
from saturnmq.raft.core.ids import LedgerIndex, Term
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.state_file import StateFile

MEMBERS_TOPIC: Final = "rmq_sys_SATURNMQ_MEMBERS"
MARK: Final = int.from_bytes(b"SMQ-MBRS", "big")
_MARK_BYTES: Final = MARK.to_bytes(8, "big")
_MARK_AT: Final = slice((_AT := position_of("prepared_transaction_offset")), _AT + 8)


class MessageCodec:
    """Configurations as messages; implements `raft.core.configuration.ConfigurationCodec`. clock_ms: time of the message."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms

    def encode(self, configuration: Configuration) -> bytes:
        fields = configuration.fields()
        # The index is the entry's own, known only when it is appended.
        del fields["index"]
        now_ms = self._clock_ms()
        return encode_record(
            Message(
                MEMBERS_TOPIC,
                json.dumps(fields, separators=(",", ":"), sort_keys=True).encode(),
                # Java members and tools skip rolled-back messages in dispatch, so this one reaches no queue and no index.
                sys_flag=SysFlag.ROLLBACK,
                born_timestamp_ms=now_ms,
                born_host=ENTRY_HOST,
                store_host=ENTRY_HOST,
                store_timestamp_ms=now_ms,
                prepared_transaction_offset=MARK,
            )
        )

    def decode(self, body: bytes) -> Configuration | None:
        """None for every other message. Hot path: every appended entry is passed through it."""
        # Eight bytes compared before anything is decoded: nearly every entry is a client's message.
        if body[_MARK_AT] != _MARK_BYTES:
            return None
        try:
            message = decode_record(body)
            if message.topic != MEMBERS_TOPIC or message.prepared_transaction_offset != MARK:
                return None
            fields: Any = json.loads(bytes(message.body))
            # A placeholder; `Configurations.append` sets the index of the entry.
            return Configuration.of_fields(fields | {"index": -1})
        except (MessageError, ValueError, TypeError, RecursionError):
            return None


class MembersFile:
    """The file `members` next to `currterm`: the configurations of the log, and of what it was before an unsynced truncation."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._file = StateFile(folder / "members", disk)

    def write(self, generations: Sequence[ConfigurationGeneration]) -> None:
        """Replace the file atomically and durably. Raises StoreError."""
        fields = {
            "generations": [
                {
                    "configurations": [configuration.fields() for configuration in generation.configurations],
                    "begin": generation.begin,
                }
                for generation in generations
            ]
        }
        self._file.write(json.dumps(fields, indent=1, sort_keys=True).encode() + b"\n")

    def read(self) -> tuple[ConfigurationGeneration, ...]:
        """The stored generations, oldest first; none in a group that never changed. Raises CorruptRecord, StoreError."""
        return self._file.read(_parse) or ()


def _parse(data: bytes) -> tuple[ConfigurationGeneration, ...]:
    return tuple(_generation(fields) for fields in json.loads(data)["generations"])


def _generation(fields: dict[str, Any]) -> ConfigurationGeneration:
    configurations = tuple(Configuration.of_fields(stored) for stored in fields["configurations"])
    indexes = [configuration.index for configuration in configurations]
    # `load` takes them in this order, the initial configuration (index -1) is never stored.
    if indexes != sorted(set(indexes)) or (indexes and indexes[0] < 0):
        raise ValueError("the configurations are not in the order of their indexes")
    begin = fields["begin"]
    if begin is None:
        return ConfigurationGeneration(configurations)
    index, term = (int(number) for number in begin)
    return ConfigurationGeneration(configurations, (LedgerIndex(index), Term(term)))
