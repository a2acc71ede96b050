"""The platform of this process: implementation of the hot path, event loop, commit.

Requirements: CLI-11, PKG-02.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import saturnmq
from saturnmq.hot import is_compiled
from saturnmq.protocol.codes import VERSION
from saturnmq.protocol.errors import ConfigError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection while modules are imported: it would find nothing, and take a fifteenth of a server's start."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def loop_name() -> str:
    """Name of the event loop that servers use: uvloop when it is installed, unless SATURNMQ_LOOP=asyncio."""
    use_uvloop = os.environ.get("SATURNMQ_LOOP") != "asyncio" and importlib.util.find_spec("uvloop") is not None
    return "uvloop" if use_uvloop else "asyncio"


def loop_factory() -> Callable[[], AbstractEventLoop] | None:
    """The event loop's constructor; None for the loop of asyncio."""
    if loop_name() == "asyncio":
        return None
    import uvloop

    return uvloop.new_event_loop


def implementation() -> str:
    """The implementation of the hot path that runs: `compiled` or `pure`.

    Raises ConfigError when SATURNMQ_PURE=0 demands the compiled one and this build has none (PKG-02).
    """
    try:
        return "compiled" if is_compiled() else "pure"
    except ImportError as error:
        raise ConfigError(str(error)) from error


def commit() -> str:
    """Commit of the running checkout, read from .git without starting git; "release" for an installed package."""
    git = Path(saturnmq.__file__).resolve().parent.parent.parent / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        if head.startswith("ref: "):
            head = (git / head[5:]).read_text().strip()
    except OSError:
        return "release"
    return head[:12]


def version_facts() -> dict[str, str]:
    """The text that --version prints after the version (CLI-11)."""
    return {
        "commit": commit(),
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "hot": implementation(),
        "loop": loop_name(),
        "protocol": str(VERSION),
    }
