"""Log lines: text of a peer stays within the line and the value that it belongs to."""

from __future__ import annotations

import io
import logging

import pytest

from saturnmq.escaping import OneLine, escaped, quoted

FORGED = "T\n2026-01-01 00:00:00 INFO saturnmq.audit admin request account=root\r\x1b[2K\u2028\u202e\x00"


@pytest.mark.spec("SEC-20")
def test_log_line_has_one_line_whatever_a_peer_sent() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s %(message)s"))
    record = logging.LogRecord("saturnmq.net", logging.ERROR, "", 0, "handler failed error=%s", (FORGED,), None)
    handler.emit(record)
    assert stream.getvalue().count("\n") == 1
    assert "\\x0a2026" in stream.getvalue() and stream.getvalue().isprintable() is False
    assert all(part.isprintable() for part in stream.getvalue().splitlines())
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    handler.emit(record)
    later = stream.getvalue().split("\n")[2:-1]
    assert later and all(line.startswith("    ") for line in later), "a traceback is indented"


def test_quoted_text_is_one_word_or_a_json_string() -> None:
    assert quoted("127.0.0.1:10911") == "127.0.0.1:10911"
    assert quoted("a b=c\n") == '"a b=c\\n"'
    assert quoted("") == '""'
    assert quoted("x" * 300) == "x" * 200 + "..."
    assert escaped("topic-中 ok") == "topic-中 ok"
