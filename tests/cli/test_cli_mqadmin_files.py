"""Files under names from the network: no name leaves its folder, no link is followed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from saturnmq.cli.mqadmin import files


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("7F00@1#x:y", "7F00@1#x:y"),
        ("../../etc/passwd", "_._.._etc_passwd"),
        (".hidden", "_hidden"),
        ("a\x00b\n", "a_b_"),
        ("", "_"),
        ("x" * 999, "x" * 200),
    ],
)
def test_names_are_made_safe(given: str, name: str) -> None:
    assert files.safe_name(given) == name


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "id").symlink_to(victim)
    assert files.write_file(folder, "id", b"new").read_bytes() == b"new"
    assert victim.read_text() == "kept" and not (folder / "id").is_symlink()
    assert os.listdir(folder) == ["id"]


def test_bodies_are_not_written_below_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "rocketmq").symlink_to(elsewhere)
    monkeypatch.setattr(files, "BODIES", tmp_path / "rocketmq" / "msgbodys")
    with pytest.raises(PermissionError, match="is no folder"):
        files.write_body("id", b"x")
    assert not list(elsewhere.iterdir())
