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
    period_us = os.environ.get("WATCHDOG_USEC", "")
    if (
        period_us.isdecimal()
        and int(period_us)
        and os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    ):
        _feed(asyncio.get_running_loop(), int(period_us) / 2e6)


def _feed(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    notify("WATCHDOG=1")
    loop.call_later(seconds, _feed, loop, seconds)
