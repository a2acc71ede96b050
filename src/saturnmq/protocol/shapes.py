"""Requests that repeat one header but for a few values: read with one unpack instead of field by field.

A producer's headers differ in queue, time and properties, a consumer's in queue and offsets; everything else, lengths
included, is the same bytes again. A shape remembers those bytes and where the changing values lie. A header either is
of a shape, byte for byte, or it is decoded as any other: `ShapedCommand` equals what `decode_header` makes of it.

Rules of this file: no bytes of a peer are trusted before they equal remembered ones that were decoded in full; a value of
a JSON header must be one whole string of its own. Layout: see `command`. Source: spec 00 sections 3.2, 3.3.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final

from saturnmq.protocol.codes import CommandFlag, RequestCode
from saturnmq.protocol.command import Command, Serialization, json_loads

# Fields whose value differs from one request to the next. A field that is not named here makes a shape per value of it.
CHANGING: Final[dict[int, frozenset[str]]] = {
    int(RequestCode.SEND_MESSAGE): frozenset(("queueId", "bornTimestamp", "properties")),
    int(RequestCode.SEND_MESSAGE_V2): frozenset("egi"),
    int(RequestCode.SEND_BATCH_MESSAGE): frozenset("egi"),
    int(RequestCode.PULL_MESSAGE): frozenset(("queueId", "queueOffset", "commitOffset")),
}
SHAPES_MAX: Final = 64  # of one connection
_CHAIN_MAX: Final = 4  # shapes with headers of one length
_WAIT_FIRST: Final = 256  # headers without a shape that pass after all shapes were thrown away; doubles each time
_WAIT_MAX: Final = 65_536

_HEADER_AT: Final = 8  # in a frame
_OPAQUE_AT: Final = 5  # in a header
_FLAG_AT: Final = 9
_ENTRIES_AT: Final = 21  # when there is no remark
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_BINARY: Final = Serialization.ROCKETMQ
_JSON: Final = Serialization.JSON
_INT32_MAX: Final = 2**31 - 1
_ZERO: Final = ord("0")
_OPAQUE: Final = "\0opaque"  # no field is called so
_JSON_OPAQUE: Final = re.compile(rb'"opaque":([0-9]+)[,}]')
_JSON_TEXT: Final = rb'"%b":"((?:[^"\\]|\\.)*)"'
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")


Place = tuple[str, int, int]  # name, start and end of a value in a header


class ShapedCommand(Command):
    """A request read through a shape. values: the raw text of `shape.names`, valid UTF-8; ext is made when it is asked for."""

    __slots__ = ("_ext", "shape", "values")

    shape: HeaderShape
    values: tuple[bytes, ...]
    _ext: dict[str, str] | None

    @property
    def ext(self) -> dict[str, str]:
        """As decode_header would have made it: same fields, same order."""
        if self._ext is None:
            self._ext = self.shape.ext_of(self.values)
        return self._ext

    @ext.setter
    def ext(self, value: dict[str, str]) -> None:
        self._ext = value


class HeaderShape:
    """What headers of one shape share. names: the changing fields, in the order of the header.

    plan: for the handler of the request, which may keep there what follows from the shared part alone.
    """

    __slots__ = ("_constants", "_ext", "_header_bytes", "_unpack", "code", "flag", "language", "names", "next", "plan",
                 "version")  # fmt: skip

    def __init__(self, header: bytes, command: Command, names: list[str], layout: str) -> None:
        self.code, self.flag = command.code, command.flag
        self.language, self.version = command.language, command.version
        self.next: HeaderShape | None = None
        self.plan: Any = None
        self.names = tuple(names)
        self._ext = dict(command.ext)
        self._header_bytes = len(header)
        self._unpack = struct.Struct(layout).unpack_from
        self._constants = self._unpack(header, 0)[::2]

    @property
    def shared(self) -> dict[str, str]:
        """The fields that are the same in every header of the shape."""
        return {name: value for name, value in self._ext.items() if name not in self.names}

    def ext_of(self, values: tuple[bytes, ...]) -> dict[str, str]:
        """All fields of a header with these values."""
        ext = self._ext.copy()
        for name, value in zip(self.names, values, strict=True):
            ext[name] = value.decode()
        return ext

    def read(self, data: bytes, at: int, end: int) -> ShapedCommand | None:
        """The command of the frame in data[at:end], which is whole and has a header of this length; None: not this shape."""
        raise NotImplementedError


class BinaryShape(HeaderShape):
    """Headers of the ROCKETMQ serialization."""

    __slots__ = ("_from", "_to")

    def __init__(self, header: bytes, command: Command, places: list[Place]) -> None:
        layout, end = f">{_OPAQUE_AT}si", _FLAG_AT
        for _, start, stop in places:
            layout += f"{start - end}s{stop - start}s"
            end = stop
        super().__init__(header, command, [place[0] for place in places], f"{layout}{len(header) - end}s")
        self._from, self._to = _HEADER_AT + places[0][1], _HEADER_AT + places[-1][2]

    def read(self, data: bytes, at: int, end: int) -> ShapedCommand | None:
        parts = self._unpack(data, at + _HEADER_AT)
        if parts[::2] != self._constants:
            return self.next.read(data, at, end) if self.next is not None else None
        values = parts[3::2]
        if not data[at + self._from : at + self._to].isascii() and not _are_texts(values):
            return None
        command = ShapedCommand.__new__(ShapedCommand)
        command.code = self.code
        command.opaque = parts[1]
        command.flag = self.flag
        command.remark = None
        command.language = self.language
        command.version = self.version
        command.serialization = _BINARY
        command.shape = self
        command.values = values
        command._ext = None
        body_at = at + _HEADER_AT + self._header_bytes
        command.body = data[body_at:end] if body_at < end else None
        return command


class JsonShape(HeaderShape):
    """Headers of the JSON serialization; opaque is one of the values."""

    __slots__ = ("_opaque",)

    def __init__(self, header: bytes, command: Command, places: list[Place]) -> None:
        layout, end = ">", 0
        for _, start, stop in places:
            layout += f"{start - end}s{stop - start}s"
            end = stop
        names = [place[0] for place in places]
        self._opaque = names.index(_OPAQUE)
        names.remove(_OPAQUE)
        super().__init__(header, command, names, f"{layout}{len(header) - end}s")

    def read(self, data: bytes, at: int, end: int) -> ShapedCommand | None:
        parts = self._unpack(data, at + _HEADER_AT)
        if parts[::2] != self._constants:
            return self.next.read(data, at, end) if self.next is not None else None
        values = []
        try:
            for raw in parts[1::2]:
                values.append(raw if raw.isdigit() else json_loads(b'"%b"' % raw).encode())
        except ValueError:
            return None
        number = values.pop(self._opaque)
        if not number.isdigit() or (number[0] == _ZERO and len(number) > 1):
            return None
        opaque = int(number)
        if opaque > _INT32_MAX:
            return None
        command = ShapedCommand.__new__(ShapedCommand)
        command.code = self.code
        command.opaque = opaque
        command.flag = self.flag
        command.remark = None
        command.language = self.language
        command.version = self.version
        command.serialization = _JSON
        command.shape = self
        command.values = tuple(values)
        command._ext = None
        body_at = at + _HEADER_AT + self._header_bytes
        command.body = data[body_at:end] if body_at < end else None
        return command


class HeaderShapes:
    """The shapes of one connection, by the second word of their frames."""

    __slots__ = ("_count", "_wait", "_wait_next", "by_word")

    def __init__(self) -> None:
        self.by_word: dict[int, HeaderShape] = {}
        self._count = 0
        self._wait = 0
        self._wait_next = _WAIT_FIRST

    def learn(self, word: int, header: bytes, command: Command) -> None:
        """Remember the shape of a header that was decoded in full. Many different ones in turn are not remembered."""
        names = CHANGING.get(command.code)
        if names is None or command.flag & _RESPONSE or command.remark is not None:
            return
        if self._wait:
            self._wait -= 1
            return
        binary = command.serialization is _BINARY
        places = _binary_places(header, command, names) if binary else _json_places(header, command, names)
        if not places:
            return
        before = self.by_word.get(word)
        if self._count >= SHAPES_MAX or (before is not None and _length(before) >= _CHAIN_MAX):
            self.by_word.clear()
            self._count = 0
            self._wait, self._wait_next = self._wait_next, min(2 * self._wait_next, _WAIT_MAX)
            return
        shape = BinaryShape(header, command, places) if binary else JsonShape(header, command, places)
        shape.next = before
        self.by_word[word] = shape
        self._count += 1


def _binary_places(header: bytes, command: Command, names: frozenset[str]) -> list[Place]:
    """Where the changing values are in a valid header; nothing for a header that no shape can stand for."""
    if header[_FLAG_AT + 4 : _FLAG_AT + 8] != b"\0\0\0\0":
        return []
    (ext_bytes,) = _I32.unpack_from(header, _ENTRIES_AT - 4)
    if _ENTRIES_AT + ext_bytes != len(header):
        return []
    places: list[Place] = []
    at = _ENTRIES_AT
    fields = 0
    while at < len(header):
        (key_bytes,) = _I16.unpack_from(header, at)
        value_at = at + 2 + key_bytes + 4
        name = header[at + 2 : value_at - 4].decode()
        (value_bytes,) = _I32.unpack_from(header, value_at - 4)
        at = value_at + value_bytes
        fields += 1
        if name in names:
            places.append((name, value_at, at))
    return places if fields == len(command.ext) else []  # a repeated field: its last value counts, none of a shape


def _json_places(header: bytes, command: Command, names: frozenset[str]) -> list[Place]:
    """The same for JSON text: every value must be where a plain reader sees it, and nothing else may be escaped."""
    numbers = list(_JSON_OPAQUE.finditer(header))
    if len(numbers) != 1 or header.count(b'"opaque"') != 1:
        return []
    places: list[Place] = [(_OPAQUE, *numbers[0].span(1))]
    for name in names:
        if name not in command.ext:
            continue
        found = list(re.finditer(_JSON_TEXT % name.encode(), header))
        if len(found) != 1 or header.count(b'"%b"' % name.encode()) != 1:
            return []
        places.append((name, *found[0].span(1)))
    places.sort(key=lambda place: place[1])
    end = 0
    for _, start, stop in places:
        if start < end or b"\\" in header[end:start]:
            return []
        end = stop
    return places if len(places) > 1 and b"\\" not in header[end:] else []


def _length(shape: HeaderShape) -> int:
    count, following = 1, shape.next
    while following is not None:
        count, following = count + 1, following.next
    return count


def _are_texts(values: tuple[bytes, ...]) -> bool:
    try:
        for value in values:
            value.decode()
    except UnicodeDecodeError:
        return False
    return True
