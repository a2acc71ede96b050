"""The remoting command, its two header encodings and the frame limits.

This module does not interpret request codes or header fields. Any header either decodes or raises RemoteProtocolError.
`decoder` cuts a byte stream into frames.

Requirements: REM-01..REM-06, REM-09, LIM-03.
"""

# Frame, big-endian (REM-01, docs/spec/00 section 3.1).
#   at  type  field       meaning
#    0  i32   length      bytes that follow this field: 4 + header + body
#    4  u8    serialize   0 JSON, 1 ROCKETMQ
#    5  u24   header_len  bytes of the header
#    8  ...   header      JSON text, or the binary form below
#    .  ...   body        absent when empty
#
# Binary header (docs/spec/00 section 3.3).
#    0  i16   code
#    2  i8    language
#    3  i16   version
#    5  i32   opaque
#    9  i32   flag
#   13  i32   remark length, then UTF-8 (0 = none)
#    .  i32   ext fields length in bytes, then entries: i16 key length, key, i32 value length, value

from __future__ import annotations

import itertools
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from saturnmq.protocol.codes import VERSION, CommandFlag, Language
from saturnmq.protocol.errors import ConfigError, FrameError, HeaderError, LocalProtocolError
from saturnmq.protocol.json_dialect import json_type, standard_dumps, standard_loads

FRAME_BYTES_MAX: Final = 16_777_216  # length field included; `com.rocketmq.remoting.frameMaxLength`
# The longest header is the response to a batch: 4 MiB of one-byte messages yield 65,000 ids of 33 to 57 characters.
HEADER_BYTES_MAX: Final = 4_194_304
EXT_FIELDS_MAX: Final = 4096
EXT_KEY_BYTES_MAX: Final = 32_767  # limit of the binary encoding (signed 16-bit length)
JSON_DEPTH_MAX: Final = 16
HEADER_LENGTH_MASK: Final = 0xFFFFFF

PREFIX: Final = struct.Struct(">iI")
_FIXED: Final = struct.Struct(">hbhii")  # code, language, version, opaque, flag
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")

_LANGUAGE_BY_NAME: Final = {member.name: int(member) for member in Language}
_NAME_BY_LANGUAGE: Final = {int(member): member.name for member in Language}
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_LANGUAGE_OTHER: Final = int(Language.OTHER)
_INT32_MIN: Final = -(2**31)
_INT32_MAX: Final = 2**31 - 1


class Serialization(IntEnum):
    """Header encoding; the number is the top byte of a frame's second word (REM-01, REM-04)."""

    JSON = 0
    ROCKETMQ = 1


SERIALIZE_TYPE_ENV: Final = "ROCKETMQ_SERIALIZE_TYPE"


def own_serialization(environment: Mapping[str, str]) -> Serialization:
    """The header serialization for requests that this process sends (REM-04). Raises ConfigError for an unknown name."""
    name = environment.get(SERIALIZE_TYPE_ENV, "").strip()
    if name and name not in Serialization.__members__:
        raise ConfigError(f"environment variable {SERIALIZE_TYPE_ENV}={name!r} must be JSON or ROCKETMQ")
    return Serialization[name] if name else Serialization.JSON


_JSON: Final = Serialization.JSON
_BINARY: Final = Serialization.ROCKETMQ


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits on what a peer may announce, in bytes and fields. A frame beyond them closes the connection (REM-02)."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    header_bytes_max: int = HEADER_BYTES_MAX
    ext_fields_max: int = EXT_FIELDS_MAX
    ext_key_bytes_max: int = EXT_KEY_BYTES_MAX


DEFAULT_LIMITS: Final = FrameLimits()


class Command:
    """One request or response. Mutable and slotted because it is on the hot path.

    language and version are plain ints, so unknown values survive. ext maps header field names to text. body is None when empty.
    """

    __slots__ = ("body", "code", "ext", "flag", "language", "opaque", "remark", "serialization", "version")

    def __init__(
        self,
        code: int,
        *,
        ext: dict[str, str] | None = None,
        body: bytes | None = None,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        language: int = Language.PYTHON,
        version: int = VERSION,
        serialization: Serialization = _JSON,
    ) -> None:
        self.code = code
        self.ext = {} if ext is None else ext
        self.body = body
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.language = language
        self.version = version
        self.serialization = serialization

    @property
    def is_response(self) -> bool:
        return bool(self.flag & _RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & _ONEWAY)

    @property
    def header_bytes(self) -> int:
        """Memory of the header fields, bytes. A character takes up to four: one beyond the first 65,536 widens its whole text."""
        return sum(map(sys.getsizeof, self.ext)) + sum(map(sys.getsizeof, self.ext.values()))

    def reply(
        self,
        code: int = 0,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> Command:
        """The response to this request: same opaque and serialization, response bit set (REM-04, REM-05)."""
        return Command(
            code,
            ext=ext,
            body=body,
            opaque=self.opaque,
            flag=_RESPONSE,
            remark=remark,
            serialization=self.serialization,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Command):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in Command.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Field names and sizes only: bodies and field values may contain secrets."""
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        body_bytes = len(self.body) if self.body else 0
        return (
            f"<{kind} code={self.code} opaque={self.opaque} ext={sorted(self.ext)} "
            f"remark={self.remark!r} body={body_bytes}B {self.serialization.name}>"
        )


def encode_frame(command: Command) -> bytes:
    """Encode a whole frame. Raises LocalProtocolError when the command does not fit the wire format."""
    body = command.body
    if body:
        return encode_head(command, len(body)) + body
    return encode_head(command, 0)


def encode_head(command: Command, body_bytes: int) -> bytes:
    """Encode length, header length and header of a frame whose body of body_bytes is written separately."""
    header = _encode_json(command) if command.serialization is _JSON else _encode_binary(command)
    header_bytes = len(header)
    total = 4 + header_bytes + body_bytes
    if header_bytes > HEADER_LENGTH_MASK or total > _INT32_MAX:
        raise LocalProtocolError(
            f"a frame of {total} bytes with a header of {header_bytes} bytes does not fit the wire format"
        )
    return PREFIX.pack(total, (command.serialization << 24) | header_bytes) + header


def _encode_json(command: Command) -> bytes:
    fields: dict[str, Any] = {
        "code": command.code,
        "flag": command.flag,
        "language": _NAME_BY_LANGUAGE.get(command.language, "OTHER"),
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }
    if command.ext:
        fields["extFields"] = command.ext
    if command.remark is not None:
        fields["remark"] = command.remark
    try:
        return standard_dumps(fields)
    except (TypeError, ValueError) as error:
        raise LocalProtocolError(f"header of code {command.code} cannot be written as JSON: {error}") from error


def _encode_binary(command: Command) -> bytes:
    try:
        parts = [_FIXED.pack(command.code, command.language, command.version, command.opaque, command.flag)]
        remark = command.remark.encode() if command.remark else b""
        parts.append(_I32.pack(len(remark)))
        parts.append(remark)
        entries: list[bytes] = []
        for key, value in command.ext.items():
            raw_key, raw_value = key.encode(), value.encode()
            entries += (_I16.pack(len(raw_key)), raw_key, _I32.pack(len(raw_value)), raw_value)
    except (struct.error, UnicodeEncodeError, AttributeError) as error:
        raise LocalProtocolError(f"header of code {command.code} cannot be written in binary form: {error}") from error
    ext = b"".join(entries)
    parts.append(_I32.pack(len(ext)))
    parts.append(ext)
    return b"".join(parts)


def decode_header(
    serialization: int, header: bytes, body: bytes | None, limits: FrameLimits = DEFAULT_LIMITS
) -> Command:
    """Decode a command from its header bytes. Raises HeaderError, or FrameError for an unknown serialization."""
    if serialization == _JSON:
        return _decode_json(header, body, limits)
    if serialization == _BINARY:
        return _decode_binary(header, body, limits)
    raise FrameError(f"unknown header serialization {serialization}; allowed: 0 (JSON), 1 (ROCKETMQ)")


def _decode_json(header: bytes, body: bytes | None, limits: FrameLimits) -> Command:
    try:
        fields = standard_loads(header)
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"header of {len(header)} bytes is not JSON: {error}") from error
    if type(fields) is not dict:
        raise HeaderError(f"JSON header is {json_type(fields)}, must be an object")
    if header.count(b"{") + header.count(b"[") > JSON_DEPTH_MAX:
        _check_depth(fields, len(header))
    get = fields.get
    ext = get("extFields")
    if ext:
        if type(ext) is not dict:
            raise HeaderError(f"extFields is {json_type(ext)}, must be an object")
        if len(ext) > limits.ext_fields_max:
            raise HeaderError(f"{len(ext)} extFields, at most {limits.ext_fields_max} are allowed")
        longest = max(ext, key=len)
        if len(longest) * 4 > limits.ext_key_bytes_max and len(longest.encode()) > limits.ext_key_bytes_max:
            raise HeaderError(
                f"an extFields key of {len(longest)} characters, {limits.ext_key_bytes_max} bytes are allowed"
            )
        for value in ext.values():
            if type(value) is not str:
                ext = _texts(ext)
                break
    else:
        ext = {}
    remark = get("remark")
    if remark is not None and type(remark) is not str:
        remark = str(remark)
    code, opaque, flag, version = get("code", 0), get("opaque", 0), get("flag", 0), get("version", 0)
    if not (
        type(code) is type(opaque) is type(flag) is type(version) is int
        and _INT32_MIN <= code <= _INT32_MAX
        and _INT32_MIN <= opaque <= _INT32_MAX
        and _INT32_MIN <= flag <= _INT32_MAX
        and _INT32_MIN <= version <= _INT32_MAX
    ):
        raise HeaderError(
            f"header members code={code!r:.40} opaque={opaque!r:.40} flag={flag!r:.40} version={version!r:.40} "
            "must be 32-bit integers"
        )
    language = get("language")
    command = Command.__new__(Command)
    command.code = code
    command.ext = ext
    command.body = body
    command.opaque = opaque
    command.flag = flag
    command.remark = remark
    command.language = _LANGUAGE_BY_NAME.get(language, _LANGUAGE_OTHER) if type(language) is str else _LANGUAGE_OTHER
    command.version = version
    command.serialization = _JSON
    return command


def _check_depth(fields: dict[str, Any], header_bytes: int) -> None:
    """Raise HeaderError for a header nested deeper than JSON_DEPTH_MAX (LIM-03)."""
    level: list[Any] = [fields]
    for _ in range(JSON_DEPTH_MAX):
        members = itertools.chain.from_iterable(
            container.values() if type(container) is dict else container for container in level
        )
        level = [member for member in members if type(member) is dict or type(member) is list]
        if not level:
            return
    raise HeaderError(f"header of {header_bytes} bytes is nested deeper than {JSON_DEPTH_MAX}")


def _texts(ext: dict[str, Any]) -> dict[str, str]:
    """Field values as text: numbers and booleans as Java writes them, nulls dropped (REM-09)."""
    texts = {}
    for key, value in ext.items():
        if value is None:
            continue
        if isinstance(value, bool):
            texts[key] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            texts[key] = str(value)
        else:
            raise HeaderError(f"extFields.{key} is {json_type(value)}, must be text, a number or a boolean")
    return texts


def _decode_binary(header: bytes, body: bytes | None, limits: FrameLimits) -> Command:
    try:
        code, language, version, opaque, flag = _FIXED.unpack_from(header, 0)
        (remark_bytes,) = _I32.unpack_from(header, 13)
        at = 17
        remark = None
        if remark_bytes:
            if not 0 < remark_bytes <= len(header) - at:
                raise HeaderError(f"remark of {remark_bytes} bytes in a header of {len(header)}")
            remark = header[at : at + remark_bytes].decode()
            at += remark_bytes
        (ext_bytes,) = _I32.unpack_from(header, at)
        at += 4
        if not 0 <= ext_bytes <= len(header) - at:
            raise HeaderError(f"extFields of {ext_bytes} bytes in a header of {len(header)}")
        ext = _decode_entries(header, at, at + ext_bytes, limits) if ext_bytes else {}
    except (struct.error, UnicodeDecodeError) as error:
        raise HeaderError(f"binary header of {len(header)} bytes is cut or not UTF-8: {error}") from error
    command = Command.__new__(Command)
    command.code = code
    command.ext = ext
    command.body = body
    command.opaque = opaque
    command.flag = flag
    command.remark = remark
    command.language = language
    command.version = version
    command.serialization = _BINARY
    return command


def _decode_entries(header: bytes, at: int, end: int, limits: FrameLimits) -> dict[str, str]:
    """Decode the entries between at and end. The last of repeated keys wins; an empty value is "" (docs/spec/00 section 7)."""
    ext: dict[str, str] = {}
    key_length, value_length = _I16.unpack_from, _I32.unpack_from
    while at < end:
        key_at = at + 2
        (key_bytes,) = key_length(header, at)
        value_at = key_at + key_bytes + 4
        if key_bytes < 0 or value_at > end:
            raise HeaderError(f"extFields key of {key_bytes} bytes, {end - at} left")
        if key_bytes > limits.ext_key_bytes_max:
            raise HeaderError(f"extFields key of {key_bytes} bytes, at most {limits.ext_key_bytes_max} are allowed")
        (value_bytes,) = value_length(header, value_at - 4)
        at = value_at + value_bytes
        if value_bytes < 0 or at > end:
            raise HeaderError(f"extFields value of {value_bytes} bytes, {end - value_at} left")
        ext[header[key_at : value_at - 4].decode()] = header[value_at:at].decode()
        if len(ext) > limits.ext_fields_max:
            raise HeaderError(f"more than {limits.ext_fields_max} extFields")
    return ext
