"""Preformatted send responses equal the encoding of their fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.broker.requests.send_answer import SendAnswers
from saturnmq.broker.state.identity import Identity
from saturnmq.protocol.codes import CommandFlag, Confirmation
from saturnmq.protocol.frames.command import Command, Serialization, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.ids import offset_message_id
from saturnmq.protocol.message import Host

HOSTS = [Host("127.0.0.1", 10911), Host("37.37.37.37", 9509), Host("::1", 10911)]  # 37 is the percent sign
int32 = st.integers(-(2**31), 2**31 - 1)
offsets = st.one_of(st.integers(0, 1200), st.integers(0, 2**63 - 1), st.sampled_from([9, 10, 99, 100, 10**9]))


@pytest.mark.spec("SND-13", "REM-04", "REM-05", "FUZ-04")
@given(
    st.sampled_from(HOSTS),
    st.sampled_from(["DefaultRegion", "", "100%", "r\u00e9gion", '"opaque":1,', "0" * 37]),
    st.booleans(),
    st.lists(
        st.tuples(int32, st.integers(0, 300), offsets, offsets, st.sampled_from(Serialization)), min_size=1, max_size=6
    ),
)
def test_send_answers_equal_encoded_fields(
    host: Host, region: str, traced: bool, sends: list[tuple[int, int, int, int, Serialization]]
) -> None:
    answers = SendAnswers(region, traced, Identity(host))
    for opaque, queue_id, queue_offset, physical_offset, serialization in sends:
        ext = {
            "MSG_REGION": region,
            "TRACE_ON": "true" if traced else "false",
            "msgId": offset_message_id(host, physical_offset),
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
        }
        wanted = Command(0, ext=ext, opaque=opaque, flag=CommandFlag.RESPONSE, serialization=serialization)
        frame = answers.single_frame(serialization, opaque, queue_id, queue_offset, physical_offset)
        assert frame == encode_frame(wanted)
        assert FrameDecoder().feed(frame) == [wanted]
        assert answers.batch(serialization, opaque, queue_id, queue_offset, (physical_offset,)) == frame
        stated = answers.stating(Confirmation.FSYNC).single_frame(
            serialization, opaque, queue_id, queue_offset, physical_offset
        )
        assert {c.opaque: c.ext for c in FrameDecoder().feed(stated)} == {opaque: ext | {"confirmation": "fsync"}}


@pytest.mark.spec("BAT-05", "SND-13")
def test_batch_answer_has_all_message_ids() -> None:
    answers = SendAnswers("r", True, Identity(Host("127.0.0.1", 10911)))
    (command,) = FrameDecoder().feed(answers.batch(Serialization.JSON, 1, 2, 3, (16, 255)))
    assert command.ext["msgId"] == "7F00000100002A9F0000000000000010,7F00000100002A9F00000000000000FF"


@pytest.mark.spec("SND-13")
def test_frames_of_answers_are_bounded() -> None:
    answers = SendAnswers("r", True, Identity(Host("127.0.0.1", 10911)))
    for queue_id in range(5000):
        for serialization in Serialization:
            (command,) = FrameDecoder().feed(answers.single_frame(serialization, 1, queue_id, queue_id, 1))
            assert command.ext["queueId"] == command.ext["queueOffset"] == str(queue_id)
    assert len(answers.frames) <= 4096
