"""What a test itself has logged."""

from __future__ import annotations

import threading

import pytest


def own_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Messages of this thread: clients that earlier tests of the process left in other threads log at any time."""
    return [record.getMessage() for record in caplog.records if record.thread == threading.get_ident()]
