"""Composes the store of a slave: a `MessageStore` over a `SlaveLog`, filled by a `SlaveDispatch`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from saturnmq.replication.masterslave.dispatch import SlaveDispatch
from saturnmq.replication.masterslave.log import SlaveLog
from saturnmq.store import MessageStore, StoreSettings, wall_clock_ms
from saturnmq.store.files import capacity
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.record_sums import RecordSums


def slave_dispatch(settings: StoreSettings, clock_ms: Callable[[], int] = wall_clock_ms) -> SlaveDispatch:
    """The dispatch of a slave, with its log and its store, which is not open yet. A slave has no transient pool (MF-11)."""
    disk = Disk()
    slave_log = SlaveLog(
        settings.commit_log_dirs,
        settings.commit_log_bytes,
        disk,
        full=capacity.nearly_full,
        sums=RecordSums(settings.root, disk),
        read_only=settings.read_only_dirs,
    )
    settings = dataclasses.replace(settings, transient_pool_enable=False)
    return SlaveDispatch(slave_log, MessageStore(settings, log=slave_log, clock_ms=clock_ms, disk=disk))
