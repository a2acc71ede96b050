"""What fuzzing and attacks found: one file in corpus/ for each frame, with the place that handles it now.

A file holds the port, the guarded place, whether the server closes the connection, and the frame in hexadecimal digits. To add one,
write the frame that failed; the test sends it to a broker or NameServer beside a client that behaves.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from saturnmq.escaping import OneLine
from saturnmq.protocol.errors import RemoteProtocolError
from saturnmq.protocol.frames.command import Command, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.testing import EmbeddedBroker

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.json"))
MARK = 1_234_567_890  # opaque of a request that follows each frame
DEADLINE_SECONDS = 30


def facts_of(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


async def exchange(address: str, frame: bytes) -> list[int]:
    """Send a frame and a harmless request; the opaques of all answers until that request's, or until the server closes."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    found: list[int] = []
    decoder = FrameDecoder()
    try:
        writer.write(frame + encode_frame(Command(9_999, opaque=MARK)))
        while MARK not in found and (data := await reader.read(65_536)):
            found += [command.opaque for command in decoder.feed(data)]
    except ConnectionError:
        pass
    finally:
        writer.close()
    return found


@pytest.mark.spec("FUZ-10")
@pytest.mark.parametrize("path", CORPUS, ids=[path.stem for path in CORPUS])
def test_a_frame_that_once_failed_does_no_harm(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    facts = facts_of(path)

    async def work() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), EmbeddedBroker() as server:
            address = server.broker_address if facts["port"] == "broker" else server.name_servers
            answers = await exchange(address, bytes.fromhex(facts["frame"]))
            assert (MARK not in answers) == facts["closes"]
            assert MARK in await exchange(server.broker_address, b""), "others are served"
            assert MARK in await exchange(server.name_servers, b"")

    asyncio.run(work())
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors, errors[0].getMessage()
    lines = [OneLine("%(message)s").format(record) for record in caplog.records]
    assert not any("\n" in line for line in lines), "no forged line"


@pytest.mark.spec("FUZ-10")
@pytest.mark.parametrize("path", CORPUS, ids=[path.stem for path in CORPUS])
def test_corpus_file_names_a_place_that_exists(path: Path) -> None:
    module, _, name = facts_of(path)["guards"].partition(":")
    assert resolve_name(f"{module}:{name}") is not None


@pytest.mark.parametrize("path", CORPUS, ids=[path.stem for path in CORPUS])
def test_corpus_frame_parses_or_is_refused(path: Path) -> None:
    frame = bytes.fromhex(facts_of(path)["frame"])
    for step in (1, 7, len(frame)):
        decoder = FrameDecoder()
        try:
            for at in range(0, len(frame), step):
                decoder.feed(frame[at : at + step])
        except (RemoteProtocolError, struct.error) as error:
            assert isinstance(error, RemoteProtocolError)
