"""Applies the configuration in use to the connections of a member: whom it calls, and who may call it."""

from __future__ import annotations

import logging

from saturnmq.raft.core.configuration import Configuration
from saturnmq.raft.peers import Peers
from saturnmq.raft.settings import RaftSettings

log = logging.getLogger(__name__)


def use_members(settings: RaftSettings, peers: Peers, now: Configuration, former: dict[str, str]) -> None:
    """Connect to the members, and accept connections of their hosts.

    The hosts of dLegerPeers may connect too, unless the log says that a member was removed: a member that copies an early part of
    the log has an early configuration in use, and its leader may have joined later. former: members whose removal is not committed.
    """
    self_id = settings.self_id
    named = {name: address for name, address in settings.peers.items() if name == self_id or name not in now.removed}
    peers.replace({**named, **former, **now.addresses})
    log.info(
        "members of the group index=%s voters=%s learners=%s member=%s",
        *(now.index, ",".join(now.voters), ",".join(sorted(now.learners)), self_id),
    )
    if now.index >= 0 and set(now.addresses.items()) != set(settings.peers.items()):
        log.warning("dLegerPeers overridden by the log member=%s peers=%s", self_id, now.peers_text)
