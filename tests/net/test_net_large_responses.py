"""Responses above the frame limit, and the log lines of requests that fail.

Requirements: REM-02, REM-11, LIM-13.
"""

from __future__ import annotations

import logging

import pytest
from netpair import pair

from saturnmq.log_limit import LINES_MAX, LogLimit
from saturnmq.net import Connection
from saturnmq.protocol.errors import MessageError
from saturnmq.protocol.frames.command import FRAME_BYTES_MAX, Command


def sized(connection: Connection, request: Command) -> Command:
    return request.reply(body=b"x" * int(request.ext["size"]))


async def test_response_above_the_frame_limit_is_an_error_not_a_broken_frame() -> None:
    """The client closed its connection after the length field, and all its other requests failed with it."""
    async with pair(sized) as p:
        assert (await p.call(Command(43, ext={"size": "1"}))).code == 0
        (connection,) = p.client.connections
        for size in (FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1_000_000):
            refused = await p.call(Command(43, ext={"size": str(size)}))
            assert refused.code == 1 and f"at most {FRAME_BYTES_MAX} are allowed" in (refused.remark or "")
        answer = await p.call(Command(43, ext={"size": str(FRAME_BYTES_MAX - 1000)}))
        assert answer.body is not None and len(answer.body) == FRAME_BYTES_MAX - 1000
        assert list(p.client.connections) == [connection], "the same connection serves the next request"


async def test_failed_requests_take_a_bounded_number_of_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Each wrote a line with what the peer had sent, up to the size of a header."""
    caplog.set_level(logging.INFO, "saturnmq.net.requests")

    def fail(connection: Connection, request: Command) -> Command:
        if "x" in request.ext:
            raise MessageError(f"no topic {request.ext['x']}")
        return request.reply()

    async with pair(fail) as p:
        for _ in range(100):
            refused = await p.call(Command(10, ext={"x": "y" * 10_000}))
            assert refused.code == 1 and len(refused.remark or "") > 10_000
        assert (await p.call(Command(10))).code == 0
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("handler failed")]
    assert 1 <= len(lines) <= 10 and max(map(len, lines)) < 1000


def test_log_limit_allows_a_line_per_key_and_few_in_all() -> None:
    now = 0.0
    limit = LogLimit(lambda: now)
    assert [limit.suppressed("a"), limit.suppressed("a"), limit.suppressed("b")] == [0, None, 1]
    assert sum(limit.suppressed(str(n)) is not None for n in range(1000)) == LINES_MAX - 2
    now = 1.0
    assert limit.suppressed("a") == 1000 - (LINES_MAX - 2)


@pytest.mark.spec("LIM-08")
def test_log_limit_allows_no_second_line_within_a_second_of_the_first() -> None:
    now = 0.0
    limit = LogLimit(lambda: now)
    assert limit.suppressed("a") == 0
    now = 0.5
    assert limit.suppressed("b") == 0
    now = 1.4
    assert [limit.suppressed("a"), limit.suppressed("b")] == [0, None]
    now = 1.5
    assert limit.suppressed("b") == 1
