"""The confirmation of a message by the store, as stated to senders that ask (`CONFIRMATION_FIELD`).

Requirements: API-10.
"""

from __future__ import annotations

from saturnmq.protocol.codes import Confirmation
from saturnmq.store import FlushDiskType, MessageStore


def confirmation_of(store: MessageStore, *, waits: bool) -> Confirmation:
    """The confirmation that a message put now has when its sender gets SEND_OK. waits: as its property WAIT says."""
    if store.quorum:
        synced = store.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        return Confirmation.FSYNC_MAJORITY if synced else Confirmation.MAJORITY
    if store.acknowledges_at_once or not waits:
        return Confirmation.MEMORY if store.log.pooled else Confirmation.PAGE_CACHE
    if store.replicas is None:
        return Confirmation.FSYNC
    return Confirmation.SLAVE if store.confirms_at_once else Confirmation.FSYNC_AND_SLAVE
