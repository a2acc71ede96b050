"""Lookup of the process that listens on a port, in a fake and in the real /proc."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from saturnmq.net.port_holder import port_holder

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def fake_proc(folder: Path, sockets: dict[str, list[tuple[int, str, int]]], owners: dict[int, tuple[str, int]]) -> Path:
    """Create a /proc tree. sockets: (port, state, inode) by table. owners: (program, inode) by process id."""
    (folder / "net").mkdir(parents=True)
    for table, rows in sockets.items():
        lines = [
            f"   0: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0 0 {inode} 1\n"
            for port, state, inode in rows
        ]
        (folder / "net" / table).write_text(HEAD + "".join(lines))
    for pid, (program, inode) in owners.items():
        (folder / str(pid) / "fd").mkdir(parents=True)
        (folder / str(pid) / "fd" / "3").symlink_to(f"socket:[{inode}]")
        (folder / str(pid) / "comm").write_text(f"{program}\n")
    (folder / "uptime").write_text("1 1\n")
    return folder


@pytest.mark.spec("UX-09")
def test_port_holder_finds_listener_not_connections(tmp_path: Path) -> None:
    sockets = {"tcp": [(9876, "01", 5), (9876, "0A", 6), (9877, "0A", 7)], "tcp6": [(9878, "0A", 8)]}
    proc = fake_proc(tmp_path / "proc", sockets, {40: ("client", 5), 41: ("java", 6), 42: ("nginx", 7), 43: ("six", 8)})
    assert port_holder(9876, proc) == "process 41 (java)"
    assert port_holder(9878, proc) == "process 43 (six)"


@pytest.mark.spec("UX-09")
def test_port_holder_names_up_to_three_processes(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path / "proc", {"tcp": [(80, "0A", 6)]}, dict.fromkeys((9, 10, 11, 12), ("worker", 6)))
    assert port_holder(80, proc) == "process 9 (worker), process 10 (worker), process 11 (worker)"


@pytest.mark.spec("UX-09")
def test_port_holder_of_invisible_process_is_generic(tmp_path: Path) -> None:
    assert port_holder(80, fake_proc(tmp_path / "hidden", {"tcp": [(80, "0A", 6)]}, {})) == "another process"
    assert port_holder(80, tmp_path / "absent") == "another process"


@pytest.mark.spec("UX-09")
def test_port_holder_finds_this_process_in_real_proc() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        assert port_holder(listening.getsockname()[1]).startswith(f"process {os.getpid()} (")
