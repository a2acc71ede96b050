"""Lets tests interrupt the programs that they start, also if the tests run in the background of a shell.

A shell starts background commands with SIGINT ignored, and every program inherits that.
"""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Handle SIGINT as in the foreground."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
