"""Messages as files that a browser saves: JSON lines, CSV, or an Excel workbook, whose cells are texts and numbers, never formulas.

Reference of workbooks: ECMA-376 (Office Open XML), SpreadsheetML; one sheet, by the standard library only.

Requirements: CON-09, CON-11.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from xml.sax.saxutils import escape

from saturnmq.client.message import Message
from saturnmq.console.conditions import readable

CELL_MAX: Final = 32_767  # characters that a spreadsheet takes
COLUMNS: Final = ("topic", "broker", "queue", "offset", "id", "tag", "keys", "born_ms", "stored_ms", "attempt",
                  "properties", "body", "encoding")  # fmt: skip
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
MEDIA_TYPE: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPE: Final = re.compile("_(?=x[0-9A-Fa-f]{4}_)")  # Excel reads _x000D_ as a character
_HEAD: Final = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN: Final = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONS: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE: Final = "http://schemas.openxmlformats.org/package/2006"
_PARTS: Final = {
    "[Content_Types].xml": (
        f'<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Override PartName="/xl/workbook.xml" '
        'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/>'
        '<Override PartName="/xl/worksheets/sheet1.xml" '
        'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml"/></Types>'
    ),
    "_rels/.rels": (
        f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="rId1" Type="{_RELATIONS}/officeDocument" '
        'Target="xl/workbook.xml"/></Relationships>'
    ),
    "xl/_rels/workbook.xml.rels": (
        f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="rId1" Type="{_RELATIONS}/worksheet" '
        'Target="worksheets/sheet1.xml"/></Relationships>'
    ),
    "xl/workbook.xml": (
        f'<workbook xmlns="{_MAIN}" xmlns:r="{_RELATIONS}"><sheets><sheet name="messages" sheetId="1" r:id="rId1"/>'
        "</sheets></workbook>"
    ),
}


def fields_of(message: Message[bytes]) -> dict[str, Any]:
    """A message by COLUMNS. encoding: of the body, utf-8 or base64; empty, without a body, if it does not decompress."""
    record, body = message.record, readable(message)
    try:
        text, encoding = ("", "") if body is None else (body.decode(), "utf-8")
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(body or b"").decode(), "base64"
    values = (
        record.topic,
        message.queue.broker_name,
        message.queue.queue_id,
        message.offset,
        message.message_id,
        message.tag or "",
        " ".join(message.keys),
        record.born_timestamp_ms,
        record.store_timestamp_ms,
        message.attempt,
        dict(message.properties),
        text,
        encoding,
    )
    return dict(zip(COLUMNS, values, strict=True))


def json_line(fields: Mapping[str, Any]) -> bytes:
    """One line of JSON."""
    return json.dumps(fields).encode() + b"\n"


def csv_line(values: Sequence[Any]) -> bytes:
    """One line of a table, in UTF-8. Text that a spreadsheet would run as a formula gets an apostrophe before it."""
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_NONNUMERIC).writerow([_cell(value) for value in values])
    return out.getvalue().encode(errors="replace")


def harmless(text: str) -> str:
    """Text for a spreadsheet, with an apostrophe before what it would run as a formula."""
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text


def _cell(value: Any) -> Any:
    if isinstance(value, int):
        return value
    text = json.dumps(value) if isinstance(value, dict) else str(value).replace("\0", "")
    return harmless(text)[:CELL_MAX]


def workbook(rows: Iterable[Sequence[str | int]]) -> bytes:
    """The bytes of a workbook. Control characters, which XML cannot hold, become the replacement character."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in _PARTS.items():
            archive.writestr(name, _HEAD + text)
        with archive.open("xl/worksheets/sheet1.xml", "w") as sheet:
            sheet.write(f'{_HEAD}<worksheet xmlns="{_MAIN}"><sheetData>'.encode())
            for row in rows:
                sheet.write(f"<row>{''.join(map(_xml_cell, row))}</row>".encode())
            sheet.write(b"</sheetData></worksheet>")
    return out.getvalue()


def _xml_cell(value: str | int) -> str:
    if isinstance(value, int):
        return f"<c><v>{value}</v></c>"
    text = _ESCAPE.sub("_x005F_", _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", value[:CELL_MAX]))[:CELL_MAX]
    return f'<c t="inlineStr"><is><t xml:space="preserve">{escape(text)}</t></is></c>'
