"""Consumers that do not answer leave permits for calls to others."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from saturnmq.broker.state.relays import CALLS_MAX, Relays
from saturnmq.errors import NoPermit
from saturnmq.net import CallTimeout
from saturnmq.protocol.errors import ResponseError


class Consumer:
    def __init__(self, address: str) -> None:
        self.remote_address = address
        self.attributes: dict[str, object] = {}


def test_a_consumer_has_a_bounded_number_of_calls() -> None:
    relays, silent, honest = Relays(64), Consumer("127.0.0.1:1"), Consumer("127.0.0.1:2")
    with ExitStack() as calls:
        for _ in range(CALLS_MAX):
            calls.enter_context(relays.call(silent))
        with pytest.raises(ResponseError, match=f"8 calls wait for its answer, at most {CALLS_MAX}"):
            calls.enter_context(relays.call(silent))
        calls.enter_context(relays.call(honest))
    with relays.call(silent):
        pass


def test_a_consumer_that_let_a_call_time_out_has_one_at_a_time() -> None:
    relays, silent = Relays(64), Consumer("127.0.0.1:1")
    with pytest.raises(CallTimeout), relays.call(silent):
        raise CallTimeout("silent")
    with relays.call(silent), pytest.raises(ResponseError, match="has not answered the last one"), relays.call(silent):
        pass
    with relays.call(silent), relays.call(silent):  # it answered the one before
        pass


def test_a_consumer_that_was_not_asked_is_not_silent() -> None:
    relays, consumer = Relays(64), Consumer("127.0.0.1:1")
    with pytest.raises(NoPermit), relays.call(consumer):
        raise NoPermit("all are taken")
    with relays.call(consumer), relays.call(consumer):
        pass


def test_consumers_of_one_address_leave_half_of_the_permits() -> None:
    relays = Relays(64)
    with ExitStack() as calls:
        for port in range(32):
            calls.enter_context(relays.call(Consumer(f"10.0.0.1:{port}")))
        with pytest.raises(ResponseError, match="consumers of its address"):
            calls.enter_context(relays.call(Consumer("10.0.0.1:99")))
        calls.enter_context(relays.call(Consumer("10.0.0.2:1")))
