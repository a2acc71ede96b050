"""Excel workbooks: well-formed parts, texts and numbers, no formulas."""

from __future__ import annotations

import io
import zipfile
from xml.etree import ElementTree

import pytest

from saturnmq.console.download import CELL_MAX, MEDIA_TYPE, workbook

SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


@pytest.mark.spec("CON-11")
def test_workbook_has_texts_and_numbers_and_no_formulas() -> None:
    rows = [["a", 7], ["=1+1", -3], ["<b>&\x00\x1b\ud800_x000D_", 0], ["x" * (CELL_MAX + 5), 1]]
    with zipfile.ZipFile(io.BytesIO(workbook(rows))) as archive:
        assert archive.testzip() is None
        for name in archive.namelist():
            ElementTree.fromstring(archive.read(name))
        sheet = ElementTree.fromstring(archive.read("xl/worksheets/sheet1.xml"))
    cells = [list(row) for row in sheet.iter(f"{SHEET}row")]
    assert not list(sheet.iter(f"{SHEET}f")) and [len(row) for row in cells] == [2] * 4
    texts = ["".join(row[0].itertext()) for row in cells]
    assert texts[1] == "=1+1" and cells[1][0].get("t") == "inlineStr"
    assert texts[2] == "<b>&\ufffd\ufffd\ufffd_x005F_x000D_" and len(texts[3]) == CELL_MAX
    assert [cells[number][1][0].text for number in range(4)] == ["7", "-3", "0", "1"]


@pytest.mark.spec("CON-11")
def test_parts_of_a_workbook_are_those_of_the_standard() -> None:
    """ECMA-376: part 1, SpreadsheetML, and part 2, open packaging: names of the parts, their types and relationships."""
    with zipfile.ZipFile(io.BytesIO(workbook([]))) as archive:
        parts = {name: ElementTree.fromstring(archive.read(name)) for name in archive.namelist()}
    package, formats = "http://schemas.openxmlformats.org/package/2006", "application/vnd.openxmlformats-"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    types = parts.pop("[Content_Types].xml")
    assert types.tag == f"{{{package}/content-types}}Types"
    assert {row.get("PartName") or row.get("Extension"): row.get("ContentType") for row in types} == {
        "rels": f"{formats}package.relationships+xml",
        "/xl/workbook.xml": f"{formats}officedocument.spreadsheetml.sheet.main+xml",
        "/xl/worksheets/sheet1.xml": f"{formats}officedocument.spreadsheetml.worksheet+xml",
    }
    for part, kind, target in (
        ("_rels/.rels", "officeDocument", "xl/workbook.xml"),
        ("xl/_rels/workbook.xml.rels", "worksheet", "worksheets/sheet1.xml"),
    ):
        (relation,) = root = parts.pop(part)
        assert root.tag == f"{{{package}/relationships}}Relationships"
        assert relation.attrib == {"Id": "rId1", "Type": f"{office}/{kind}", "Target": target}
    (sheet,) = parts["xl/workbook.xml"].iter(f"{SHEET}sheet")
    assert sheet.attrib == {"name": "messages", "sheetId": "1", f"{{{office}}}id": "rId1"}
    assert sorted(parts) == ["xl/workbook.xml", "xl/worksheets/sheet1.xml"]
    assert parts["xl/worksheets/sheet1.xml"].tag == f"{SHEET}worksheet"
    assert f"{formats}officedocument.spreadsheetml.sheet" == MEDIA_TYPE and CELL_MAX == 32_767
