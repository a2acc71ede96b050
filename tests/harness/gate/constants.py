"""The numbers and texts of the sources that Hypothesis draws beside random ones: of the whole package, in every process.

Hypothesis takes them from the modules that are loaded when it draws an example. So the examples of a test with a fixed seed
depended on what had been collected and on which tests ran before it in the same process. Here they depend on the tree only.

Hypothesis caches the constants of each file in `.hypothesis`. In a new checkout each worker begins with another file, so that
together they parse each file about once.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from hypothesis.internal import constants_ast
from hypothesis.internal.conjecture import providers

SOURCE: Final = Path(__file__).resolve().parents[3] / "src" / "saturnmq"
WORKER: Final = "PYTEST_XDIST_WORKER"  # "gw" and a number
WORKERS: Final = "PYTEST_XDIST_WORKER_COUNT"


@functools.cache
def constants_of_sources() -> Any:
    """Return the constants of all modules of the package, loaded or not."""
    paths = sorted(SOURCE.rglob("*.py"))
    first = len(paths) * int(re.sub(r"\D", "", os.environ.get(WORKER, "0"))) // int(os.environ.get(WORKERS, "1"))
    constants = constants_ast.Constants()
    for path in [*paths[first:], *paths[:first]]:
        module = ModuleType(path.stem)
        module.__file__ = str(path)
        constants |= constants_ast.constants_from_module(module)
    return providers._local_constants | constants  # sorted: which one is drawn depends on the order


def pytest_configure() -> None:
    """Have Hypothesis ask for these at every draw."""
    vars(providers)["_get_local_constants"] = constants_of_sources
