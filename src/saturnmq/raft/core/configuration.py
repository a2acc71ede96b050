"""Who the members of a group are: the value, and its history in the log.

A configuration is an entry of the log. It is in use from the moment it is appended, committed or not, and no longer when the entry
is truncated. Two configurations that follow each other differ by one member, so that any majority of one and any majority of the
other have a common member (the single-server change of the Raft thesis).

`Configurations` keeps each one that the log holds, and the last one before its begin: a peer whose log restarts at an entry
needs the one that was in use there. The caller keeps them in a file too, because retention deletes old entries. The file is written
before the log changes, and a crash may undo a truncation: so it holds a `ConfigurationGeneration` per truncation until the log is
synced again.

Requirements: DL-M05, DL-X21. Design: docs/decisions/0024-members.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.ids import NO_INDEX, LedgerIndex, Term

MEMBERS_MAX: Final = 64
ADDRESS: Final = re.compile(r"[^:;\s]{1,255}:\d{1,5}")


@dataclass(frozen=True, slots=True)
class Configuration:
    """addresses: member id -> host:port, of voters and learners. removed: ids of former members, which are not used again.

    index: of the entry; -1: the configuration of the file, which holds until the first change.
    """

    addresses: dict[str, str]
    learners: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    index: LedgerIndex = NO_INDEX

    @property
    def voters(self) -> tuple[str, ...]:
        return tuple(name for name in self.addresses if name not in self.learners)

    def with_learner(self, name: str, address: str) -> Configuration:
        return replace(self, addresses={**self.addresses, name: address}, learners=self.learners | {name})

    def promoted(self, name: str) -> Configuration:
        return replace(self, learners=self.learners - {name})

    def without(self, name: str) -> Configuration:
        addresses = {member: address for member, address in self.addresses.items() if member != name}
        return replace(self, addresses=addresses, learners=self.learners - {name}, removed=self.removed | {name})

    def fields(self) -> dict[str, Any]:
        """The value as plain data, for JSON."""
        return {
            "index": self.index,
            "peers": dict(self.addresses),
            "learners": sorted(self.learners),
            "removed": sorted(self.removed),
        }

    @classmethod
    def of_fields(cls, fields: Any) -> Configuration:
        """The inverse of `fields`. Raises ValueError."""
        if type(fields) is not dict:
            raise ValueError("a configuration must be an object")
        index, peers = fields.get("index", NO_INDEX), fields.get("peers")
        sets = [fields.get("learners", []), fields.get("removed", [])]
        # `type(...) is`: JSON's true is a Python int and would pass isinstance.
        if type(index) is not int or index < NO_INDEX or type(peers) is not dict:
            raise ValueError("a configuration must have an index and peers")
        if any(type(names) is not list for names in sets):
            raise ValueError("learners and removed must be lists")
        texts = [*peers, *peers.values(), *sets[0], *sets[1]]
        if any(type(text) is not str or not text for text in texts) or not 0 < len(peers) <= MEMBERS_MAX:
            raise ValueError(f"a configuration must have 1 to {MEMBERS_MAX} members with ids and addresses")
        if any(ADDRESS.fullmatch(address) is None for address in peers.values()):
            raise ValueError("the address of a member must be host:port")
        configuration = cls(dict(peers), frozenset(sets[0]), frozenset(sets[1]), LedgerIndex(index))
        # A proper subset: at least one member votes. A removed id must not come back, its old log and votes could.
        if not configuration.learners < set(peers) or configuration.removed & set(peers):
            raise ValueError("a configuration must have a voter; learners are members and removed ids are not")
        return configuration

    @property
    def peers_text(self) -> str:
        """The members in the form of dLegerPeers."""
        return ";".join(f"{name}-{address}" for name, address in self.addresses.items())


@dataclass(frozen=True, slots=True)
class ConfigurationGeneration:
    """The configurations of the log as it was at one time. begin: index and term of the entry at which it restarted, if it did."""

    configurations: tuple[Configuration, ...] = ()
    begin: tuple[LedgerIndex, Term] | None = None


class ConfigurationCodec(Protocol):
    """Encoding of a configuration as the body of an entry. decode: None for every other body; the index is not part of it."""

    def encode(self, configuration: Configuration) -> bytes: ...

    def decode(self, body: bytes) -> Configuration | None: ...


class Configurations:
    """The configurations of one log, by index. codec: None if the bodies are opaque; then there is only the initial one."""

    def __init__(self, initial: Configuration, codec: ConfigurationCodec | None) -> None:
        self.initial = initial
        self.codec = codec
        self.history = [initial]

    @property
    def newest(self) -> Configuration:
        return self.history[-1]

    @property
    def changes(self) -> tuple[Configuration, ...]:
        """Those of the log, without the initial one."""
        return tuple(configuration for configuration in self.history if configuration.index >= 0)

    def load(
        self,
        stored: Sequence[ConfigurationGeneration],
        begin: LedgerIndex,
        entry: Callable[[LedgerIndex], Entry | None],
    ) -> None:
        """Take over what the file holds; begin: of the log, -1 if it is empty.

        Of entries in the log, those that are the same there, whichever generation has them: the log lost the others, or never got
        them. Of earlier ones, those of the newest generation that this log can be. A damaged entry is what that generation says:
        it is repaired while the member runs. Without a file nothing is read.
        """
        damaged: set[int] = set()

        def read(index: LedgerIndex) -> Entry | None:
            try:
                return entry(index)
            except CorruptRecord:
                damaged.add(index)
                return None

        # The term of the first entry is needed only for a log that has restarted: an index alone may be that of another
        # history.
        first = read(begin) if begin >= 0 and any(generation.begin is not None for generation in stored) else None
        fits = [
            generation for generation in stored if generation.begin is None or _begins(generation.begin, begin, first)
        ]
        newest = fits[-1].configurations if fits else ()
        loaded = {configuration.index: configuration for configuration in newest if configuration.index < begin}
        for configuration in (
            # Every generation counts: the newest may describe a truncation that the crash has undone.
            each
            for generation in stored
            for each in generation.configurations
            if each.index >= begin
        ):
            held = read(configuration.index)
            if (
                configuration in newest
                if configuration.index in damaged
                else held is not None and self._of(held) == configuration
            ):
                loaded[configuration.index] = configuration
        self.history = [self.initial, *(loaded[index] for index in sorted(loaded))]
        # Retention may have gone on after the file was written.
        self.trim(begin)

    def append(self, entries: Iterable[Entry]) -> bool:
        """Take over the configurations among appended entries; returns whether there are any."""
        if self.codec is None:
            return False
        before, decode = len(self.history), self.codec.decode
        for entry in entries:
            configuration = decode(entry.body)
            if configuration is not None:
                # In use from here on, committed or not (Raft thesis, 4.1).
                self.history.append(replace(configuration, index=entry.index))
        return len(self.history) > before

    def _of(self, entry: Entry) -> Configuration | None:
        configuration = self.codec.decode(entry.body) if self.codec is not None else None
        return replace(configuration, index=entry.index) if configuration is not None else None

    def cut(self, index: LedgerIndex) -> bool:
        """Forget those of entries from index on, which are truncated; returns whether there are any."""
        before = len(self.history)
        # The first one is no entry of this log and stays.
        while len(self.history) > 1 and self.history[-1].index >= index:
            self.history.pop()
        return len(self.history) < before

    def restart(self, configuration: Configuration | None) -> None:
        """The log restarts at an entry before which the leader uses the given configuration; None: the initial one."""
        self.history = [configuration or self.initial]

    def trim(self, begin: int) -> None:
        """Retention deleted the entries before begin: forget what was replaced before that."""
        # The one before `begin` is kept as long as it is in use there: a peer whose log restarts at `begin` needs it.
        while len(self.history) > 1 and self.history[1].index < begin:
            self.history.pop(0)

    def before(self, index: LedgerIndex) -> Configuration:
        """The one in use before the entry at index, which is not before the begin of the log."""
        return next(configuration for configuration in reversed(self.history) if configuration.index < index)


def _begins(named: tuple[LedgerIndex, Term], begin: LedgerIndex, first: Entry | None) -> bool:
    """Whether a log begins at the named entry. first: None if that is damaged or the log is empty."""
    # A damaged first entry has no term to compare; its index must do.
    return named == (first.index, first.term) if first is not None else named[0] == begin
