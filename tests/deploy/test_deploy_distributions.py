"""The distributions of `make dist`: what is inside, the same bytes each time, and a wheel that works without the checkout."""

from __future__ import annotations

import contextlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import dist

URL = "https://example.org/saturnmq"
EPOCH = 1_700_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SATURNMQ_PROJECT_URL", URL)
        patch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))  # not that of the last commit, which may change meanwhile
        yield tmp_path_factory.mktemp("dist")


@pytest.fixture(scope="module")
def sdist(folder: Path) -> Path:
    return dist.build_sdist(folder)


@pytest.fixture(scope="module")
def pure_wheel(folder: Path, sdist: Path) -> Path:
    """A wheel that is pure because there is no compiler."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        patch.setenv("CC", "no-such-compiler")
        wheel = dist.build_wheel(sys.executable, sdist, folder)
    assert (
        "built as pure Python, about half as fast: no C compiler" in said.getvalue()
        and "python3-dev" in said.getvalue()
    )
    return wheel


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        return Parser().parsestr(archive.read(name).decode())


@pytest.mark.long
@pytest.mark.timeout(300)
def test_sdist_has_documents_and_sources_and_no_machine(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    expected = {
        "LICENSE",
        "CHANGELOG.md",
        "SECURITY.md",
        "docs/guide.md",
        "docs/images/console-accounts.png",
        "deploy/prometheus/alerts.yml",
    }
    assert expected | {"src/saturnmq/hot/sends.pxd", "src/saturnmq/py.typed"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc", ".c")) or name.startswith("tests/")]
    assert {(member.mtime, member.uid, member.uname) for member in members} == {(EPOCH, 0, "")}
    assert {member.mode for member in members} == {0o755, 0o644}


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.spec("PKG-01", "PKG-02")
def test_pure_wheel_names_addresses_and_licence(pure_wheel: Path) -> None:
    assert pure_wheel.name.endswith("-py3-none-any.whl")
    facts = metadata(pure_wheel)
    assert dict(text.split(", ") for text in facts.get_all("Project-URL", []))["Source"] == URL
    assert facts["License-Expression"] == "Apache-2.0"
    readme = str(facts.get_payload())
    assert f"]({URL}/blob/main/docs/guide.md)" in readme and "](docs/" not in readme
    with zipfile.ZipFile(pure_wheel) as archive:
        names = archive.namelist()
    assert "saturnmq/console/static/htmx.min.js" in names and "saturnmq/py.typed" in names
    assert [name for name in names if name.endswith("licenses/LICENSE")]
    assert not [name for name in names if name.endswith(".so") or not name.startswith("saturnmq")]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.spec("UX-01", "PKG-05")
def test_installed_wheel_works_without_the_checkout(pure_wheel: Path) -> None:
    """README's ten lines, standalone, the console, the pytest plugin, the extras that need no Spark."""
    assert "hot=pure" in dist.check(sys.executable, pure_wheel)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_wheel_with_spark_works_without_the_checkout(pure_wheel: Path) -> None:
    assert "hot=pure" in dist.check(sys.executable, pure_wheel, f"{dist.EXTRAS},spark,connect")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.spec("PKG-02")
def test_compiled_wheel_has_the_same_bytes_each_time(sdist: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    built = []
    for out in (first, second):
        out.mkdir()
        built.append(dist.build_wheel(sys.executable, sdist, out))
    assert built[0].read_bytes() == built[1].read_bytes()
    with zipfile.ZipFile(built[0]) as archive:
        assert [name for name in archive.namelist() if name.startswith("saturnmq/hot/sends.") and name.endswith(".so")]
    assert "hot=compiled" in dist.check(sys.executable, built[0])


def test_archive_of_other_times_and_owners_has_the_same_bytes(tmp_path: Path) -> None:
    archives = []
    for name, owner, mode in (("a", "ann", 0o600), ("b", "bob", 0o664)):
        archive = tmp_path / f"{name}.tar.gz"
        with tarfile.open(archive, "w:gz") as target:
            for path in ("p/x", "p/y") if name == "a" else ("p/y", "p/x"):
                member = tarfile.TarInfo(path)
                member.size, member.mtime, member.uname, member.mode = 1, ord(name), owner, mode
                target.addfile(member, io.BytesIO(path[-1:].encode()))
        dist.reproducible(archive, 1)
        archives.append(archive.read_bytes())
    assert archives[0] == archives[1]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.spec("PKG-02")
def test_compiled_wheel_that_is_demanded_needs_a_compiler(
    sdist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("SATURNMQ_PURE", "0")
    with pytest.raises(SystemExit, match="SATURNMQ_PURE=0 demands the compiled hot path: no C compiler"):
        dist.build_wheel(sys.executable, sdist, tmp_path)
