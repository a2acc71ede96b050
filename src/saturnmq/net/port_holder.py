"""Finds the process that listens on a TCP port, from /proc on Linux; unknown on other systems.

Requirements: UX-09.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_LISTEN: Final = "0A"  # connection state in /proc/net/tcp
_PORT_HOLDERS_SHOWN_MAX: Final = 3


def port_holder(port: int, proc: Path = Path("/proc")) -> str:
    """ "process 4711 (java)", or "another process" if the owner is not visible: another user's process, or not Linux."""
    inodes = _listening(port, proc)
    holders = sorted(_owners(inodes, proc).items()) if inodes else []
    shown = [f"process {pid} ({name})" for pid, name in holders[:_PORT_HOLDERS_SHOWN_MAX]]
    return ", ".join(shown) or "another process"


def is_listened_on(port: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process of this machine listens on the port; False where that is not known."""
    return bool(_listening(port, proc))


def _listening(port: int, proc: Path) -> set[str]:
    """Inodes of the sockets that listen on the port."""
    # Columns: slot, local address:port in hex, remote address, state, queues, timer, retransmits, user, timeouts, inode.
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def _owners(inodes: set[str], proc: Path) -> dict[int, str]:
    """Name by process id of the processes that have one of these sockets open."""
    socket_links = {f"socket:[{inode}]" for inode in inodes}
    owners = {}
    for folder in proc.iterdir():
        # /proc has other entries beside the processes.
        if not folder.name.isdecimal():
            continue
        try:
            if any(str(fd.readlink()) in socket_links for fd in (folder / "fd").iterdir()):
                owners[int(folder.name)] = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:  # ended meanwhile, or owned by another user
            continue
    return owners
