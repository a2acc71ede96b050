"""The pytest option `--folders-in-memory`: the folders of `tmp_path` are in /dev/shm instead of on the disk.

Most stores of the tests flush each message: on a disk that is the longest wait of the tests, and all processes wait for the same
disk. A process that is killed leaves the same bytes in both places. What depends on the order of fsyncs is tested with recorded
writes (harness/crash), not with a disk.

Without the option, with `--basetemp`, and where /dev/shm has less than FREE_BYTES_MIN, as in a container with the usual 64 MB, the
folders are where pytest puts them. Those of passed tests are removed at once (`tmp_path_retention_policy`), so that what is in
memory stays small.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

MEMORY: Final = Path("/dev/shm")
FREE_BYTES_MIN: Final = 6 << 30  # a whole run keeps about 1 GiB: folders of modules and of failed tests
VARIABLE: Final = "PYTEST_DEBUG_TEMPROOT"  # read by pytest, also by those that tests start


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("saturnmq gate").addoption(
        "--folders-in-memory",
        action="store_true",
        help="put the folders of tmp_path into /dev/shm if it has enough space",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--folders-in-memory") and has_space(MEMORY):
        os.environ.setdefault(VARIABLE, str(MEMORY))


def has_space(folder: Path) -> bool:
    """Whether `folder` exists, can be written and has FREE_BYTES_MIN."""
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) and shutil.disk_usage(folder).free >= FREE_BYTES_MIN
