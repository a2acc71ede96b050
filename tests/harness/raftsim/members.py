"""Configurations in the log of a simulated group: one line of text per entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from saturnmq.raft.core.configuration import Configuration

if TYPE_CHECKING:
    from harness.raftsim.process import Member

_MARK: Final = b"members "


class SimpleCodec:
    """Implements `raft.core.configuration.Codec`."""

    def encode(self, configuration: Configuration) -> bytes:
        learners, removed = (" ".join(sorted(names)) for names in (configuration.learners, configuration.removed))
        return _MARK + f"{' '.join(configuration.addresses)}|{learners}|{removed}".encode()

    def decode(self, body: bytes) -> Configuration | None:
        if not body.startswith(_MARK):
            return None
        members, learners, removed = (part.split() for part in body[len(_MARK) :].decode().split("|"))
        return Configuration({name: f"{name}:1" for name in members}, frozenset(learners), frozenset(removed))


SIMPLE: Final = SimpleCodec()


def initial_of(member: Member) -> Configuration:
    """The configuration in a member's settings."""
    addresses = {name: f"{name}:1" for name in member.named}
    return Configuration(addresses, frozenset((member.name,)) if member.learner else frozenset())
