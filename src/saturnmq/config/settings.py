"""Settings classes: Apache RocketMQ's `key=value` configuration as typed, frozen dataclasses.

Text in, values out; reading files is left to the caller. Each field carries its Java key, default, unit, range and requirement ID,
and one pass reports every problem.

Requirements: NS-02, DG-11, CLI-10, CLI-11.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from types import SimpleNamespace
from typing import Any, Final, Generic, TypeVar, get_type_hints

from saturnmq.protocol.errors import ConfigError

T = TypeVar("T")

_SIZE_UNITS: Final = {
    "": 1, "b": 1,
    "k": 1024, "kb": 1024, "kib": 1024,
    "m": 1024**2, "mb": 1024**2, "mib": 1024**2,
    "g": 1024**3, "gb": 1024**3, "gib": 1024**3,
    "t": 1024**4, "tb": 1024**4, "tib": 1024**4,
}  # fmt: skip
_DURATION_UNITS_MS: Final = {
    "": 1, "ms": 1,
    "s": 1000, "second": 1000, "seconds": 1000,
    "m": 60_000, "min": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
    "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
}  # fmt: skip
_NUMBER: Final = re.compile(r"(-?\d+(?:\.\d+)?)\s*([a-zA-Z]*)")
MASK: Final = "******"
LOG_LEVELS: Final = ("", "DEBUG", "INFO", "WARNING", "ERROR")  # empty: as the command line sets it


@dataclass(frozen=True, slots=True)
class Key:
    """Metadata of a setting: Java key, unit, requirement ID, range or choices, and whether it is a secret.

    no_effect: why the key is accepted although nothing reads it; empty for a key that is read. runtime: whether administrators may
    change it while the server runs, with any allowed value or with one of the listed ones (SEC-07). default_text: the documented
    default, where it depends on the machine.
    """

    java: str
    unit: str = ""
    spec: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    no_effect: str = ""
    runtime: bool | tuple[str, ...] = False
    default_text: str = ""

    def allowed(self) -> str:
        """The allowed values, for error texts; empty if unrestricted."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.low is None and self.high is None:
            return ""
        low = "" if self.low is None else f"{self.low:g}"
        high = "" if self.high is None else f"{self.high:g}"
        return f"{low}..{high}{' ' + self.unit if self.unit else ''}"


def key(
    java: str,
    default: Any,
    *,
    unit: str = "",
    spec: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: Iterable[str] = (),
    secret: bool = False,
    no_effect: str = "",
    runtime: bool | tuple[str, ...] = False,
    default_text: str = "",
) -> Any:
    """Define a settings field read from a Java key. Units "bytes" and "ms" also accept `64MiB` and `90s` (CLI-11)."""
    meta = Key(java, unit, spec, low, high, tuple(choices), secret, no_effect, runtime, default_text)
    return dataclasses.field(default=default, metadata={"key": meta}, repr=not secret)


_KEYS: Final[dict[type[Any], Mapping[str, tuple[str, Key]]]] = {}  # by settings class


def keys_of(cls: type[Any]) -> Mapping[str, tuple[str, Key]]:
    """Map Java key to (attribute, Key) for a settings class."""
    keys = _KEYS.get(cls)
    if keys is None:
        keys = _KEYS[cls] = {
            item.metadata["key"].java: (item.name, item.metadata["key"])
            for item in dataclasses.fields(cls)
            if "key" in item.metadata
        }
    return keys


def without_effect(settings: Any) -> list[str]:
    """One sentence per key without effect whose value is not the default, for a warning."""
    texts = []
    for item in dataclasses.fields(settings):
        meta, value = item.metadata.get("key"), getattr(settings, item.name)
        if meta is not None and meta.no_effect and value != item.default:
            texts.append(f"{meta.java}={_text(value)} has no effect: {meta.no_effect}")
    return texts


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """Settings, the origin of each value that was set, and the unknown keys."""

    settings: T
    origins: dict[str, str]
    unknown_keys: dict[str, str]

    def unknown_hints(self, key_names: Iterable[str]) -> list[str]:
        """One sentence per unknown key, with the closest known key if there is one (CLI-10)."""
        names = list(key_names)
        hints = []
        for name in self.unknown_keys:
            near = difflib.get_close_matches(name, names, n=1)
            hints.append(f"unknown key {name!r}" + (f", did you mean {near[0]!r}?" if near else ""))
        return hints


def load(cls: type[T], *sources: tuple[str, Mapping[str, str]]) -> Loaded[T]:
    """Build settings of `cls` from sources of (origin, key -> text); later sources override earlier ones.

    Raises ConfigError with all problems at once, each with key, value, origin and allowed range.
    """
    keys = keys_of(cls)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    unknown_keys: dict[str, str] = {}
    problems: dict[str, str] = {}
    for origin, mapping in sources:
        for name, text in mapping.items():
            if name not in keys:
                unknown_keys[name] = text
                continue
            attribute, meta = keys[name]
            try:
                values[attribute] = parse_value(text, type_of(cls, attribute), meta)
                origins[name] = origin
                problems.pop(name, None)
            except ValueError as error:
                problems[name] = f"{name}={MASK if meta.secret else repr(text)} ({origin}): {error}"
    problem_texts = list(problems.values())
    if not problem_texts:
        settings = cls(**values)
        validate = getattr(settings, "validate", None)
        if validate is not None:
            problem_texts = list(validate())
        if not problem_texts:
            return Loaded(settings, origins, unknown_keys)
    raise ConfigError(problem_texts)


def type_of(cls: type, attribute: str) -> Any:
    """The type of one field; `get_type_hints` would evaluate the annotations of all, and a broker has 300 keys."""
    for base in cls.__mro__:
        if annotation := inspect.get_annotations(base).get(attribute):
            alone = SimpleNamespace(__annotations__={attribute: annotation})
            return get_type_hints(alone, vars(sys.modules[base.__module__]))[attribute]
    raise AttributeError(f"{cls.__name__} has no field {attribute}")


def parse_value(text: str, value_type: Any, meta: Key) -> Any:
    """Parse one value. Raises ValueError that states what is allowed."""
    text = text.strip()
    value: Any
    if value_type is bool:
        value = parse_bool(text)
    elif value_type is int:
        value = (
            parse_size(text) if meta.unit == "bytes" else parse_duration_ms(text) if meta.unit == "ms" else _int(text)
        )
    elif value_type is float:
        value = float(text)
    elif isinstance(value_type, type) and issubclass(value_type, Enum):
        names = [member.name for member in value_type]
        if text.upper() not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return value_type[text.upper()]
    else:
        value = text
    if meta.choices and str(value) not in meta.choices:
        raise ValueError(f"must be {meta.allowed()}")
    if isinstance(value, int | float) and (
        (meta.low is not None and value < meta.low) or (meta.high is not None and value > meta.high)
    ):
        raise ValueError(f"must be in {meta.allowed()}")
    return value


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def parse_bool(text: str) -> bool:
    """Parse `true` or `false` in any case. Raises ValueError."""
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    raise ValueError("must be true or false")


def parse_size(text: str) -> int:
    """Parse a size such as `67108864`, `64MiB` or `64m` to bytes: the one parser of sizes. Raises ValueError.

    Units, in any case: b, k, m, g, t, each also as kb or kib; all are powers of 1024. `m` is MiB here, and minutes in a duration.
    """
    return _scaled(text, _SIZE_UNITS, "a size such as 67108864, 64MiB or 1GiB")


def parse_duration_ms(text: str) -> int:
    """Parse a duration such as `90000`, `90s`, `1.5min` or `2h` to ms: the one parser of durations. Raises ValueError.

    Units, in any case: ms, s, m or min, h, d, and the words that Spark writes, such as `10 seconds`. A bare number is ms.
    """
    return _scaled(text, _DURATION_UNITS_MS, "a duration such as 90000, 500ms, 90s or 2h")


def _scaled(text: str, units: Mapping[str, int], allowed: str) -> int:
    match = _NUMBER.fullmatch(text.strip())
    factor = units.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"must be {allowed}")
    return int(match[1]) * factor if "." not in match[1] else round(float(match[1]) * factor)


def parse_properties(text: str) -> dict[str, str]:
    """Parse the text of a Java properties file; of equal keys the last one wins.

    Supports the separators `=`, `:` and blank, comments with `#` and `!`, `\\` continuation lines and `\\uXXXX` escapes.
    """
    pairs: dict[str, str] = {}
    for line in _logical_lines(text):
        at = 0
        while (part := _KEY_PART.match(line, at)) is not None:
            at = part.end()
        value_text = line[at:].lstrip(" \t\f")
        if value_text[:1] in ("=", ":"):
            value_text = value_text[1:].lstrip(" \t\f")
        pairs[_unescape(line[:at])] = _unescape(value_text)
    return pairs


def property_line(key: str, value: str) -> str:
    """A line of a properties file that `parse_properties` reads as this key and value."""
    return f"{_escaped(key, ' =:#!')}={_escaped(value, '')}\n"


def _escaped(text: str, more: str) -> str:
    marks = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"} | {mark: "\\" + mark for mark in more}
    return "".join(marks.get(mark, mark) for mark in text)


_KEY_PART: Final = re.compile(r"[^=: \t\f\\]+|\\.?", re.DOTALL)
_LINE_END: Final = re.compile(r"\r\n?|\n")  # Java's line terminators; str.splitlines accepts more


def _logical_lines(text: str) -> Iterable[str]:
    joined = ""
    for raw in _LINE_END.split(text):
        line = raw.lstrip(" \t\f")
        if not joined and (not line or line[0] in "#!"):
            continue
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            joined += line[:-1]
            continue
        yield joined + line
        joined = ""
    if joined:
        yield joined


_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text

    return _ESCAPE.sub(_unescaped, text)


_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")


def _unescaped(match: re.Match[str]) -> str:
    digits, mark = match.groups()
    return chr(int(digits, 16)) if digits else _ESCAPES.get(mark, mark)


def format_properties(pairs: Mapping[str, object]) -> str:
    """`key=value` lines in the format of Apache RocketMQ's GET_BROKER_CONFIG and GET_NAMESRV_CONFIG responses."""
    return "".join(f"{name}={_text(value)}\n" for name, value in pairs.items())


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value.name
    return "" if value is None else str(value)


_SECRET_NAME: Final = re.compile(r"secret|pass|token|credential|key", re.IGNORECASE)
_URL_SECRET: Final = re.compile(r"(://[^/@\s:;,]*:)[^/@\s;,]+(?=@)")


def masked(name: str, text: str) -> str:
    """The text of a key that is not a setting, without its secret: by its name, or the password of a URL."""
    return MASK if text and _SECRET_NAME.search(name) else _URL_SECRET.sub(rf"\1{MASK}", text)


def to_properties(settings: Any) -> dict[str, str]:
    """Map Java key to text for every setting, secrets masked."""
    pairs = {}
    for java, (attribute, meta) in keys_of(type(settings)).items():
        text = _text(getattr(settings, attribute))
        if meta.secret and text:
            text = MASK
        elif "://" in text:
            text = _URL_SECRET.sub(rf"\1{MASK}", text)
        pairs[java] = text
    return pairs


def parse_time_ms(text: str, now_ms: int) -> int:
    """Unix ms from `now`, Unix milliseconds, or ISO 8601 (UTC unless it names a zone). Raises ValueError (CLI-11)."""
    text = text.strip()
    if text == "now":
        return now_ms
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be `now`, Unix milliseconds or ISO 8601 such as 2026-01-31T12:00:00Z") from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return round(when.timestamp() * 1000)


def without_credentials(text: str) -> str:
    """Text of an address or URL as it may be shown: all of `user:password` before an @ is masked."""
    if "@" not in text:
        return text
    scheme, separator, _ = text.partition("://")
    return f"{scheme if separator else ''}{separator}{MASK}@{text.rpartition('@')[2]}"
