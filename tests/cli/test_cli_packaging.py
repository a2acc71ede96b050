"""Packaging: version bounds of dependencies, extras, import cost."""

from __future__ import annotations

import ast
import importlib.metadata
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NoReturn

import pytest
from packaging.requirements import Requirement

from saturnmq.extras import install_command

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ImportError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""


def run_python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60)


@pytest.mark.spec("PKG-06")
def test_dependencies_have_lower_bounds_and_justified_upper_bounds() -> None:
    lines = (REPOSITORY / "pyproject.toml").read_text().splitlines()
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for requirement in (item for group in groups for item in group):
        bare = requirement.split(";")[0]
        if bare.startswith(("saturnmq[", "types-")):
            continue
        assert ">=" in bare, f"{requirement} has no lower bound"
        if "<" in bare:
            line = next(line for line in lines if requirement in line)
            assert "#" in line, f"{requirement} has an upper bound without a reason"


@pytest.mark.spec("PKG-03")
def test_sources_parse_with_python_3_11() -> None:
    assert PROJECT["requires-python"] == ">=3.11"
    for path in sorted((REPOSITORY / "src").rglob("*.py")):
        ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 11))


@pytest.mark.spec("PKG-04")
def test_import_loads_no_extras() -> None:
    heavy = "{'rich', 'pyspark', 'pyarrow', 'numpy', 'pandas', 'yaml', 'cryptography'}"
    done = run_python(f"import sys, saturnmq; saturnmq.Client; print(sorted({heavy} & set(sys.modules)))")
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.spec("PKG-04")
def test_library_works_without_what_only_makes_it_faster(tmp_path: Path) -> None:
    code = (
        BLOCK.format(names={"orjson", "uvloop", "isal"})
        + """
import asyncio
from pathlib import Path
from saturnmq import Client
from saturnmq.testing import EmbeddedBroker
async def main():
    async with asyncio.timeout(30), EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("g-p") as out:
            receipt = await out.send("plain", b"body")
            print("sent", receipt.offset)
asyncio.run(main())
"""
    )
    done = run_python(code)
    assert done.stdout.strip() == "sent 0", done.stderr


def named(command: str) -> list[Requirement]:
    program, *words = shlex.split(command)
    assert (program, words[:3]) == (sys.executable, ["-m", "pip", "install"])
    return sorted(map(Requirement, words[3:]), key=str)


@pytest.mark.spec("PKG-05")
@pytest.mark.parametrize(
    "extra",
    [
        "spark",
        "console",
        "compression",
        "msgspec",
        "pydantic",
        "opentelemetry",
        "fastapi",
        "django",
        "flask",
        "celery",
        "faststream",
    ],
)
def test_install_command_of_an_extra_names_its_packages(extra: str) -> None:
    assert named(install_command(extra)) == sorted(map(Requirement, PROJECT["optional-dependencies"][extra]), key=str)


@pytest.mark.spec("INT-09")
def test_extra_for_opentelemetry_needs_its_api_only() -> None:
    requirements = PROJECT["optional-dependencies"]["opentelemetry"]
    assert [Requirement(text).name for text in requirements] == ["opentelemetry-api"]


def test_install_command_without_metadata_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> NoReturn:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert install_command("spark").endswith(" -m pip install 'saturnmq[spark]'")


def test_import_without_faststream_names_the_install_command() -> None:
    done = run_python(BLOCK.format(names={"faststream"}) + "import saturnmq.faststream")
    assert done.returncode == 1
    last_line = done.stderr.splitlines()[-1]
    assert last_line.startswith("ImportError: saturnmq.faststream needs FastStream: ")
    assert named(last_line.rpartition("FastStream: ")[2]) == [Requirement("faststream>=0.7.8,<0.8")]


@pytest.mark.spec("PKG-05", "SPK-03")
def test_missing_extra_error_names_install_command() -> None:
    code = (
        BLOCK.format(names={"pyspark", "pyarrow"})
        + "from saturnmq.cli import main; sys.exit(main(['spark', 'export', '--topic', 't', '--out', 'o']))"
    )
    done = run_python(code)
    assert done.returncode == 2
    assert f"{sys.executable} -m pip install 'pyspark" in done.stderr
    assert "Traceback" not in done.stderr
