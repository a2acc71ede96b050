"""The `@header` decorator: derives wire names, decoder and encoder of a header class from its annotated fields.

This module knows how a value is written in extFields (REM-09), not which header has which field. The decoder and the encoder of
a class are compiled once, on first use, so that a call needs no reflection.
"""

# Encoding of extFields, which carry text only (REM-08, REM-09).
#   kind  python       on the wire
#   str   str          as it is
#   i32   int          decimal, -2147483648..2147483647
#   i64   int          decimal, -9223372036854775808..9223372036854775807
#   bool  bool         true / false
# No `from __future__ import annotations`: `header` evaluates the annotations when it creates the class.

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self, TypeAlias, TypeVar, dataclass_transform, get_args

from saturnmq.protocol.errors import HeaderError, MissingField
from saturnmq.protocol.headers.numbers import checked_integer
from saturnmq.protocol.json_dialect import json_type

Int: TypeAlias = Annotated[int, "i32"]
Long: TypeAlias = Annotated[int, "i64"]

_SAFE_DIGITS: Final = {"i32": 10, "i64": 19}  # shorter decimal texts cannot exceed the range
_BITS: Final = {"i32": 31, "i64": 63}
SECRET_FIELDS: Final = frozenset({"secretKey"})


class FieldSpec(NamedTuple):
    """One field of a header: attribute, wire name, kind (str, i32, i64, bool), whether it is required, default."""

    attribute: str
    wire: str
    kind: str
    required: bool
    default: Any


class Header:
    """Base class of all headers. Subclasses are created with `@header`."""

    __slots__ = ()
    FIELDS: ClassVar[tuple[FieldSpec, ...]] = ()

    @classmethod
    def decode(cls, ext: Mapping[str, str]) -> Self:
        """Decode extFields. Unknown fields are ignored (REM-08). Raises MissingField, HeaderError."""
        raise NotImplementedError

    def to_ext(self) -> dict[str, str]:
        """A new dict from wire names to text; fields that are None are omitted."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """All fields, with secrets masked."""
        shown = (
            f"{spec.attribute}={'***' if spec.wire in SECRET_FIELDS else repr(getattr(self, spec.attribute))}"
            for spec in self.FIELDS
        )
        return f"{type(self).__name__}({', '.join(shown)})"


H = TypeVar("H", bound=Header)


def decode_header(cls: type[H], ext: Mapping[str, str]) -> H:
    """Decode a header of class cls from extFields.

    Raises MissingField ("the custom field <x> is null") for an absent required field, HeaderError for text that is not a valid
    number.
    """
    return cls.decode(ext)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def header(*, wire: Mapping[str, str] | None = None) -> Callable[[type[H]], type[H]]:
    """Class decorator: a slotted keyword-only dataclass with a compiled `decode` and `to_ext`.

    wire: wire names other than the camel case of the attribute.
    Frozen for the type checker only: filling a runtime-frozen dataclass of 13 fields takes 1 us longer, on the hot path.
    """

    def make(cls: type[H]) -> type[H]:
        header_class = dataclass(slots=True, repr=False, kw_only=True)(cls)
        header_class.FIELDS = tuple(_spec(field, wire or {}) for field in fields(header_class))  # type: ignore[arg-type]
        _compile_at_first_use(header_class)
        return header_class

    return make


def _compile_at_first_use(cls: type[Header]) -> None:
    """Give cls a `decode` and a `to_ext` that compile and replace themselves on first use.

    A process uses few of the headers, and compiling all of them would take 15 ms at start.
    """

    compiled: dict[
        str, Callable[..., Any]
    ] = {}  # also used by callers that kept a reference to the uncompiled function

    def decode(header_class: type[Header], ext: Mapping[str, str]) -> Any:
        if "decode" not in compiled:
            compiled["decode"] = compile_decoder(cls.FIELDS)
            cls.decode = classmethod(compiled["decode"])  # type: ignore[method-assign, assignment]
        return compiled["decode"](header_class, ext)

    def to_ext(self: Header) -> Any:
        if "to_ext" not in compiled:
            compiled["to_ext"] = cls.to_ext = compile_encoder(cls.FIELDS)  # type: ignore[method-assign]
        return compiled["to_ext"](self)

    cls.decode = classmethod(decode)  # type: ignore[method-assign, assignment]
    cls.to_ext = to_ext  # type: ignore[method-assign]


def _spec(field: Any, spellings: Mapping[str, str]) -> FieldSpec:
    members = [field.type, *get_args(field.type)] if type(None) in get_args(field.type) else [field.type]
    kinds: dict[Any, str] = {str: "str", bool: "bool", Int: "i32", Long: "i64"}
    kind = next(kinds[member] for member in members if member in kinds)
    return FieldSpec(
        field.name,
        spellings.get(field.name, camel_case(field.name)),
        kind,
        field.default is MISSING,
        None if field.default is MISSING else field.default,
    )


def camel_case(snake: str) -> str:
    """queue_id -> queueId."""
    first, *parts = snake.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in parts)


def compile_decoder(specs: tuple[FieldSpec, ...]) -> Callable[..., Any]:
    """Compile `decode(cls, ext)` for these fields to straight-line code."""
    lines = ["def decode(cls, ext):", " get = ext.get"]
    for at, spec in enumerate(specs):
        lines.append(f" v{at} = get({spec.wire!r})")
        empty = f" and v{at} != ''" if spec.kind in _BITS else ""  # an empty number counts as absent
        lines.append(f" if v{at} is not None{empty}:")
        lines.append(f"  {_read(spec, at)}")
        lines.append(
            f" else: raise MissingField({spec.wire!r})" if spec.required else f" else: v{at} = {spec.default!r}"
        )
    lines.append(" made = new(cls)")  # twice as fast as __init__ with many keywords
    lines.extend(f" made.{spec.attribute} = v{at}" for at, spec in enumerate(specs))
    lines.append(" return made")
    names: dict[str, Any] = {"MissingField": MissingField, "new": object.__new__}
    names |= {"_integer": checked_integer, "_boolean": _boolean, "_text": _text}
    return _compiled("decode", lines, names)


def _read(spec: FieldSpec, at: int) -> str:
    if spec.kind == "str":
        return f"if v{at}.__class__ is not str: v{at} = _text({spec.wire!r}, v{at})"
    if spec.kind == "bool":
        return f"v{at} = v{at} == 'true' or _boolean(v{at})"
    fast = f"v{at}.__class__ is str and len(v{at}) < {_SAFE_DIGITS[spec.kind]} and v{at}.isdecimal()"
    return f"v{at} = int(v{at}) if {fast} else _integer({spec.wire!r}, v{at}, {_BITS[spec.kind]})"


def compile_encoder(specs: tuple[FieldSpec, ...]) -> Callable[..., dict[str, str]]:
    """Compile `to_ext(self)` for these fields; it writes them in this order."""
    lines = ["def to_ext(self):", " ext = {}"]
    write = {"str": "v", "bool": "'true' if v else 'false'", "i32": "str(v)", "i64": "str(v)"}
    for spec in specs:
        lines.append(f" v = self.{spec.attribute}")
        lines.append(f" if v is not None: ext[{spec.wire!r}] = {write[spec.kind]}")
    lines.append(" return ext")
    return _compiled("to_ext", lines, {})


def _compiled(name: str, lines: list[str], names: dict[str, Any]) -> Callable[..., Any]:
    scope = dict(names)
    exec("\n".join(lines), scope)  # noqa: S102 - the source contains only field names of this package
    function: Callable[..., Any] = scope[name]
    return function


def _boolean(value: Any) -> bool:
    """True for "true" in any case, False for everything else, as in Apache RocketMQ."""
    return str(value).lower() == "true"


def _text(field: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise HeaderError(f"header field {field} is {json_type(value)}, must be text")
