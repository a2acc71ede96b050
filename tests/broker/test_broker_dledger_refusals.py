"""A member of a DLedger group whose store does not open: the error names a command after which it starts and follows.

Requirements: DUR-09, DUR-10, CLI-03.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from test_broker_dledger import Alone, put

from saturnmq.protocol.errors import SaturnError

COMMAND = re.compile(r"`([^`]+)`")


def _data(path: Path) -> list[Path]:
    return sorted((path / "dledger-n0" / "data").iterdir())


def _cut_data(path: Path) -> None:
    os.truncate(_data(path)[0], 1000)


def _cut_index(path: Path) -> None:
    os.truncate(min((path / "dledger-n0" / "index").iterdir()), 1000)


def _gap(path: Path) -> None:
    _data(path)[1].unlink()


def _damage_with_files_behind(path: Path) -> None:
    for file in (path / "dledger-n0" / "index").iterdir():
        file.unlink()
    raw = bytearray(_data(path)[0].read_bytes())
    raw[:200] = b"?" * 200
    _data(path)[0].write_bytes(raw)


def _no_term(path: Path) -> None:
    for file in (path / "dledger-n0").glob("currterm*"):
        file.unlink()


def _old_log_written(path: Path) -> None:
    """A broker without enableDLegerCommitLog has written there since."""
    folder = path / "commitlog"
    folder.mkdir()
    (folder / _data(path)[0].name).write_bytes(bytes(_data(path)[0].stat().st_size))


@pytest.mark.parametrize("harm", [_cut_data, _cut_index, _gap, _damage_with_files_behind, _no_term, _old_log_written])
async def test_refused_member_starts_after_the_command_named(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    root = tmp_path / "store of n0"
    async with Alone(root, commit_log_file_bytes=65536) as store:
        for number in range(200):
            await put(store, b"%d" % number * 500)
    assert len(_data(root)) > 2
    harm(root)
    with pytest.raises(SaturnError) as caught:
        async with Alone(root, commit_log_file_bytes=65536):
            pass
    assert caught.value.hint, caught.value
    (command,) = COMMAND.findall(caught.value.hint)
    assert shlex.split(command) == ["mv", str(root), f"{root}-damaged"]
    subprocess.run(shlex.split(command), check=True)
    async with Alone(root, commit_log_file_bytes=65536) as store:
        await put(store, b"again")
        assert store.max_offset("T", 0) == 1
