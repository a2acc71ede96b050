"""Codecs: values of the user to message bodies and back. Pure. Source: spec 08 API-08."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar, Union

from saturnmq.client.errors import DecodeError, EncodeError

try:
    import orjson

    _dumps: Callable[[Any], bytes] = orjson.dumps
    _loads: Callable[[bytes], Any] = orjson.loads
except ImportError:  # a default dependency, never a required one (PKG-04)

    def _dumps(value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain).encode()

    _loads = json.loads

T = TypeVar("T")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON")


class Codec(Protocol[T]):
    """Turns values into bodies and back. `encode` raises EncodeError, `decode` DecodeError."""

    def encode(self, value: T) -> bytes: ...

    def decode(self, body: bytes) -> T: ...


class BytesCodec:
    """Bodies as they are; the default."""

    def encode(self, value: bytes) -> bytes:
        if type(value) is bytes:
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise EncodeError(
            f"the value is {type(value).__name__}, the bytes codec takes bytes.",
            hint="Give the producer a codec: str_codec() or json_codec(...).",
        )

    def decode(self, body: bytes) -> bytes:
        return body


class StrCodec:
    """Text as UTF-8."""

    def encode(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise EncodeError(f"the value is {type(value).__name__}, the str codec takes str")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise EncodeError(f"the text is not valid Unicode: {error}") from error

    def decode(self, body: bytes) -> str:
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"the body of {len(body)} bytes is not UTF-8: {error}") from error


class JsonCodec(Generic[T]):
    """JSON. With a dataclass (nested ones, lists, dicts, optionals too) values are built and checked by its fields."""

    def __init__(self, kind: type[T] | None = None) -> None:
        self._kind: Any = kind

    def encode(self, value: T) -> bytes:
        kind = self._kind
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and not isinstance(value, kind):
            raise EncodeError(f"the value is {type(value).__name__}, this codec takes {kind.__name__}")
        try:
            return _dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise EncodeError(f"{type(value).__name__} cannot be written as JSON: {error}") from error

    def decode(self, body: bytes) -> T:
        try:
            raw = _loads(body)
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"the body of {len(body)} bytes is not JSON: {error}") from error
        try:
            return build(self._kind, raw, "value") if self._kind is not None else raw  # type: ignore[no-any-return]
        except (TypeError, ValueError, KeyError) as error:
            raise DecodeError(
                f"the JSON does not fit {getattr(self._kind, '__name__', self._kind)}: {error}"
            ) from error


def build(kind: Any, raw: Any, where: str) -> Any:
    """A value of type `kind` from JSON data. Raises TypeError or ValueError naming the place."""
    if kind is Any or kind is None:
        return raw
    origin = typing.get_origin(kind)
    if origin is Union or origin is types.UnionType:
        return _build_union(typing.get_args(kind), raw, where)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, raw, where)
    arguments = typing.get_args(kind)
    if origin in (list, tuple, set, frozenset) or kind in (list, tuple, set, frozenset):
        if not isinstance(raw, list):
            raise TypeError(f"{where} is {type(raw).__name__}, must be an array")
        item = arguments[0] if arguments else Any
        return (origin or kind)(build(item, value, f"{where}[{at}]") for at, value in enumerate(raw))
    if origin is dict or kind is dict:
        if not isinstance(raw, dict):
            raise TypeError(f"{where} is {type(raw).__name__}, must be an object")
        value_kind = arguments[1] if arguments else Any
        return {key: build(value_kind, value, f"{where}.{key}") for key, value in raw.items()}
    return _build_plain(kind, raw, where)


def _build_plain(kind: Any, raw: Any, where: str) -> Any:
    if kind is float and type(raw) is int:
        return float(raw)
    if kind is datetime and isinstance(raw, str):
        return datetime.fromisoformat(raw)
    if isinstance(kind, type) and kind in (str, int, float, bool) and type(raw) is not kind:
        raise TypeError(f"{where} is {type(raw).__name__}, must be {kind.__name__}")
    return raw


def _build_union(kinds: tuple[Any, ...], raw: Any, where: str) -> Any:
    if raw is None and type(None) in kinds:
        return None
    problems = []
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return build(kind, raw, where)
        except (TypeError, ValueError) as error:
            problems.append(str(error))
    raise TypeError("; ".join(problems) or f"{where} is null")


def _build_dataclass(kind: Any, raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise TypeError(f"{where} is {type(raw).__name__}, must be an object for {kind.__name__}")
    hints = typing.get_type_hints(kind)
    values = {
        item.name: build(hints[item.name], raw[item.name], f"{where}.{item.name}")
        for item in dataclasses.fields(kind)
        if item.init and item.name in raw
    }
    return kind(**values)


def bytes_codec() -> Codec[bytes]:
    """Bodies as they are."""
    return BytesCodec()


def str_codec() -> Codec[str]:
    """Text as UTF-8."""
    return StrCodec()


@typing.overload
def json_codec() -> Codec[Any]: ...
@typing.overload
def json_codec(kind: type[T]) -> Codec[T]: ...
def json_codec(kind: type[T] | None = None) -> Codec[Any]:
    """JSON; give a dataclass to get its instances."""
    return JsonCodec(kind)


def codec_for(kind: Any) -> Codec[Any]:
    """The codec that fits an annotation: bytes, str, a dataclass, anything else as JSON (API-08)."""
    if kind is bytes or kind is None or kind is Any:
        return BytesCodec()
    if kind is str:
        return StrCodec()
    return JsonCodec(kind)
