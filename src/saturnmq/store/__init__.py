"""Commit log, consume queues, flush and recovery, with the original's file formats."""

from saturnmq.store.files.state_file import StateFile
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
    "wall_clock_ms",
]
