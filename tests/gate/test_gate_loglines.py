"""Messages that a test compares are its own."""

from __future__ import annotations

import logging
import threading

import pytest

from loglines import own_messages


def test_messages_of_other_threads_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("saturnmq")
    stranger = threading.Thread(target=lambda: log.warning("routes not refreshed"))
    stranger.start()
    stranger.join()
    log.warning("one %s", "message")
    assert own_messages(caplog) == ["one message"] and len(caplog.messages) == 2
