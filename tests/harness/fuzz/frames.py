"""Hostile frames: every code with values at their bounds, wrong lengths, repeated keys, and mutations of recorded frames.

A seed decides everything. After a frame whose outer length is wrong, nothing that follows on the connection can be understood, so
the sender closes it.

Requirements: FUZ-02.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from headertables import REQUEST_HEADERS
from saturnmq.protocol.codes import CommandFlag
from saturnmq.protocol.frames.command import Command, Serialization, encode_frame
from saturnmq.protocol.headers.fields import FieldSpec
from saturnmq.protocol.message import BatchItem, encode_batch

MUTATED_BYTES_MAX: Final = 4000
REPAIRED: Final = (
    0.75  # share of the mutated frames whose outer length is made right, so that the mutation reaches a parser
)
SOUND: Final = 0.94  # share of the frames that are requests; each of the others may end its connection
SIGNED: Final = 0.6  # share of the requests to a server with access control
LONG: Final = "x" * 5000

_NUMBERS: Final = ("0", "1", "-1", "2147483647", "-2147483648", "2147483648", "9223372036854775807", "-9223372036854775808",
                   "9" * 30, "", "abc", "1e9", "NaN", " 1", "+7", "0x10", "١", "1_000")  # fmt: skip
_TEXTS: Final = ("", "a", "FuzzTopic", "%RETRY%FuzzGroup", "%DLQ%FuzzGroup", "TBW102", "SCHEDULE_TOPIC_XXXX", "../../x", "a/b", "é",
                 "\0", "\n[ERROR] forged", "a b", LONG, "TAG", "SQL92", "*", "a || b", "a > 1 AND b IS NOT NULL", "null",
                 "127.0.0.1:1", "x\x01y\x02", "DELAY\x0118\x02", "TRAN_MSG\x01true\x02PGROUP\x01g\x02",
          "KEYS\x01" + "k " * 200)  # fmt: skip
_BOOLS: Final = ("true", "false", "TRUE", "maybe", "")
_INT32: Final = (0, 1, -1, 127, 128, 255, 256, 32767, 65535, 65536, 2**24 - 1, 2**24, 2**31 - 1, -(2**31))
_BODIES: Final = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b'{"clientID":"fuzz","producerDataSet":[],"consumerDataSet":[{"groupName":"FuzzGroup","subscriptionDataSet":[{}]}]}',
    b'{"consumerGroup":"FuzzGroup","clientId":"fuzz","mqSet":[{"brokerName":"b","queueId":-1,"topic":"../x"}]}',
    b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":1},"topicConfigTable":{"../x":{"readQueueNums":2000000000}}}}',
    b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:1,}}',
    b'{"a":' * 300 + b"1" + b"}" * 300,
    b'{"$ref":"$"}',
    b'"' + b"\\u0022" * 2000,
    zlib.compress(bytes(200_000)),
    b"listenPort=1\nstorePathRootDir=/\nbrokerPermission=99\n\\u00",
)


def recorded_frames(vectors: Path) -> list[bytes]:
    """One recorded frame per request code, direction, serialization and response code, of at most MUTATED_BYTES_MAX bytes."""
    found: dict[tuple[object, ...], bytes] = {}
    for path in sorted((vectors / "frames").glob("*.json")):
        for facts in json.loads(path.read_text())["frames"]:
            key = (facts["request_code"], facts["type"], facts["serialize"], facts["code"])
            if len(facts["hex"]) < 2 * MUTATED_BYTES_MAX:
                found.setdefault(key, bytes.fromhex(facts["hex"]))
    return list(found.values())


def mutate(raw: bytes, chance: random.Random) -> bytes:
    """A copy of raw with one to three changes: a bit, a byte, bytes removed or repeated, a 32-bit number at a bound."""
    out = bytearray(raw)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(out)) if out else 0
        match chance.randrange(5):
            case 0 if out:
                out[at] ^= 1 << chance.randrange(8)
            case 1 if out:
                out[at] = chance.choice(b'\x00\xff{}[]":,\\')
            case 2:
                del out[at : at + chance.randint(1, 8)]
            case 3:
                out[at:at] = out[at : at + chance.randint(1, 8)]
            case 4 if len(out) >= 4:
                struct.pack_into(">i", out, min(at, len(out) - 4), chance.choice(_INT32))
    return bytes(out)


def is_whole(raw: bytes) -> bool:
    """Whether the outer length of a frame is the number of bytes after it."""
    return len(raw) > 8 and struct.unpack_from(">i", raw)[0] == len(raw) - 4


class Frame(NamedTuple):
    """A hostile frame. whole: its outer length is right. sound: it is a request, so a server handles what follows it."""

    raw: bytes
    whole: bool
    sound: bool


class FrameMaker:
    """Makes frames for one kind of server. codes: the request codes that it serves. sign: signs a part of the requests."""

    def __init__(
        self,
        seed: int,
        codes: Sequence[int],
        recorded: Sequence[bytes],
        sign: Callable[[Command], None] | None = None,
    ) -> None:
        self._sign = sign
        self._chance = random.Random(seed)
        self._codes = list(codes)
        self._recorded = list(recorded)

    def frame(self) -> Frame:
        """The next frame."""
        chance = self._chance
        kind = chance.random()
        if kind < SOUND:
            return Frame(self._request(), whole=True, sound=True)
        if kind < 0.97:
            raw = self._mutated(chance.choice(self._recorded))
        elif kind < 0.98:
            raw = self._wrong_inner_length()
        elif kind < 0.995:
            raw = self._mutated(self._request())
        else:
            raw = chance.randbytes(chance.randint(1, 300))
        return Frame(raw, is_whole(raw), sound=False)

    # ---- one kind each

    def _mutated(self, frame: bytes) -> bytes:
        raw = mutate(frame, self._chance)
        if len(raw) > 8 and self._chance.random() < REPAIRED:
            raw = struct.pack(">i", len(raw) - 4) + raw[4:]
        return raw

    def _request(self) -> bytes:
        chance = self._chance
        code = chance.choice(self._codes) if chance.random() < 0.9 else chance.randint(-1, 70_000)
        cls = REQUEST_HEADERS.get(code)  # type: ignore[call-overload]
        specs: tuple[FieldSpec, ...] = cls.FIELDS if cls is not None else ()
        pairs = [(spec.wire, self._value(spec.kind)) for spec in specs if chance.random() < 0.93]
        if chance.random() < 0.1:
            pairs.append((chance.choice(_TEXTS), chance.choice(_TEXTS)))
        body = self._body()
        flag = chance.choices((0, int(CommandFlag.ONEWAY), int(CommandFlag.RESPONSE), 255), (90, 6, 3, 1))[0]
        opaque = chance.choice((0, -1, 2**31 - 1, chance.randrange(2**31)))
        if pairs and chance.random() < 0.05:
            return self._repeated_key(code, flag, opaque, pairs, body)
        form = chance.choice((Serialization.JSON, Serialization.ROCKETMQ))
        if form is Serialization.ROCKETMQ:
            code &= 0x7FFF  # 16 bits
        command = Command(code, opaque=opaque, flag=flag, ext=dict(pairs), body=body, serialization=form)
        if self._sign is not None and chance.random() < SIGNED:
            self._sign(command)
        return encode_frame(command)

    def _value(self, kind: str) -> str:
        chance = self._chance
        if kind in ("i32", "i64"):
            return str(chance.randint(0, 8)) if chance.random() < 0.7 else chance.choice(_NUMBERS)
        if kind == "bool":
            return chance.choice(_BOOLS)
        return "FuzzTopic" if chance.random() < 0.4 else chance.choice(_TEXTS)

    def _body(self) -> bytes:
        chance = self._chance
        match chance.randrange(6):
            case 0:
                return chance.randbytes(chance.randint(0, 200))
            case 1:
                return mutate(chance.choice(_BODIES), chance)
            case 2:
                items = [
                    BatchItem(b"body", b"KEYS\x01k\x02", chance.choice(_INT32)) for _ in range(chance.randint(0, 5))
                ]
                return mutate(encode_batch(items), chance) if chance.random() < 0.5 else encode_batch(items)
            case _:
                return chance.choice(_BODIES)

    def _repeated_key(self, code: int, flag: int, opaque: int, pairs: list[tuple[str, str]], body: bytes) -> bytes:
        """A frame whose JSON header has each field twice."""
        fields = ",".join(f"{json.dumps(key)}:{json.dumps(value)}" for key, value in pairs + pairs)
        header = f'{{"code":{code},"code":{code},"extFields":{{{fields}}},"flag":{flag},"opaque":{opaque},"version":407}}'.encode()
        return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body

    def _wrong_inner_length(self) -> bytes:
        """A frame with the right outer length and a wrong length inside: of the header, its remark, its fields or one of them."""
        raw = bytearray(self._request())
        at = self._chance.choice((4, 25, 29, 31, 35))
        if at + 4 <= len(raw):
            struct.pack_into(">i", raw, at, self._chance.choice((*_INT32, len(raw), len(raw) - 4, len(raw) + 1)))
        return bytes(raw)
