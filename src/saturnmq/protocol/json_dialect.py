"""The JSON dialect of Apache RocketMQ (fastjson): a tolerant reader, and a writer for maps with objects as keys.

Text in, plain Python values out, and the reverse; this module knows no particular body. `loads` tries the fastest standard parser
and falls back to the tolerant reader, which is linear in time and bounded in depth. Any input either parses or raises BodyError.
A server passes a `budget` for the bodies of requests: a million small values take seconds to read, and a few KiB less than a
millisecond, so a limit in bytes alone would be too large or too small.

What the tolerant reader accepts beyond the standard:
  {0:"a", 1:"b"}             numeric member names; they become text
  {name:"a", 'b':'c'}        bare member names, single quotes, bare words as values
  {{"queueId":0}:5}          objects as member names; they become ObjectKey
  {"$ref":"$.a.b[0]"}        back references; they are replaced by the value they refer to
  [1,2,]                     superfluous commas

Requirements: REM-33.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from saturnmq.protocol.errors import BodyError, LocalProtocolError


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _loads(data: Any) -> Any:
    text = data if isinstance(data, str) else bytes(data).decode()
    return json.loads(text, parse_int=_number, parse_constant=_reject_constant)


def _dumps(value: object, default: Any = None, option: int = 0) -> bytes:
    compact = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    return json.dumps(value, default=default, sort_keys=bool(option), **compact).encode()  # type: ignore[arg-type]


standard_loads: Callable[[Any], Any] = _loads
standard_dumps: Callable[..., bytes] = _dumps
SORT_KEYS = 1
try:
    import orjson

    standard_loads, standard_dumps, SORT_KEYS = orjson.loads, orjson.dumps, orjson.OPT_SORT_KEYS
except ImportError:  # installed by default, but optional (PKG-04)
    pass

BODY_BYTES_MAX: Final = 16_777_216  # the frame limit
DEPTH_MAX: Final = 64  # the deepest body of the protocol nests 6 levels
REFERENCED_NODES_MAX: Final = (
    1_000_000  # values with references expanded; unbounded, n nested references could expand to 2**n values
)
UNLIMITED: Final = 2**62  # budget of files of our own and of responses
_OBJECT_COST: Final = 4  # of the budget; every other value costs 1
_TOKEN_COST: Final = 2  # of a token, an escape or a step of a reference in the tolerant reader
_INTEGER_DIGITS_MAX: Final = 20

_TOKEN: Final = re.compile(
    r"""[\s﻿]*+(?:
        (?P<mark>[{}\[\]:,])
      | "(?P<double>[^"\\]*+(?:\\.[^"\\]*+)*+)"
      | '(?P<single>[^'\\]*+(?:\\.[^'\\]*+)*+)'
      | (?P<number>-?\d++(?:\.\d++)?+(?:[eE][+-]?\d++)?+)(?=[\s{}\[\]:,]|\Z)
      | (?P<word>[^\s{}\[\]:,"']++)
    )""",
    re.VERBOSE | re.DOTALL,
)
# A flat object. Large bodies consist mostly of flat objects, and most of those are standard JSON: they go to the fast parser.
# Matches never overlap, so scanning them a second time keeps the total time linear.
_FLAT: Final = re.compile(r"\{[^{}]*+\}")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED: Final = {
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "0": "\0",
    '"': '"',
    "'": "'",
    "/": "/",
    "\\": "\\",
}
_LITERALS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None}
_PATH_STEP: Final = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\]\\])++)|\[(?P<at>\d{1,9})\]|\[["'](?P<quoted>[^"']*+)["']\]""", re.DOTALL
)


class ObjectKey:
    """A JSON object used as a member name, such as a message queue in `offsetTable`.

    fields: its members. Two keys are equal when their members are, regardless of order.
    """

    __slots__ = ("_identity", "fields")

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = dict(fields)
        try:
            self._identity: Any = frozenset((name, type(value), value) for name, value in self.fields.items())
        except TypeError:  # a member that is a list or an object
            self._identity = dumps([[name, self.fields[name]] for name in sorted(self.fields)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectKey) and bool(self._identity == other._identity)

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return f"ObjectKey({self.fields!r})"


def json_type(value: Any) -> str:
    """The JSON type of a parsed value with its article, for error texts: "an array"."""
    names = {dict: "an object", list: "an array", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def loads(
    data: bytes | bytearray | memoryview | str, *, bytes_max: int = BODY_BYTES_MAX, budget: int = UNLIMITED
) -> Any:
    """Parse standard JSON or the Apache RocketMQ dialect.

    budget: limit on the work of reading the values and of converting them afterwards, about 1 us per unit. Objects become dicts
    whose keys are text or ObjectKey. Raises BodyError for input that is neither, longer than bytes_max, nested deeper than
    DEPTH_MAX, or beyond the budget.
    """
    _check_limits(data, bytes_max, budget)
    try:
        value = standard_loads(data)
    except (ValueError, RecursionError):
        return _Reader(_text_of(data), budget).document()
    if "$ref" in data if isinstance(data, str) else b"$ref" in bytes(data):
        return _Reader(_text_of(data), budget).document()
    return value


def _check_limits(data: bytes | bytearray | memoryview | str, bytes_max: int, budget: int) -> None:
    """Raise BodyError for input that is too long, or may hold more values than the budget covers; marks in text count too."""
    if len(data) > bytes_max:
        raise BodyError(f"JSON body of {len(data)} bytes, at most {bytes_max} are allowed")
    if budget < UNLIMITED:
        text = data.encode("utf-8", "replace") if isinstance(data, str) else bytes(data)
        cost = _OBJECT_COST * text.count(b"{") + text.count(b"[") + text.count(b",")
        if cost > budget:
            raise _over_budget(budget)


def _over_budget(budget: int) -> BodyError:
    return BodyError(f"JSON body has too many values: reading it exceeds the limit of {budget} units of work")


def _text_of(data: bytes | bytearray | memoryview | str) -> str:
    try:
        text = data if isinstance(data, str) else bytes(data).decode()
    except UnicodeDecodeError as error:
        raise BodyError(f"JSON body of {len(data)} bytes is not UTF-8: {error}") from error
    return text


def dumps(value: Any) -> bytes:
    """Serialize value as standard JSON, except that an ObjectKey key is written as an object in place of the member name.

    None members are written as null; callers omit them beforehand if needed. Raises LocalProtocolError for values that JSON cannot
    represent.
    """
    parts: list[bytes] = []
    _write(value, parts, DEPTH_MAX)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _write(value: Any, parts: list[bytes], depth: int) -> None:
    """Append the JSON of value: in one call if the fast writer accepts it, otherwise level by level."""
    try:
        parts.append(standard_dumps(value))
        return
    except (TypeError, ValueError, RecursionError) as error:
        reason = error  # object keys, int keys, or a type JSON cannot represent
    if depth < 0:
        raise LocalProtocolError(f"a value nested deeper than {DEPTH_MAX} levels cannot be written as JSON")
    if isinstance(value, dict):
        separator = b"{"
        for name, member in value.items():
            parts.append(separator)
            _write(name.fields if isinstance(name, ObjectKey) else _name(name), parts, depth - 1)
            parts.append(b":")
            _write(member, parts, depth - 1)
            separator = b","
        parts.append(b"}" if value else b"{}")
    elif isinstance(value, list | tuple):
        separator = b"["
        for member in value:
            parts.append(separator)
            _write(member, parts, depth - 1)
            separator = b","
        parts.append(b"]" if value else b"[]")
    elif isinstance(value, float):
        parts.append(b"null")  # NaN and infinity have no JSON form
    else:
        raise LocalProtocolError(f"a {type(value).__name__} cannot be written as JSON: {reason}") from reason


def _name(name: Any) -> str:
    if isinstance(name, str):
        return name
    if isinstance(name, int) and not isinstance(name, bool):
        return str(int(name))
    raise LocalProtocolError(f"a {type(name).__name__} cannot be the name of a JSON member")


class _Reader:
    """Parser of one document: recursive descent, at most DEPTH_MAX deep; no character is scanned more than three times."""

    def __init__(self, text: str, budget: int = UNLIMITED) -> None:
        self._budget = budget
        self._tokens_remaining = budget // _TOKEN_COST
        self._text = text
        self._at = 0
        self._kind = ""
        self._token = ""
        self._references: list[tuple[Any, Any, str]] = []

    def document(self) -> Any:
        self._advance()
        value = self._value(0)
        if self._at != len(self._text) and self._text[self._at :].strip():
            raise BodyError(f"JSON body goes on after its end at character {self._at}")
        return self._resolved(value) if self._references else value

    def _spend(self, steps: int) -> None:
        self._tokens_remaining -= steps
        if self._tokens_remaining < 0:
            raise _over_budget(self._budget)

    def _advance(self) -> None:
        self._tokens_remaining -= 1
        if self._tokens_remaining < 0:
            raise _over_budget(self._budget)
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise BodyError(f"JSON body ends or makes no sense at character {self._at}")
        self._kind = match.lastgroup or ""
        self._token = match[self._kind]
        self._at = match.end()

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise BodyError(f"JSON body is nested deeper than {DEPTH_MAX} levels")
        kind = self._kind
        if kind == "mark":
            if self._is("{"):
                return self._object(depth)
            if self._is("["):
                return self._array(depth)
            raise self._unexpected()
        if kind == "number":
            return _number(self._token)
        if kind == "word":
            return _LITERALS.get(self._token, self._token)
        return self._string()

    def _object(self, depth: int) -> dict[Any, Any]:
        flat = _FLAT.match(self._text, self._at - 1)
        if flat is not None:
            try:
                members: dict[Any, Any] = standard_loads(flat[0])
            except (ValueError, RecursionError):
                pass
            else:
                self._at = flat.end()
                return members
        members = {}
        while True:
            self._advance()
            if self._is("}"):
                return members
            if self._is(","):
                continue
            name = self._member_name(depth)
            self._advance()
            if not self._is(":"):
                raise self._unexpected()
            self._advance()
            members[name] = value = self._value(depth + 1)
            if type(value) is dict:
                self._note_reference(members, name, value)
            self._advance()
            if self._is("}"):
                return members
            if not self._is(","):
                raise self._unexpected()

    def _member_name(self, depth: int) -> str | ObjectKey:
        if self._kind in ("double", "single"):
            return self._string()
        if self._is("{"):
            if depth + 1 > DEPTH_MAX:
                raise BodyError(f"JSON body is nested deeper than {DEPTH_MAX} levels")
            reference_count = len(self._references)
            fields = self._object(depth + 1)
            if len(self._references) != reference_count:
                raise BodyError("a back reference cannot be part of a member name")
            return _object_key(fields)
        if self._kind == "mark":
            raise self._unexpected()
        return self._token

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        while True:
            self._advance()
            if self._is("]"):
                return items
            if self._is(","):
                continue
            value = self._value(depth + 1)
            items.append(value)
            if type(value) is dict:
                self._note_reference(items, len(items) - 1, value)
            self._advance()
            if self._is("]"):
                return items
            if not self._is(","):
                raise self._unexpected()

    def _string(self) -> str:
        text = self._token
        escapes = text.count("\\")
        if not escapes:
            return text
        self._spend(escapes)
        text = _ESCAPE.sub(_unescape, text)
        if not text.isascii():  # may contain an escaped surrogate pair
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text

    def _is(self, mark: str) -> bool:
        return self._kind == "mark" and self._token == mark

    def _unexpected(self) -> BodyError:
        return BodyError(f"JSON body has an unexpected {self._token[:20]!r} before character {self._at}")

    def _note_reference(self, holder: Any, at: Any, value: dict[Any, Any]) -> None:
        if len(value) == 1:
            path = value.get("$ref")
            if type(path) is str:
                self._references.append((holder, at, path))

    def _resolved(self, root: Any) -> Any:
        """Return root with every reference replaced, in order of appearance; by None where its target does not exist."""
        for holder, at, path in self._references:
            if type(holder[at]) is not dict or "$ref" not in holder[at]:
                continue  # overwritten by a repeated member
            self._spend(path.count(".") + path.count("["))
            holder[at] = _follow(root, path)
        _check_size(root, min(REFERENCED_NODES_MAX, self._budget // _OBJECT_COST))
        return root


def _object_key(fields: dict[Any, Any]) -> ObjectKey:
    """Build the key. Only flat objects are accepted: no known peer sends others, and nesting them would cost quadratic time."""
    for name, value in fields.items():
        if type(name) is not str or name == "$ref" or isinstance(value, dict | list):
            raise BodyError("a member name that is an object must be a flat one, and no reference")
    try:
        return ObjectKey(fields)
    except LocalProtocolError as error:
        raise BodyError(str(error)) from error


def _number(token: str) -> int | float:
    if len(token) <= _INTEGER_DIGITS_MAX and token.lstrip("-").isdecimal():
        return int(token)
    try:
        number = float(token)
    except ValueError as error:
        raise BodyError(f"{token[:40]!r} is not a number") from error
    return number


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    try:
        return _ESCAPED[code]
    except KeyError:
        raise BodyError(f"JSON text has an unknown escape \\{code}") from None


def _follow(root: Any, path: str) -> Any:
    """The value at a path such as $.a.b[0]; None when it does not exist or is itself a reference."""
    if not path.startswith("$"):
        return None
    value, at = root, 1
    while at < len(path):
        step = _PATH_STEP.match(path, at)
        if step is None:
            return None
        at = step.end()
        if step["at"] is not None and type(value) is list:
            index = int(step["at"])
            value = value[index] if index < len(value) else None
        elif type(value) is dict:
            name = step["name"]
            value = value.get(re.sub(r"\\(.)", r"\1", name, flags=re.DOTALL) if name else step["quoted"] or step["at"])
        else:
            return None
    return None if type(value) is dict and len(value) == 1 and "$ref" in value else value


def _check_size(root: Any, nodes_max: int) -> None:
    """Raise BodyError when references form a cycle or expand to more than nodes_max values."""
    sizes: dict[int, int] = {}
    open_: set[int] = set()
    todo: list[tuple[Any, bool]] = [(root, False)]
    while todo:
        value, members_counted = todo.pop()
        if not isinstance(value, dict | list):
            continue
        members = list(value.values()) if isinstance(value, dict) else value
        if members_counted:
            total = 1 + sum(sizes.get(id(member), 1) for member in members)
            if total > nodes_max:
                raise BodyError(f"JSON body stands for more than {nodes_max} values")
            sizes[id(value)] = total
            open_.discard(id(value))
        elif id(value) in open_:
            raise BodyError("JSON body refers to itself")
        elif id(value) not in sizes:
            open_.add(id(value))
            todo.append((value, True))
            todo.extend((member, False) for member in members)
