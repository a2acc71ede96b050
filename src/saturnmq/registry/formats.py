"""The three types of schemas: values to the bytes behind a frame and back. Libraries are imported when a schema is parsed.

Avro: `saturnmq.avro` checks a body first, because fastavro trusts what it reads; then fastavro decodes it, by the schemas of writer
and reader. JSON: no `$ref` is ever downloaded. Protobuf: a schema is a serialized FileDescriptorProto in base64, as the registry
gives it for `format=serialized`.

Requirements: API-08, PIP-08.
"""

from __future__ import annotations

import base64
import functools
import importlib
import io
import json
from types import ModuleType
from typing import Any, Final, Protocol

from saturnmq.avro import Schema
from saturnmq.extras import install_command
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.json_dialect import standard_dumps, standard_loads
from saturnmq.registry.frame import PROTOBUF

_WELL_KNOWN: Final = "google/protobuf/"
_WRONG_VALUE: Final = (
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
    AttributeError,
    KeyError,
    IndexError,
    EOFError,
)


class Format(Protocol):
    """A parsed schema. path: to the message of a Protobuf schema. reader: the schema whose fields the value gets, in Avro."""

    def encode(self, value: Any, path: tuple[int, ...]) -> bytes:
        """Raises ValueError."""
        ...

    def decode(self, payload: bytes, path: tuple[int, ...], reader: Any) -> Any:
        """Raises ValueError."""
        ...


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"schemas of a registry need {name}: {install_command('registry')}") from error


class AvroFormat:
    """A body is one datum; of the schema "bytes", the bytes themselves, as Confluent's serializers write them."""

    def __init__(self, text: str) -> None:
        self._library = _module("fastavro")
        self.strict = Schema(text)
        document = json.loads(text)
        self._is_bytes = document == "bytes" or document == {"type": "bytes"}
        self.parsed = self._library.parse_schema(document)

    def encode(self, value: Any, _path: tuple[int, ...] = ()) -> bytes:
        if self._is_bytes and isinstance(value, bytes):
            return value
        stream = io.BytesIO()
        try:
            self._library.schemaless_writer(stream, self.parsed, value, strict_allow_default=True)
        except _WRONG_VALUE as error:
            raise ValueError(f"{error}" if str(error) else type(error).__name__) from error
        return stream.getvalue()

    def decode(self, payload: bytes, _path: tuple[int, ...] = (), reader: AvroFormat | None = None) -> Any:
        if self._is_bytes:
            return payload
        self.strict.decode(payload)
        try:
            return self._library.schemaless_reader(io.BytesIO(payload), self.parsed, reader and reader.parsed)
        except Exception as error:  # fastavro's SchemaResolutionError is no subclass of anything else
            raise ValueError(f"it does not resolve to the reader's schema: {error!r:.300}") from error


class JsonFormat:
    """A body is one JSON document that the schema allows. Problems name the position and the rule, not the values."""

    def __init__(self, text: str) -> None:
        jsonschema, referencing = _module("jsonschema"), _module("referencing")
        try:
            document = json.loads(text)
            kind = jsonschema.validators.validator_for(document, default=jsonschema.Draft7Validator)
            kind.check_schema(document)
        except (ValueError, jsonschema.SchemaError) as error:
            raise ConfigError(f"JSON schema: {getattr(error, 'message', error)!s:.300}") from None
        self._problems = kind(document, registry=referencing.Registry()).iter_errors
        self._unresolvable = referencing.exceptions.Unresolvable

    def encode(self, value: Any, _path: tuple[int, ...] = ()) -> bytes:
        self._check(value)
        return standard_dumps(value)

    def decode(self, payload: bytes, _path: tuple[int, ...] = (), _reader: object = None) -> Any:
        value = standard_loads(payload)
        self._check(value)
        return value

    def _check(self, value: Any) -> None:
        try:
            problem = next(self._problems(value), None)
        except (self._unresolvable, RecursionError) as error:
            raise ValueError(f"the JSON schema cannot be applied: {error!r:.200}") from None
        if problem is not None:
            position = ".".join(map(str, problem.absolute_path)) or "the document"
            raise ValueError(
                f"{position} violates {problem.validator}={problem.validator_value!r:.100} of the JSON schema"
            )


class ProtobufFormat:
    """The file of a message. A value is a message of any class with the same full name, or of the file's own class."""

    def __init__(self, text: str) -> None:
        descriptor_pb2, pools = _module("google.protobuf.descriptor_pb2"), _module("google.protobuf.descriptor_pool")
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
            pool = pools.DescriptorPool()
            _add_imports(pool, file, pools.Default())
            pool.Add(file)
            self.file = pool.FindFileByName(file.name)
        except ConfigError:
            raise
        except Exception as error:  # TypeError, KeyError, DecodeError of protobuf, by its implementation
            raise ConfigError(
                f"Protobuf schema: {error!s:.200}; it must be a serialized FileDescriptorProto in base64, which registries "
                "return for ?format=serialized"
            ) from None

    def message(self, path: tuple[int, ...]) -> Any:
        """The descriptor of a message. Raises ValueError."""
        try:
            messages = list(self.file.message_types_by_name.values())
            descriptor = messages[path[0]]
            for index in path[1:]:
                descriptor = descriptor.nested_types[index]
        except IndexError:
            raise ValueError(f"the Protobuf schema has no message at the indexes {path}") from None
        return descriptor

    def encode(self, value: Any, _path: tuple[int, ...] = ()) -> bytes:
        return bytes(value.SerializeToString())

    def decode(self, payload: bytes, path: tuple[int, ...], reader: Any = None) -> Any:
        """reader: the message class for the value."""
        descriptor = self.message(path)
        if reader is not None and reader.DESCRIPTOR.full_name != descriptor.full_name:
            raise ValueError(f"it is a message {descriptor.full_name}, must be {reader.DESCRIPTOR.full_name}")
        kind = reader or _module("google.protobuf.message_factory").GetMessageClass(descriptor)
        try:
            return kind.FromString(payload)
        except Exception as error:  # DecodeError of protobuf, which is no ValueError
            raise ValueError(f"no message {descriptor.full_name}: {error}") from error


def _add_imports(pool: Any, file: Any, default: Any) -> None:
    """Add the files of Google's own types that a file imports. Raises ConfigError for others."""
    for name in file.dependency:
        if not name.startswith(_WELL_KNOWN):
            raise ConfigError(f"Protobuf schema {file.name} imports {name}: only {_WELL_KNOWN}* can be imported")
        _module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        imported = type(file)()
        default.FindFileByName(name).CopyToProto(imported)
        _add_imports(pool, imported, default)
        pool.Add(imported)


def message_path(descriptor: Any) -> tuple[int, ...]:
    """The path to a message type in its file: its index, after those of the messages that it is nested in."""
    outer = descriptor.containing_type
    if outer is None:
        return (list(descriptor.file.message_types_by_name).index(descriptor.name),)
    return (*message_path(outer), [nested.full_name for nested in outer.nested_types].index(descriptor.full_name))


def file_text(descriptor: Any) -> str:
    """The schema of a message class: its file."""
    return base64.b64encode(descriptor.file.serialized_pb).decode()


_FORMATS: Final[dict[str, type[AvroFormat | JsonFormat | ProtobufFormat]]] = {
    "AVRO": AvroFormat, "JSON": JsonFormat, PROTOBUF: ProtobufFormat,
}  # fmt: skip


@functools.lru_cache(maxsize=256)
def parsed(kind: str, text: str) -> Any:
    """The Format of a schema. Raises ConfigError."""
    if kind not in _FORMATS:
        raise ConfigError(f"schemas of type {kind!r:.40} are not supported, there are {', '.join(_FORMATS)}")
    return _FORMATS[kind](text)
