"""Preformatted pull responses equal the encoding of their fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.broker.requests.pull_answer import fields, frame
from saturnmq.protocol.codes import CommandFlag, RequestCode
from saturnmq.protocol.frames.command import Command, Serialization, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder

offsets = st.one_of(st.integers(-2, 1200), st.integers(-(2**63), 2**63 - 1), st.sampled_from([9, 10, 99, 100]))


@pytest.mark.spec("BP-05", "REM-04", "REM-05", "FUZ-04")
@given(
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([0, 19, 20, 21, 1]),
    st.sampled_from(
        ["FOUND", "OFFSET_OVERFLOW_ONE", "100%", "nextBeginOffset", '"opaque":1094861636,', "\u4e2d\u6587"]
    ),
    st.integers(0, 12),
    st.tuples(offsets, offsets, offsets),
    st.lists(st.binary(max_size=50), max_size=3),
    st.sampled_from(Serialization),
)
def test_pull_answers_equal_encoded_fields(
    opaque: int,
    code: int,
    remark: str,
    broker_id: int,
    places: tuple[int, int, int],
    pieces: list[bytes],
    serialization: Serialization,
) -> None:
    request = Command(RequestCode.PULL_MESSAGE, opaque=opaque, serialization=serialization)
    wanted = Command(
        code,
        ext=fields(broker_id, *places),
        body=b"".join(pieces) or None,
        opaque=opaque,
        flag=CommandFlag.RESPONSE,
        remark=remark,
        serialization=serialization,
    )
    made = frame(request, code, remark, broker_id, places, [memoryview(piece) for piece in pieces])
    assert made == encode_frame(wanted)
    assert FrameDecoder().feed(made) == [wanted]
