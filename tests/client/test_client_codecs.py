"""Typed JSON codecs: what msgspec and pydantic convert and reject, and what works without them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from saturnmq import Ack, Client, ConfigError, DecodeError, EncodeError, Message, bytes_codec, json_codec, str_codec
from saturnmq.client.codecs import PropertyCodec, codec_for, encode_value

Run = Callable[[Callable[[], Any]], Any]
ID = UUID("12345678-1234-5678-1234-567812345678")


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


@dataclass(frozen=True)
class Rich:
    colour: Colour
    id: UUID
    day: date
    at: datetime
    clock: time
    price: Decimal
    pair: tuple[int, str]
    size: Size = Size.LARGE
    tags: frozenset[str] = frozenset()
    nested: dict[str, list[Colour]] = field(default_factory=dict)


class Struct(msgspec.Struct):
    colour: Colour
    price: Decimal


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict):
    colour: Colour


class Model(pydantic.BaseModel):
    id: UUID
    count: int = pydantic.Field(gt=0)
    price: Decimal = Decimal("1.10")


@dataclass
class HoldsModel:
    models: list[Model]


RICH = Rich(
    Colour.RED, ID, date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), time(1, 2, 3), Decimal("9.50"),
    (1, "a"), Size.LARGE, frozenset({"t"}), {"k": [Colour.RED]},
)  # fmt: skip


@pytest.mark.spec("API-08")
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Rich, RICH),
        (Struct, Struct(Colour.RED, Decimal("0.1"))),
        (list[Rich], [RICH]),
        (tuple[int, str], (1, "a")),
        (dict[str, UUID], {"a": ID}),
        (Point, Point(1, 2)),
        (Options, {"colour": Colour.RED}),
        (Colour, Colour.RED),
        (Rich | None, None),
        (Model, Model(id=ID, count=1)),
        (list[Model], [Model(id=ID, count=1)]),
        (HoldsModel, HoldsModel([Model(id=ID, count=2)])),
    ],
)
def test_json_codec_preserves_value_types(kind: Any, value: Any) -> None:
    codec = json_codec(kind)
    body = codec.encode(value)
    json.loads(body)
    decoded = codec.decode(body)
    assert decoded == value and type(decoded) is type(value)


@pytest.mark.spec("API-08")
@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        (Colour, b'"blue"', "'blue'"),
        (tuple[int, str], b'["1","a"]', "Expected `int`"),
        (tuple[int, str], b"[1]", "length 2"),
        (Struct, b'{"colour":"red"}', "missing required field `price`"),
        (Model, b'{"id":"12345678-1234-5678-1234-567812345678","count":0}', "count: Input should be greater than 0"),
        (Model, b'{"count":1}', "id: Field required"),
        (HoldsModel, b'{"models":[{"id":"secret","count":1}]}', "models.0.id: "),
        (Model, b"{", "JSON"),
        (dict, b"[]", "must be dict"),
        (list, b"{}", "must be list"),
    ],
)
def test_json_body_of_another_type_is_a_decode_error(kind: Any, body: bytes, words: str) -> None:
    with pytest.raises(DecodeError) as caught:
        json_codec(kind).decode(body)
    assert words in str(caught.value) and "secret" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.spec("API-08")
@pytest.mark.parametrize(
    ("kind", "value"),
    [(Rich, {"colour": "red"}), (Struct, RICH), (Model, HoldsModel([])), (list[Model], [1]), (list[Any], [object()])],
)
def test_json_value_of_another_type_is_an_encode_error(kind: Any, value: Any) -> None:
    with pytest.raises(EncodeError):
        json_codec(kind).encode(value)


@pytest.mark.spec("API-08")
def test_untyped_json_writes_the_same_as_typed_json() -> None:
    value = {"d": Decimal("9.50"), "u": ID, "e": Colour.RED, "n": [1, 2.5, None, True], "s": "ä", "r": date(2026, 1, 2)}
    expected = {"d": "9.50", "u": str(ID), "e": "red", "n": [1, 2.5, None, True], "s": "ä", "r": "2026-01-02"}
    for codec in (json_codec(), json_codec(dict), json_codec(dict[str, Any])):
        assert codec.decode(codec.encode(value)) == expected


@pytest.mark.spec("API-08", "PKG-05")
@pytest.mark.parametrize(("package", "kind"), [("msgspec", Rich), ("msgspec", tuple[int, str]), ("pydantic", Model)])
def test_missing_extra_is_named_and_untyped_json_still_works(
    package: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("msgspec", "pydantic"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"-m pip install '{package}>="):
        json_codec(kind)
    with pytest.raises(ConfigError, match=rf"-m pip install '{package}>="):
        codec_for(kind)
    for plain, value in ((None, [1]), (dict, {"a": 1}), (list, [1]), (dict[str, Any], {"a": [None]})):
        codec = json_codec(plain)
        assert codec.decode(codec.encode(value)) == value


@pytest.mark.spec("API-08")
@pytest.mark.parametrize("kind", [Rich | Struct, list["Nowhere"]])  # type: ignore[name-defined]  # noqa: F821
def test_json_codec_rejects_an_unsupported_type_at_once(kind: Any) -> None:
    with pytest.raises(ConfigError, match="is not possible with msgspec"):
        json_codec(kind)


@pytest.mark.spec("API-08", "API-16")
def test_listener_uses_the_codec_of_its_annotation() -> None:
    client = Client(name_servers="127.0.0.1:9876")

    @client.listener("T", group="g")
    async def handle(message: Message[Model]) -> Ack:
        return Ack.SUCCESS

    (spec,) = client._listeners
    assert spec.codec.decode(b'{"id":"12345678-1234-5678-1234-567812345678","count":1}') == Model(id=ID, count=1)


@pytest.mark.spec("API-08", "API-11")
@pytest.mark.parametrize(
    ("value", "body"),
    [
        (b"b", b"b"),
        ("s", b"s"),
        (7, b"7"),
        ({"a": 1}, b'{"a":1}'),
        (HoldsModel([]), b'{"models":[]}'),
        (Model(id=ID, count=1), b'{"id":"12345678-1234-5678-1234-567812345678","count":1,"price":"1.10"}'),
    ],
)
def test_reply_value_is_encoded_by_its_own_type(value: Any, body: bytes) -> None:
    assert encode_value(value) == body


def test_text_is_encoded_as_utf_8_or_refused() -> None:
    codec = str_codec()
    assert codec.encode("\u00e4") == b"\xc3\xa4" and codec.decode(b"\xc3\xa4") == "\u00e4"
    with pytest.raises(EncodeError, match="the value is bytes, the str codec takes str"):
        codec.encode(b"x")  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match="the text is not valid Unicode"):
        codec.encode("\ud800")
    with pytest.raises(DecodeError, match="the body of 2 bytes is not UTF-8"):
        codec.decode(b"\xff\xff")


def test_bytes_are_encoded_as_they_are() -> None:
    codec, body = bytes_codec(), b"x"
    assert codec.encode(body) is body
    assert [codec.encode(value) for value in (bytearray(b"ab"), memoryview(b"ab"))] == [b"ab", b"ab"]  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match="the value is str, the bytes codec takes bytes") as caught:
        codec.encode("x")  # type: ignore[arg-type]
    assert caught.value.hint and "str_codec()" in caught.value.hint


def test_untyped_json_refuses_other_bodies() -> None:
    with pytest.raises(DecodeError, match="the body of 2 bytes is not JSON"):
        json_codec().decode(b"{x")
    with pytest.raises(DecodeError, match="the JSON is list, must be dict"):
        json_codec(dict).decode(b"[]")
    with pytest.raises(EncodeError, match="object cannot be written as JSON"):
        json_codec().encode(object())


def test_codec_with_properties_encodes_and_decodes_without_them() -> None:
    class Versioned(PropertyCodec[bytes]):
        def encode_message(self, value: bytes) -> tuple[bytes, dict[str, str]]:
            return value[::-1], {"version": "2"}

        def decode_message(self, body: bytes, properties: Any) -> bytes:
            return b"%d properties of %s" % (len(properties), body)

    assert Versioned().encode(b"ab") == b"ba" and Versioned().decode(b"ab") == b"0 properties of ab"
    for unfinished in (lambda: PropertyCodec[bytes]().encode(b""), lambda: PropertyCodec[bytes]().decode(b"")):
        with pytest.raises(NotImplementedError):
            unfinished()
