"""Codecs: conversion between application values and message bodies. Pure.

orjson is used if it is installed; msgspec and pydantic are optional and imported when a codec needs them.

Requirements: API-08, PKG-04.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar
from uuid import UUID

from saturnmq.errors import DecodeError, EncodeError
from saturnmq.extras import install_command
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.json_dialect import standard_dumps, standard_loads

T = TypeVar("T")


def _json_form(value: Any) -> Any:
    """Encode types that JSON does not have, in the same form as orjson and msgspec."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


class Codec(Protocol[T]):
    """Converts values to message bodies and back. Any object with these two methods is a codec.

    Example:
        class PickleCodec:
            def encode(self, value: object) -> bytes:
                return pickle.dumps(value)

            def decode(self, body: bytes) -> object:
                return pickle.loads(body)

        out = client.producer("orders-p", codec=PickleCodec())
    """

    def encode(self, value: T) -> bytes:
        """The body for a value. Raises EncodeError."""
        ...

    def decode(self, body: bytes) -> T:
        """The value of a body. Raises DecodeError."""
        ...


class BodyAndProperties(Protocol):
    """Of a message. `body` raises MessageError if it is damaged."""

    @property
    def body(self) -> bytes: ...
    @property
    def properties(self) -> Mapping[str, str]: ...


class PropertyCodec(Generic[T]):  # no ABC: each message is tested for it
    """A codec that also writes and reads user properties, or needs data that it must wait for.

    Producers await `prepare_encoding` when they start, consumers await `prepare_decoding` before they hand out pulled messages.

    Example:
        class VersionedCodec(PropertyCodec[bytes]):
            def encode_message(self, value: bytes) -> tuple[bytes, Mapping[str, str]]:
                return value, {"version": "2"}

            def decode_message(self, body: bytes, properties: Mapping[str, str]) -> bytes:
                return body if properties.get("version") == "2" else b"old: " + body
    """

    def encode_message(self, value: T) -> tuple[bytes, Mapping[str, str]]:
        """The body and the user properties for a value; those that a send gives override them. Raises EncodeError."""
        raise NotImplementedError

    def decode_message(self, body: bytes, properties: Mapping[str, str]) -> T:
        """The value of a message. Raises DecodeError."""
        raise NotImplementedError

    async def prepare_encoding(self) -> None:
        """Get what `encode_message` needs; what it raises is raised by the start of the producer."""

    async def prepare_decoding(self, messages: Iterable[BodyAndProperties]) -> None:
        """Get what `decode_message` needs for these messages. Does not raise: `decode_message` does."""

    def encode(self, value: T) -> bytes:
        """The body alone."""
        return self.encode_message(value)[0]

    def decode(self, body: bytes) -> T:
        """The value of a body without properties."""
        return self.decode_message(body, {})


class BytesCodec:
    """Passes bytes through unchanged; the default codec."""

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
    """Encodes text as UTF-8."""

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


class JsonCodec:
    """Untyped JSON. kind: dict or list if decoded values must be of that type."""

    def __init__(self, kind: type[Any] | None = None) -> None:
        self._kind = kind

    def encode(self, value: Any) -> bytes:
        try:
            return standard_dumps(value, default=_json_form)
        except _CODEC_ERRORS as error:
            raise _not_encoded(value, error) from error

    def decode(self, body: bytes) -> Any:
        try:
            value = standard_loads(body)
        except _CODEC_ERRORS as error:
            raise DecodeError(f"the body of {len(body)} bytes is not JSON: {error}") from error
        if self._kind is not None and not isinstance(value, self._kind):
            raise DecodeError(f"the JSON is {type(value).__name__}, must be {self._kind.__name__}")
        return value


class TypedJsonCodec(ABC, Generic[T]):
    """JSON that is converted to and validated against `kind` by an optional package."""

    package = ""

    def __init__(self, kind: Any) -> None:
        self._name = getattr(kind, "__name__", None) if isinstance(kind, type) else str(kind)
        self._class: type[Any] | None = kind if _has_fields(kind) else None
        try:
            module = importlib.import_module(self.package)
        except ImportError as error:
            raise ConfigError(
                f"json_codec({self._name}) needs {self.package}: {install_command(self.package)}"
            ) from error
        try:
            self._prepare(module, kind)
        except (TypeError, NameError, ValueError) as error:
            raise ConfigError(f"json_codec({self._name}) is not possible with {self.package}: {error}") from error

    @abstractmethod
    def _prepare(self, module: Any, kind: Any) -> None:
        """Set `_encode` and `_decode`. Raises TypeError, NameError or ValueError for a type the package does not support."""

    _encode: Callable[[T], bytes]
    _decode: Callable[[bytes], T]

    def encode(self, value: T) -> bytes:
        if self._class is not None and not isinstance(value, self._class):
            raise EncodeError(f"the value is {type(value).__name__}, this codec takes {self._name}")
        try:
            return self._encode(value)
        except _CODEC_ERRORS as error:
            raise _not_encoded(value, error) from error

    def decode(self, body: bytes) -> T:
        try:
            return self._decode(body)
        except _CODEC_ERRORS as error:
            raise DecodeError(f"the body of {len(body)} bytes is not JSON of {self._name}: {_reason(error)}") from error


class MsgspecCodec(TypedJsonCodec[T]):
    """Dataclasses, msgspec Structs, and containers with typed items."""

    package = "msgspec"

    def _prepare(self, module: Any, kind: Any) -> None:
        self._encode = module.json.Encoder().encode
        self._decode = module.json.Decoder(kind).decode


class PydanticCodec(TypedJsonCodec[T]):
    """Pydantic models and dataclasses, and types that contain them."""

    package = "pydantic"

    def _prepare(self, module: Any, kind: Any) -> None:
        adapter = module.TypeAdapter(kind)
        self._encode = functools.partial(adapter.dump_json, warnings="error")
        self._decode = adapter.validate_json


def python_converters(kind: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Functions from values of a type to dicts, lists and Python's own scalars, and back. The second one raises ValueError.

    Scalars such as dates and Decimal stay as they are. Raises ConfigError if the extra is not installed.
    """
    codec = json_codec(kind)
    if isinstance(codec, MsgspecCodec):
        import msgspec

        scalars = (bytes, bytearray, datetime, date, time, Decimal, UUID)
        return functools.partial(msgspec.to_builtins, builtin_types=scalars), functools.partial(
            msgspec.convert, type=kind
        )
    if isinstance(codec, PydanticCodec):
        import pydantic

        adapter = pydantic.TypeAdapter(kind)
        return adapter.dump_python, adapter.validate_python
    return lambda value: value, lambda value: value


_CODEC_ERRORS: Final = (TypeError, ValueError, OverflowError, RecursionError)


def _not_encoded(value: Any, error: Exception) -> EncodeError:
    return EncodeError(f"{type(value).__name__} cannot be written as JSON: {error}")


def _reason(error: Exception) -> str:
    """The text of an error; for pydantic on one line and without the rejected values."""
    problems = getattr(error, "errors", None)
    if problems is None:
        return str(error)
    listed = problems(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(str(part) for part in item['loc']) or 'value'}: {item['msg']}" for item in listed)


def _has_fields(kind: Any) -> bool:
    """Whether kind is a class with declared fields: a dataclass, a msgspec Struct or a pydantic model."""
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__") or _is_pydantic(kind)
    )


def _is_pydantic(kind: Any) -> bool:
    return hasattr(kind, "__pydantic_validator__")


def _holds_pydantic(kind: Any, visited_ids: set[int]) -> bool:
    """Whether a type is a pydantic type, or has a type argument or a field that is one, at any depth.

    visited_ids: those of the types visited already, since types may be recursive.
    """
    if _is_pydantic(kind):
        return True
    if id(kind) in visited_ids:
        return False
    visited_ids.add(id(kind))
    parts = list(typing.get_args(kind))
    if isinstance(kind, type) and getattr(kind, "__annotations__", None):
        with contextlib.suppress(NameError, TypeError):  # a name not defined yet: reported when the codec is built
            parts += typing.get_type_hints(kind).values()
    return any(_holds_pydantic(part, visited_ids) for part in parts)


def bytes_codec() -> Codec[bytes]:
    """A codec that passes bytes through unchanged; the default of producers and consumers.

    Example:
        out = client.producer("orders-p", codec=bytes_codec())
    """
    return BytesCodec()


def str_codec() -> Codec[str]:
    """A codec for text as UTF-8.

    Example:
        async with client.producer("orders-p", codec=str_codec()) as out:
            await out.send("orders", "hello")
    """
    return StrCodec()


@typing.overload
def json_codec() -> Codec[Any]: ...
@typing.overload
def json_codec(kind: type[T]) -> Codec[T]: ...
def json_codec(kind: Any = None) -> Codec[Any]:
    """A codec for JSON. With a type, decoded values are converted to that type and validated against it.

    Dataclasses, msgspec Structs and typed containers such as `list[Order]` or `tuple[int, str]` need the extra `msgspec`,
    pydantic models the extra `pydantic`. Without a type, or with `dict` or `list`, no extra is needed.
    Raises ConfigError if the extra is not installed or the type is not supported.

    Example:
        @dataclass
        class Order:
            id: int
            total: float

        async with client.producer("orders-p", codec=json_codec(Order)) as out:
            await out.send("orders", Order(1, 9.5))
    """
    for untyped_kind, json_type in _UNTYPED_KINDS:
        if kind == untyped_kind:
            return JsonCodec(json_type)
    return PydanticCodec(kind) if _holds_pydantic(kind, set()) else MsgspecCodec(kind)


_UNTYPED_KINDS: Final[tuple[tuple[Any, type[Any] | None], ...]] = (
    (None, None),
    (Any, None),
    (object, None),
    (dict, dict),
    (list, list),
    (dict[str, Any], dict),
    (list[Any], list),
)


def codec_for(kind: Any) -> Codec[Any]:
    """The codec for an annotation: bytes (also for None and Any), str, or JSON for any other type."""
    if kind is bytes or kind is None or kind is Any:
        return BytesCodec()
    if kind is str:
        return StrCodec()
    return json_codec(kind)


def encode_value(value: Any) -> bytes:
    """Encode a value by its class: bytes unchanged, str as UTF-8, any other as JSON of its class. Raises EncodeError."""
    kind: Any = type(value)
    return _codec_of_class(kind).encode(value)


@functools.lru_cache(maxsize=256)
def _codec_of_class(kind: Any) -> Codec[Any]:
    """The codec of a class; untyped JSON if the class needs no extra, or the extra is not installed."""
    if kind in (bytes, str):
        return codec_for(kind)
    try:
        return json_codec(kind) if _has_fields(kind) else JsonCodec()
    except ConfigError:
        return JsonCodec()
