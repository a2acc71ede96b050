"""Fast path for request headers that repeat earlier ones but for a few values: one unpack instead of field-by-field decoding.

The headers of a producer differ in queue id, born time and properties, those of a consumer in queue id and offsets; all other
bytes repeat. A template stores the constant bytes and the positions of the values. One value, the message properties, may vary
in length; the others have a fixed length. A header either matches a template byte for byte or is decoded in full: a
`TemplateCommand` equals what `decode_header` returns for the same bytes.

Invariants: no value is taken from a frame before the bytes around it equal those of a header that was decoded in full; a value of
a JSON header is one whole JSON string. Memory and time per connection are bounded by the constants below. Header layouts: see
`command` (docs/spec/00 sections 3.2 and 3.3).
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

from saturnmq.protocol.codes import CommandFlag, RequestCode
from saturnmq.protocol.frames.command import Command, Serialization
from saturnmq.protocol.headers.send_fields import SEND_V2_BY_V1
from saturnmq.protocol.json_dialect import standard_loads
from saturnmq.protocol.signatures import SIGNATURE, SIGNATURE_NONCE, SIGNATURE_TIME

# Fields whose values differ from request to request. A different value of any other field needs another template.
_SIGNED: Final = frozenset((SIGNATURE, SIGNATURE_TIME, SIGNATURE_NONCE))
_SEND: Final = frozenset(("queueId", "bornTimestamp", "properties"))
_PULL: Final = frozenset(("queueId", "queueOffset", "commitOffset"))
_SEND_V2: Final = frozenset(SEND_V2_BY_V1[name] for name in _SEND)
CHANGING: Final[dict[int, frozenset[str]]] = {
    int(RequestCode.SEND_MESSAGE): _SEND | _SIGNED,
    int(RequestCode.SEND_MESSAGE_V2): _SEND_V2 | _SIGNED,
    int(RequestCode.SEND_BATCH_MESSAGE): _SEND_V2 | _SIGNED,
    int(RequestCode.PULL_MESSAGE): _PULL | _SIGNED,
    int(RequestCode.LITE_PULL_MESSAGE): _PULL | _SIGNED,
}
PROPERTIES: Final = frozenset(("properties", SEND_V2_BY_V1["properties"]))  # the field that may vary in length
TEMPLATES_MAX: Final = 64  # per connection
CHAIN_MAX: Final = 4  # templates tried first for one header length
WORDS_MAX: Final = 512  # header words with such a list
_WAIT_FIRST: Final = 256  # headers decoded in full after all templates were dropped; doubles with every drop
_WAIT_MAX: Final = 65_536

_HEADER_AT: Final = 8  # offset in a frame
_OPAQUE_AT: Final = 5  # offset in a binary header
_FLAG_AT: Final = 9
_ENTRIES_AT: Final = 21  # offset when there is no remark
_LENGTH_BYTES: Final = 4  # length prefix of a value in a binary header
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_BINARY: Final = Serialization.ROCKETMQ
_JSON: Final = Serialization.JSON
_INT32_MAX: Final = 2**31 - 1
_INT32_DIGITS: Final = 10
_ZERO: Final = ord("0")
_OPAQUE: Final = "\0opaque"  # cannot be a field name
_NUMBER: Final = "\0number"
_JSON_OPAQUE: Final = re.compile(rb'"opaque":([0-9]+)[,}]')
_JSON_TEXT: Final = rb'"%b":"((?:[^"\\]|\\.)*)"'
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")

ValueSpan = tuple[str, int, int]  # name, start and end of a value in a header
Match = tuple[int, tuple[bytes, ...], str]  # opaque, TemplateCommand.values, TemplateCommand.text


class TemplateCommand(Command):
    """A request read through a template; `FrameDecoder` creates it.

    values: raw text of the fields in `template.names`, valid UTF-8. text: the properties, "" if the header has none. ext is built
    on first use.
    """

    __slots__ = ("_ext", "template", "text", "values")

    template: HeaderTemplate
    values: tuple[bytes, ...]
    text: str
    _ext: dict[str, str] | None

    @property
    def ext(self) -> dict[str, str]:
        """The header fields, equal to those of decode_header in content and order."""
        if self._ext is None:
            self._ext = self.template.ext_of(self.values, self.text)
        return self._ext

    @ext.setter
    def ext(self, value: dict[str, str]) -> None:
        """Replace the fields; the text of those that came is not kept."""
        self._ext, self.values, self.text = value, (), ""

    @property
    def header_bytes(self) -> int:
        """Memory of the header fields, bytes. What the template holds is shared, what `values` holds is short."""
        return sys.getsizeof(self.text) if self._ext is None else super().header_bytes


class Piece:
    """A byte range of a header: constant bytes, and values of fixed length between them."""

    __slots__ = ("constants", "size", "unpack")

    def __init__(self, header: bytes, start: int, end: int, spans: list[ValueSpan]) -> None:
        """spans: positions of the values. Those named _NUMBER are unpacked as signed 32-bit integers, the others as bytes."""
        form, at = ">", start
        for name, value_at, value_end in spans:
            form += f"{value_at - at}s" + ("i" if name is _NUMBER else f"{value_end - value_at}s")
            at = value_end
        self.size = end - start
        self.unpack: Callable[[bytes, int], tuple[Any, ...]] = struct.Struct(f"{form}{end - at}s").unpack_from
        self.constants = self.unpack(header, start)[::2]


class HeaderTemplate:
    """The parts that headers of one kind have in common.

    names: the varying fields of fixed length, in header order. text_name: the field of variable length, if there is one.
    parsed: owned by the request handler, which may cache there whatever it derives from the shared fields alone.
    """

    __slots__ = ("_ext", "code", "flag", "language", "names", "parsed", "remark", "text_name", "version")

    serialization: Serialization

    def __init__(self, command: Command, spans: list[ValueSpan]) -> None:
        self.code, self.flag, self.remark = command.code, command.flag, command.remark
        self.language, self.version = command.language, command.version
        self.parsed: Any = None
        self._ext = dict(command.ext)
        names = [name for name, _, _ in spans]
        self.text_name = next((name for name in names if name in PROPERTIES), None)
        self.names = tuple(name for name in names if name not in (_OPAQUE, self.text_name))

    @property
    def shared(self) -> dict[str, str]:
        """The fields with the same value in every header of the template."""
        return {name: value for name, value in self._ext.items() if name not in self.names and name != self.text_name}

    def ext_of(self, values: tuple[bytes, ...], text: str) -> dict[str, str]:
        """All fields of a header with these values."""
        ext = self._ext.copy()
        for name, value in zip(self.names, values, strict=True):
            ext[name] = value.decode()
        if self.text_name is not None:
            ext[self.text_name] = text
        return ext

    def match(self, data: bytes, at: int, header_bytes: int) -> Match | None:
        """The values in the header of the frame at data[at]; None when the header does not match."""
        raise NotImplementedError


class BinaryTemplate(HeaderTemplate):
    """Headers in ROCKETMQ serialization: a head up to and including the text length, the text, and a tail."""

    __slots__ = ("_head", "_tail")

    serialization = _BINARY

    def __init__(self, header: bytes, command: Command, spans: list[ValueSpan]) -> None:
        super().__init__(command, spans)
        opaque = (_NUMBER, _OPAQUE_AT, _FLAG_AT)
        self._tail: Piece | None = None
        if self.text_name is None:
            self._head = Piece(header, 0, len(header), [opaque, *spans])
            return
        index = [name for name, _, _ in spans].index(self.text_name)
        _, start, end = spans[index]
        ext_bytes = (_NUMBER, _ENTRIES_AT - _LENGTH_BYTES, _ENTRIES_AT)
        text_bytes = (_NUMBER, start - _LENGTH_BYTES, start)
        self._head = Piece(header, 0, start, [opaque, ext_bytes, *spans[:index], text_bytes])
        self._tail = Piece(header, end, len(header), spans[index + 1 :])

    def match(self, data: bytes, at: int, header_bytes: int) -> Match | None:
        head, tail = self._head, self._tail
        at += _HEADER_AT
        body_at = at + header_bytes
        text = ""
        try:
            if tail is None:
                if header_bytes != head.size:
                    return None
                parts = head.unpack(data, at)
                if parts[::2] != head.constants:
                    return None
                values = parts[3::2]
            else:
                text_at, tail_at = at + head.size, body_at - tail.size
                if tail_at < text_at:
                    return None
                parts = head.unpack(data, at)
                if (
                    parts[::2] != head.constants
                    or parts[3] != header_bytes - _ENTRIES_AT
                    or parts[-2] != tail_at - text_at
                ):
                    return None
                values = parts[5:-2:2]
                after = tail.unpack(data, tail_at)
                if after[::2] != tail.constants:
                    return None
                if len(after) > 1:
                    values += after[1::2]
                text = data[text_at:tail_at].decode()
            for value in values:
                if not value.isdigit():
                    value.decode()
        except UnicodeDecodeError:
            return None
        return parts[1], values, text


class JsonTemplate(HeaderTemplate):
    """Headers in JSON serialization. Text and opaque, in either order, vary in length; the bytes around them are pieces."""

    __slots__ = ("_first", "_last", "_middle", "_text_first")

    serialization = _JSON

    def __init__(self, header: bytes, command: Command, spans: list[ValueSpan]) -> None:
        super().__init__(command, spans)
        runs: list[list[ValueSpan]] = [[]]
        bounds = [0]
        for span in spans:
            if span[0] in (_OPAQUE, self.text_name):
                runs.append([])
                bounds += span[1:]
            else:
                runs[-1].append(span)
        bounds.append(len(header))
        edges = list(zip(bounds[::2], bounds[1::2], strict=True))
        pieces = [Piece(header, start, end, run) for (start, end), run in zip(edges, runs, strict=True)]
        self._first, self._last = pieces[0], pieces[-1]
        self._middle = pieces[1] if len(pieces) > 2 else None
        self._text_first = next(name for name, _, _ in spans if name in (_OPAQUE, self.text_name)) != _OPAQUE

    def match(self, data: bytes, at: int, header_bytes: int) -> Match | None:
        first, middle, last = self._first, self._middle, self._last
        at += _HEADER_AT
        body_at = at + header_bytes
        values_begin, values_end = (
            at + first.size,
            body_at - last.size,
        )  # range of the variable-length values and what lies between
        if values_end <= values_begin:
            return None
        parts = first.unpack(data, at)
        if parts[::2] != first.constants:
            return None
        values = parts[1::2]
        raw: bytes | None = None
        if middle is None:
            number = data[values_begin:values_end]
        else:
            if self._text_first:
                split = data.rfind(b":", values_begin, values_end) + 1
                middle_at = split - middle.size
                if middle_at < values_begin:
                    return None
                raw, number = data[values_begin:middle_at], data[split:values_end]
            else:
                middle_at = data.find(b",", values_begin, values_end)
                split = middle_at + middle.size
                if middle_at < 0 or split > values_end:
                    return None
                number, raw = data[values_begin:middle_at], data[split:values_end]
            parts = middle.unpack(data, middle_at)
            if parts[::2] != middle.constants:
                return None
            values += parts[1::2]
        parts = last.unpack(data, values_end)
        if parts[::2] != last.constants:
            return None
        values += parts[1::2]
        if not number.isdigit() or len(number) > _INT32_DIGITS or (number[0] == _ZERO and len(number) > 1):
            return None
        opaque = int(number)
        if opaque > _INT32_MAX:
            return None
        text = ""
        try:
            if raw is not None:
                text = standard_loads(b'"%b"' % raw)
                if not text.isascii():
                    text.encode()
            for value in values:
                if not value.isdigit():
                    values = tuple([v if v.isdigit() else standard_loads(b'"%b"' % v).encode() for v in values])
                    break
        except ValueError:
            return None
        return opaque, values, text


class HeaderTemplates:
    """The templates of one connection. by_word: templates that matched headers with this second frame word, newest first."""

    __slots__ = ("_all", "_wait", "_wait_next", "by_word")

    def __init__(self) -> None:
        self.by_word: dict[int, list[HeaderTemplate]] = {}
        self._all: list[HeaderTemplate] = []
        self._wait = 0
        self._wait_next = _WAIT_FIRST

    def __len__(self) -> int:
        return len(self._all)

    def find(self, data: bytes, at: int, header_word: int, header_bytes: int) -> tuple[HeaderTemplate, Match] | None:
        """The first template that matches the frame at data[at], with its match; None means: decode it in full."""
        form, chain = header_word >> 24, self.by_word.get(header_word, ())
        for template in self._all:
            if template.serialization == form and template not in chain:
                match = template.match(data, at, header_bytes)
                if match is not None:
                    self._remember(header_word, template)
                    return template, match
        return None

    def _remember(self, header_word: int, template: HeaderTemplate) -> None:
        chain = self.by_word.get(header_word)
        if chain is None:
            if len(self.by_word) >= WORDS_MAX:
                self.by_word.clear()
            chain = self.by_word[header_word] = []
        chain.insert(0, template)
        del chain[CHAIN_MAX:]

    def learn(self, header_word: int, header: bytes, command: Command) -> None:
        """Add a template for a header that was decoded in full.

        When a peer exceeds TEMPLATES_MAX, all its templates are dropped and no new ones are learned for a while.
        """
        names = CHANGING.get(command.code)
        if names is None or command.flag & _RESPONSE:
            return
        if self._wait:
            self._wait -= 1
            return
        binary = command.serialization is _BINARY
        spans = _binary_spans(header, command, names) if binary else _json_spans(header, command, names)
        if not spans:
            return
        if len(self._all) >= TEMPLATES_MAX:
            self.by_word.clear()
            self._all.clear()
            self._wait, self._wait_next = self._wait_next, min(2 * self._wait_next, _WAIT_MAX)
            return
        template = BinaryTemplate(header, command, spans) if binary else JsonTemplate(header, command, spans)
        self._all.append(template)
        self._remember(header_word, template)


def _binary_spans(header: bytes, command: Command, names: frozenset[str]) -> list[ValueSpan]:
    """Positions of the varying values in a valid binary header; empty if no template can represent the header."""
    if command.remark is not None:
        return []
    (ext_bytes,) = _I32.unpack_from(header, _ENTRIES_AT - _LENGTH_BYTES)
    if _ENTRIES_AT + ext_bytes != len(header):
        return []
    spans: list[ValueSpan] = []
    at = _ENTRIES_AT
    fields = 0
    while at < len(header):
        (key_bytes,) = _I16.unpack_from(header, at)
        value_at = at + 2 + key_bytes + _LENGTH_BYTES
        name = header[at + 2 : value_at - _LENGTH_BYTES].decode()
        (value_bytes,) = _I32.unpack_from(header, value_at - _LENGTH_BYTES)
        at = value_at + value_bytes
        fields += 1
        if name in names:
            spans.append((name, value_at, at))
    return spans if fields == len(command.ext) else []  # a field is repeated (its last value would win)


def _json_spans(header: bytes, command: Command, names: frozenset[str]) -> list[ValueSpan]:
    """As _binary_places, for JSON: each value must be one plain JSON string, and no other part may contain an escape."""
    numbers = list(_JSON_OPAQUE.finditer(header))
    if len(numbers) != 1 or header.count(b'"opaque"') != 1:
        return []
    spans: list[ValueSpan] = [(_OPAQUE, *numbers[0].span(1))]
    for name in names:
        if name not in command.ext:
            continue
        matches = list(re.finditer(_JSON_TEXT % name.encode(), header))
        if len(matches) != 1 or header.count(b'"%b"' % name.encode()) != 1:
            return []
        spans.append((name, *matches[0].span(1)))
    spans.sort(key=lambda span: span[1])
    end = 0
    for _, start, stop in spans:
        if start < end or b"\\" in header[end:start]:
            return []
        end = stop
    return spans if len(spans) > 1 and b"\\" not in header[end:] else []
