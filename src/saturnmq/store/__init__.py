"""The message store: commit log, consume queues, index, flush and recovery, in the file formats of Apache RocketMQ 4.9.7."""

from saturnmq.store.files.state_file import StateFile
from saturnmq.store.log.log import wait_confirmed
from saturnmq.store.results import GetResult, GetStatus, PutResult, PutStatus
from saturnmq.store.settings import FlushDiskType, StoreFailureAction, StoreProfile, StoreSettings
from saturnmq.store.store import MessageStore, wall_clock_ms

__all__ = [
    "FlushDiskType",
    "GetResult",
    "GetStatus",
    "MessageStore",
    "PutResult",
    "PutStatus",
    "StateFile",
    "StoreFailureAction",
    "StoreProfile",
    "StoreSettings",
    "wait_confirmed",
    "wall_clock_ms",
]
