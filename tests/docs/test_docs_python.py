"""Every Python block of the documents, run as a file of its own against an embedded broker.

Other tests run what needs more: tests/cli/test_cli_docs.py README.md, and the guide from top to bottom with its pytest examples;
tests/spark/test_spark_docs.py docs/spark.md and docs/lake.md; test_docs_three_brokers.py docs/three-brokers.md.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from code_blocks import REPOSITORY, SHARES_NAMES, Block, blocks_of, pages, run_through

from saturnmq.broker import BrokerSettings
from saturnmq.testing import BrokerFixture

ELSEWHERE: Final = {"README.md", "docs/spark.md", "docs/lake.md", "docs/three-brokers.md"}
MIGRATIONS: Final = ("docs/from-kafka.md", "docs/from-nats.md", "docs/from-rabbitmq.md", "docs/from-rocketmq-python.md")
# Each is one program, run in this process: a process per block would take a second each.
RUN_THROUGH: Final = ("docs/first-message.md", "docs/orders.md", *MIGRATIONS)
KINDS: Final = {"python", "python sync", "python test"}
EXPECTED_WARNING: Final = "subscribed topic not found"  # a topic that the first message creates
BLOCKS: Final = [block for page in pages() if page not in {*ELSEWHERE, *RUN_THROUGH} for block in blocks_of(page)]


@pytest.mark.spec("UX-01", "TST-08", "API-31")
@pytest.mark.saturn_settings(broker=BrokerSettings(property_filter_enable=True))
@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind != "python test"], ids=str)
def test_python_block_runs_as_a_file(block: Block, tmp_path: Path, saturn_broker: BrokerFixture) -> None:
    file = tmp_path / "example.py"
    file.write_text(block.file(saturn_broker.name_servers), encoding="utf-8")
    command = [sys.executable, "-W", "error", str(file)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if not line.startswith(EXPECTED_WARNING)]
    assert said == []
    if block.kind == "python sync":
        assert done.stdout.strip() == "0"


@pytest.mark.parametrize("page", RUN_THROUGH)
def test_page_runs_from_top_to_bottom(page: str, saturn_broker: BrokerFixture) -> None:
    assert len(blocks_of(page)) >= 2
    run_through(page, saturn_broker.name_servers)


@pytest.mark.parametrize("page", MIGRATIONS)
def test_code_of_other_clients_is_python(page: str) -> None:
    """It is not run, which would need their brokers."""
    programs = re.findall(r"^```py\n(.*?)^```$", REPOSITORY.joinpath(page).read_text(encoding="utf-8"), re.S | re.M)
    assert len(programs) >= 2
    for program in programs:
        ast.parse(program)


def test_documents_contain_python_blocks_of_known_kinds() -> None:
    assert {block.kind for block in BLOCKS} == KINDS
    assert len([block for block in BLOCKS if block.page == "docs/guide.md"]) >= 16
    for page in ELSEWHERE:
        assert blocks_of(page), page
        assert {block.kind for block in blocks_of(page)} == {"python"}


def test_only_a_document_that_says_so_shares_names() -> None:
    assert {block.page for block in BLOCKS if block.shared} == {"docs/guide.md"}
    assert SHARES_NAMES in REPOSITORY.joinpath("docs/guide.md").read_text(encoding="utf-8")


def test_lines_of_the_spring_tables_are_lines_that_run() -> None:
    text = REPOSITORY.joinpath("docs/spring.md").read_text(encoding="utf-8")
    programs = "\n".join(block.code for block in blocks_of("docs/spring.md"))
    lines = [
        code.replace("\\|", "|")
        for row in re.findall(r"^\| `.*?\| (`.*) \|$", text, re.MULTILINE)
        for code in re.findall(r"`([^`]*[(=:][^`]*)`", row.rpartition(" | ")[2])
    ]
    assert [line for line in lines if line not in programs] == []
    assert len(lines) == 36


def test_top_level_await_is_wrapped() -> None:
    block = Block("page", 1, "python", "import asyncio\nawait asyncio.sleep(0)\nprint('127.0.0.1:9876')\n", "")
    assert "asyncio.run(example())" in block.file("h:1") and "'h:1'" in block.file("h:1")
    assert Block("page", 1, "python", "x = 1\n", "y = 2\n").file("h:1") == "y = 2\nx = 1\n"
