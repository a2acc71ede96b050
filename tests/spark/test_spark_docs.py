"""Every Python block of docs/spark.md and docs/lake.md, run as a file of its own against an embedded broker."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from code_blocks import Block, blocks_of
from pyarrow import parquet

from saturnmq.testing import SyncEmbeddedBroker

PAGES = ("docs/spark.md", "docs/lake.md")
BLOCKS = [block for page in PAGES for block in blocks_of(page) if "sc://" not in block.code]  # see test_spark_connect


@pytest.mark.spark
@pytest.mark.spec("UX-01")
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_spark_block_runs_as_a_file(
    block: Block,
    spark: Any,
    server: SyncEmbeddedBroker,
    send: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    send("orders", 4)
    (tmp_path / "lake" / "messages").mkdir(parents=True)
    rows = pyarrow.table({"topic": ["orders"], "tags": ["a"]})
    parquet.write_table(rows, tmp_path / "lake" / "messages" / "part.parquet")
    file = tmp_path / "example.py"
    code = block.file(server.name_servers).replace(
        '"./', f'"{tmp_path}/'
    )  # the JVM keeps the folder that it started in
    file.write_text(code, encoding="utf-8")
    runpy.run_path(str(file), run_name="__main__")
    assert "|" in capsys.readouterr().out or "checkpoint" in block.code


def test_spark_page_contains_examples() -> None:
    assert len(BLOCKS) >= 3
