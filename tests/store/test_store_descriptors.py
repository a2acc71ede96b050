"""A process without free descriptors: the store waits for them, serves meanwhile, and loses nothing."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_store import bodies, message, opened

from saturnmq.protocol.errors import DiskFull, OutOfDescriptors, StoreError
from saturnmq.store import FlushDiskType, PutStatus
from saturnmq.store.files.disk import Disk
from waiting import until

DESCRIPTORS = 96


def take_all() -> list[socket.socket]:
    """Open idle sockets until the process has no descriptor left."""
    taken = []
    while True:
        try:
            taken.append(socket.socket())
        except OSError as error:
            assert error.errno == errno.EMFILE
            return taken


async def starved_store(root: Path) -> None:
    """The body of the child process: an honest producer goes on while idle sockets hold every descriptor."""
    fast: dict[str, Any] = {"flush_queue_interval_ms": 5, "flush_queue_thorough_ms": 20, "flush_interval_ms": 2}
    store = opened(root, flush_disk_type=FlushDiskType.SYNC_FLUSH, commit_log_file_bytes=2**16, **fast)
    await store.start()
    sent = [b"%04d" % n for n in range(40)]
    for body in sent[:20]:
        assert await store.wait_confirmed(store.put(message(body))) is PutStatus.PUT_OK
    idle = take_all()
    seen = logging.getLogger("saturnmq.store").handlers[0].seen  # type: ignore[attr-defined]
    assert not seen
    for body in sent[20:]:  # new queues too: their files cannot be created now
        put = store.put(message(body, properties=b"KEYS\x01k"))
        assert await store.wait_confirmed(put) is PutStatus.PUT_OK, "an honest send is acknowledged"
        other = store.put(message(body, "Other"))
        assert other.status is PutStatus.PUT_OK, other
    await until(lambda: any("no descriptor for store files" in text for text in seen))
    assert bodies(store) == sent
    refused = 0
    while refused < 100:  # the next commit log file cannot be created either: a temporary refusal
        put = store.put(message(b"x" * 4000, "Big"))
        if put.status is not PutStatus.PUT_OK:
            assert put.status is PutStatus.SERVICE_NOT_AVAILABLE and "Too many open files" in put.reason, put
            refused += 1
    assert store.failure is None and len(seen) < 20, seen[:20]
    for one in idle:
        one.close()
    await until(lambda: store.put(message(b"after")).status is PutStatus.PUT_OK)
    await store.write_all()
    await until(lambda: store.checkpoint.note is not None and store.checkpoint.note.dispatched == store.log.end)
    await store.stop()
    assert store.failure is None and not (root / "abort").exists()
    again = opened(root, commit_log_file_bytes=2**16)
    found = bodies(again)
    assert found[:40] == sent and set(found[40:]) == {b"after"} and bodies(again, "Other") == sent[20:]
    again.close_files()


class Lines(logging.Handler):
    """Keeps the text of what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


@pytest.mark.spec("CQ-09", "DUR-06")
def test_idle_sockets_on_all_descriptors_do_not_stop_the_store(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS)),
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.spec("DUR-06")
@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EMFILE, OutOfDescriptors),
        (errno.ENFILE, OutOfDescriptors),
        (errno.ENOMEM, OutOfDescriptors),
        (errno.ENOSPC, DiskFull),
        (errno.EACCES, StoreError),
        (errno.EIO, StoreError),
    ],
)
def test_error_of_open_and_create_is_classified(
    tmp_path: Path, number: int, kind: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, tries = Disk(), []

    def fail(*_: object) -> int:
        tries.append(1)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fail)
    monkeypatch.setattr("saturnmq.store.files.disk._OPEN_PAUSES_S", (0, 0))
    for call in (lambda: disk.open(tmp_path / "f"), lambda: disk.create(tmp_path / "f", 1, allocate=False)):
        with pytest.raises(StoreError, match=os.strerror(number)) as raised:
            call()
        assert type(raised.value) is kind
    assert len(tries) == (6 if kind is OutOfDescriptors else 2)  # only missing descriptors are tried again


async def test_event_loop_never_waits_for_a_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def fail(*_: object) -> int:
        tries.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(OutOfDescriptors):
        Disk().open(tmp_path / "f")
    assert len(tries) == 1


if __name__ == "__main__":
    logging.getLogger("saturnmq.store").addHandler(Lines())
    logging.getLogger("saturnmq.store").propagate = False
    asyncio.run(starved_store(Path(sys.argv[1])))
