"""The message store: commit log, consume queues, index, flush and recovery, in the file formats of Apache RocketMQ 4.9.7.

Names are imported on first access: a NameServer uses two modules of `store.files` and none of the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from saturnmq.store.files.state_file import StateFile
    from saturnmq.store.log.log import wait_confirmed
    from saturnmq.store.results import GetResult, GetStatus, PutResult, PutStatus
    from saturnmq.store.settings import FlushDiskType, StoreFailureAction, StoreProfile, StoreSettings
    from saturnmq.store.store import MessageStore, wall_clock_ms

_MODULE_OF: Final = {
    "FlushDiskType": "settings",
    "GetResult": "results",
    "GetStatus": "results",
    "MessageStore": "store",
    "PutResult": "results",
    "PutStatus": "results",
    "StateFile": "files.state_file",
    "StoreFailureAction": "settings",
    "StoreProfile": "settings",
    "StoreSettings": "settings",
    "wait_confirmed": "log.log",
    "wall_clock_ms": "store",
}

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


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    return value
