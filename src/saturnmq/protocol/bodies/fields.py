"""The `@body` decorator: derives member names, reader and writer of a JSON body class from its annotated members.

This module knows how Python types map to JSON (docs/spec/00 section 3.5), not which body has which member. Readers and writers are
built once, when the class is created. A missing or null member takes its default, unknown members are ignored, numbers and
booleans may be given as text. Members are written in the order of their names, as Apache RocketMQ does; None is omitted.
"""
# No `from __future__ import annotations`: `body` evaluates the annotations when it creates the class.

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from itertools import islice
from types import UnionType
from typing import (
    Any,
    ClassVar,
    Final,
    NamedTuple,
    NewType,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from saturnmq.protocol.errors import BodyError
from saturnmq.protocol.headers.fields import camel_case
from saturnmq.protocol.json_dialect import UNLIMITED, ObjectKey, dumps, json_type, loads

Reader = Callable[[Any, str], Any]
Writer = Callable[[Any], Any] | None  # None: the value needs no conversion
Codec = tuple[Reader, Writer]
_PIECE_ENTRIES: Final = 128
_NO_ZEROS: Final[dict[str, Any]] = {}


class MemberSpec(NamedTuple):
    """One member of a body: attribute, JSON name, reader, writer, and alternative JSON names that are accepted."""

    attribute: str
    wire: str
    read: Reader
    write: Writer
    aliases: tuple[str, ...]


class Body:
    """Base class of all JSON bodies. Subclasses are created with `@body`."""

    __slots__ = ()
    MEMBERS: ClassVar[tuple[MemberSpec, ...]] = ()
    _zeros: ClassVar[dict[str, Any]] = {}

    @classmethod
    def decode(cls, data: bytes | None, *, budget: int = UNLIMITED) -> Self:
        """Decode standard JSON or the fastjson dialect; budget as of `loads`. Raises BodyError, also for an empty body."""
        if not data:
            raise BodyError("the body is missing")
        return cls.from_json(loads(data, budget=budget))

    @classmethod
    def decode_file(cls, data: bytes) -> Self:
        """As `decode`, for a state file: its length is bounded by the limits of its table, not by that of a frame."""
        return cls.from_json(loads(data, bytes_max=UNLIMITED))

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Create the body from a parsed JSON value. Raises BodyError naming the member of a wrong type."""
        if type(value) is not dict:
            raise BodyError(f"the body is {json_type(value)}, must be an object")
        return cls(**read_members(cls.MEMBERS, value, cls._zeros))

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists; a map with bodies as keys gets ObjectKey keys."""
        return write_members(self.MEMBERS, self)

    def encode(self) -> bytes:
        """UTF-8 JSON without whitespace."""
        return dumps(self.to_json())

    def pieces(self) -> Iterator[bytes]:
        """`encode` in pieces of at most _PIECE_ENTRIES entries of a map or list, for bodies that take long to encode."""
        separator = b"{"
        for attribute, wire, _read, write, _aliases in self.MEMBERS:
            value = getattr(self, attribute)
            if value is None:
                continue
            yield separator + dumps(wire) + b":"
            separator = b","
            if isinstance(value, dict | list) and len(value) > _PIECE_ENTRIES:
                yield from _entry_pieces(value, write)
            else:
                yield dumps(write(value) if write else value)
        yield b"{}" if separator == b"{" else b"}"


def _entry_pieces(value: dict[Any, Any] | list[Any], write: Writer) -> Iterator[bytes]:
    """A map or list in pieces; its writer accepts any part of it."""
    is_map = isinstance(value, dict)
    entries = iter(value.items()) if isinstance(value, dict) else iter(value)
    mark = b"{" if is_map else b"["
    while part := list(islice(entries, _PIECE_ENTRIES)):
        some: Any = dict(part) if is_map else part
        yield mark + dumps(write(some) if write else some)[1:-1]
        mark = b","
    yield b"}" if is_map else b"]"


def read_members(
    members: Iterable[MemberSpec], value: Mapping[Any, Any], zeros: dict[str, Any] = _NO_ZEROS
) -> dict[str, Any]:
    """The members of a JSON object by attribute; those that are missing or null as in zeros. Raises BodyError."""
    arguments = zeros.copy()
    for attribute, wire, read, _write, aliases in members:
        member = value.get(wire)
        if member is None and aliases:
            member = next((value[alias] for alias in aliases if value.get(alias) is not None), None)
        if member is not None:
            arguments[attribute] = read(member, wire)
    return arguments


def write_members(members: Iterable[MemberSpec], owner: object) -> dict[str, Any]:
    """The JSON object of what has these members; None is omitted."""
    fields = {}
    for attribute, wire, _read, write, _aliases in members:
        value = getattr(owner, attribute)
        if value is not None:
            fields[wire] = write(value) if write else value
    return fields


B = TypeVar("B", bound=Body)


@dataclass_transform(field_specifiers=(field,))
def body(
    *,
    frozen: bool = False,
    order: bool = False,
    wire: Mapping[str, str] | None = None,
    aliases: Mapping[str, tuple[str, ...]] | None = None,
) -> Callable[[type[B]], type[B]]:
    """Class decorator: a slotted dataclass with JSON reader and writer.

    wire: JSON names other than the camel case of the attribute. aliases: by attribute, further JSON names that are accepted.
    """

    def make(cls: type[B]) -> type[B]:
        body_class = dataclass(slots=True, frozen=frozen, order=order)(cls)
        body_class.MEMBERS = json_members(body_class, _LEAVES, wire or {}, aliases or {})
        body_class._zeros = {
            each.name: each.type()  # type: ignore[operator]  # "", 0, False: the value Java leaves in an absent member
            for each in fields(body_class)  # type: ignore[arg-type]
            if each.default is MISSING and each.default_factory is MISSING
        }
        return body_class

    return make


def json_members(
    cls: type,
    leaves: Mapping[Any, Codec],
    wire: Mapping[str, str],
    aliases: Mapping[str, tuple[str, ...]] | None = None,
) -> tuple[MemberSpec, ...]:
    """The members of a dataclass in the order of their names. leaves: reader and writer of types without parts.

    wire: JSON names other than the camel case of the attribute; an empty one leaves the field out.
    """
    hints = get_type_hints(cls)
    members = []
    for name in (each.name for each in fields(cls)):
        if key := wire.get(name, camel_case(name)):
            members.append(MemberSpec(name, key, *_codec(hints[name], leaves), (aliases or {}).get(name, ())))
    return tuple(sorted(members, key=lambda member: member.wire))


def _codec(kind: Any, leaves: Mapping[Any, Codec]) -> Codec:
    """Reader and writer for an annotation: a leaf, a body, list[T], dict[K, V], T | None, a NewType."""
    if kind in leaves:
        return leaves[kind]
    if isinstance(kind, NewType):
        return _codec(kind.__supertype__, leaves)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _codec(next(argument for argument in arguments if argument is not type(None)), leaves)
    if origin is list:
        return _list_codec(*_codec(arguments[0], leaves))
    if origin is dict:
        return _dict_codec(arguments[0], *_codec(arguments[1], leaves))
    if isinstance(kind, type) and issubclass(kind, Body):
        return _body_reader(kind), kind.to_json
    raise TypeError(f"a body member cannot be a {kind}")


def _body_reader(kind: type[Body]) -> Reader:
    def read_body(value: Any, name: str) -> Body:
        if type(value) is not dict:
            raise _mismatch(name, value, "an object")
        return kind.from_json(value)

    return read_body


def _list_codec(read: Reader, write: Writer) -> Codec:
    def read_list(value: Any, name: str) -> list[Any]:
        if type(value) is not list:
            raise _mismatch(name, value, "an array")
        return [read(item, name) for item in value if item is not None]

    if write is None:
        return read_list, None
    return read_list, lambda value: [write(item) for item in value]


def _dict_codec(key: Any, read: Reader, write: Writer) -> Codec:
    def read_dict(value: Any, name: str) -> dict[Any, Any]:
        if type(value) is not dict:
            raise _mismatch(name, value, "an object")
        return {_read_key(key, at, name): read(member, name) for at, member in value.items() if member is not None}

    def write_dict(value: Mapping[Any, Any]) -> dict[Any, Any]:
        if key is str:
            return {at: write(member) if write else member for at, member in value.items()}
        if key is int:
            return {str(at): write(member) if write else member for at, member in value.items()}
        return {ObjectKey(at.to_json()): write(member) if write else member for at, member in value.items()}

    return read_dict, (None if key is str and write is None else write_dict)


def _read_key(kind: Any, key: Any, name: str) -> Any:
    if type(key) is ObjectKey:
        if not issubclass(kind, Body):
            raise _mismatch(name, key, "an object with plain member names")
        return kind.from_json(key.fields)
    if kind is int:
        return _integer(key, name)
    if kind is str:
        return key
    return kind.from_json(loads(key))  # some clients write the object as a JSON string


def _text(value: Any, name: str) -> str:
    if type(value) is str:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise _mismatch(name, value, "text")


def _integer(value: Any, name: str) -> int:
    if type(value) is int:
        if -(2**63) <= value < 2**63:
            return value
    elif type(value) is str:
        if len(value) <= 20 and value.removeprefix("-").isdecimal():
            return _integer(int(value), name)
    elif type(value) is float and value.is_integer():
        return _integer(int(value), name)
    raise _mismatch(name, value, "a 64-bit integer")


def _float(value: Any, name: str) -> float:
    if type(value) in (int, float, str):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise _mismatch(name, value, "a number")


def _boolean(value: Any, name: str) -> bool:
    if type(value) is bool:
        return value
    if type(value) is str and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if type(value) is int:
        return value == 1
    raise _mismatch(name, value, "true or false")


def _unchanged(value: Any, _name: str) -> Any:
    return value


def _mismatch(name: str, value: Any, expected_type: str) -> BodyError:
    return BodyError(f"body member {name} is {value!r:.40}, must be {expected_type}")


_LEAVES: Final[dict[Any, Codec]] = {
    str: (_text, None),
    int: (_integer, None),
    float: (_float, None),
    bool: (_boolean, None),
    Any: (_unchanged, None),
}
