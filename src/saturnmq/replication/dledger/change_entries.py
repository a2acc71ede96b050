"""Entries of the ledger that change a broker's topics and subscription groups instead of holding a message.

Such an entry is a rolled-back message, as the no-op of a new leader: no member dispatches it to a consume queue or the index, a
Java member neither (DL-X04). Its topic has a character that no broker accepts in a name, so that no client can send one. Its body
is JSON:

    kind     "topic" or "group"
    name     of the topic or group
    config   its settings, as in topics.json or subscriptionGroup.json; null: it was deleted
    before   version of the leader's table before the change
    after    and after it

A change that a member does not understand is skipped, with a warning: a later version wrote it.

Requirements: DL-X04, DL-X18.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from saturnmq.protocol.bodies import DataVersion, SubscriptionGroupConfig, TopicConfig
from saturnmq.protocol.codes import ROLLED_BACK, TRANSACTION_MASK
from saturnmq.protocol.errors import BodyError, SaturnError
from saturnmq.protocol.json_dialect import loads
from saturnmq.protocol.message import ENTRY_HOST, Message

CHANGES_TOPIC: Final = "saturnmq.changes"


class Kind(Enum):
    """Subject of a change."""

    TOPIC = "topic"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a table. config: the new settings; None: deleted. before, after: versions of the leader's table."""

    kind: Kind
    name: str
    config: TopicConfig | SubscriptionGroupConfig | None
    before: DataVersion
    after: DataVersion

    def encode(self) -> bytes:
        config = "null" if self.config is None else self.config.encode().decode()
        # Joined as text: the settings have an encoder of their own.
        head = json.dumps({"kind": self.kind.value, "name": self.name})[:-1]
        before, after = self.before.encode().decode(), self.after.encode().decode()
        return f'{head}, "config": {config}, "before": {before}, "after": {after}}}'.encode()

    @classmethod
    def decode(cls, body: bytes) -> Change:
        """Raises BodyError for anything else than a change that this version knows."""
        try:
            fields: Any = loads(body)  # text that cannot be written again as UTF-8 is replaced
            kind, name, config = Kind(fields["kind"]), fields["name"], fields["config"]
            if type(name) is not str:
                raise BodyError(f"the name of a change is no text: {name!r:.80}")
            settings: type[TopicConfig | SubscriptionGroupConfig]
            settings = TopicConfig if kind is Kind.TOPIC else SubscriptionGroupConfig
            parsed = None if config is None else settings.decode(_encoded(config))
            if isinstance(parsed, SubscriptionGroupConfig) and parsed.group_name != name:
                raise BodyError(f"group {name!r:.80} and its settings have different names")
            before, after = (DataVersion.decode(_encoded(fields[key])) for key in ("before", "after"))
        except BodyError:
            raise
        # Whatever arbitrary JSON can cause: a change that cannot be read is skipped.
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SaturnError) as error:
            raise BodyError(f"a change of topics or groups cannot be read: {error!r:.200}") from None
        return cls(kind, name, parsed, before, after)


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def change_message(change: Change, now_ms: int) -> Message:
    """The message whose record is the entry of a change."""
    return Message(
        CHANGES_TOPIC,
        change.encode(),
        sys_flag=ROLLED_BACK,
        born_timestamp_ms=now_ms,
        born_host=ENTRY_HOST,
        store_host=ENTRY_HOST,
    )


def is_change(message: Message) -> bool:
    """Whether a message of the log is a change of topics or groups."""
    return message.sys_flag & TRANSACTION_MASK == ROLLED_BACK and message.topic == CHANGES_TOPIC
