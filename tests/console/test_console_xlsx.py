"""Excel workbooks: well-formed parts, texts and numbers, no formulas."""

from __future__ import annotations

import io
import zipfile
from xml.etree import ElementTree

import pytest

from saturnmq.console.xlsx import CELL_MAX, workbook

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
