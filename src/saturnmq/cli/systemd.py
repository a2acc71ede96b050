"""Notifies systemd (sd_notify(3)) that a server is ready and its event loop runs.

A unit with `Type=notify` gets `READY=1`; with `WatchdogSec=` a timer of the event loop sends `WATCHDOG=1` twice per period, so a
server whose loop is blocked is restarted. Without NOTIFY_SOCKET nothing is sent.

Requirements: INT-15.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send a state to the service manager, if there is one. Failures are ignored: a server outlives its manager."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # a name of the abstract namespace
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        channel.sendto(state.encode(), address)


def report_ready() -> None:
    """Report this process as ready, and keep the watchdog fed by the running event loop."""
    if not os.environ.get("NOTIFY_SOCKET"):
        return
    notify("READY=1")
    if seconds := watchdog_seconds():
        _feed(asyncio.get_running_loop(), seconds / 2)


def watchdog_seconds() -> float:
    """The period of the service manager's watchdog; 0 if it has none for this process."""
    period_us = os.environ.get("WATCHDOG_USEC", "")
    own_id = str(os.getpid())
    if not period_us.isdecimal() or os.environ.get("WATCHDOG_PID", own_id) != own_id:
        return 0.0
    return int(period_us) / 1e6


def _feed(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    notify("WATCHDOG=1")
    loop.call_later(seconds, _feed, loop, seconds)
