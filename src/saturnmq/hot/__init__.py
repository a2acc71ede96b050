"""Compiled code for the hot path: what a broker does for each plain send and index entry, and the Spark sink for each row.

The modules are Python, compiled by Cython where a compiler was at hand when the package was built (`setup.py`). Those that are
slower uncompiled than a reference implementation are only used compiled (`compiled`). SATURNMQ_PURE=1 leaves the compiled files
out, SATURNMQ_PURE=0 demands them.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

PURE: Final = "SATURNMQ_PURE"


class _Sources:
    """Finds the sources of this package's modules, though compiled files lie beside them.

    It has no base class: importlib.abc imports zipfile, tempfile and lzma.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        source = Path(__file__).with_name(f"{name}.py")
        return importlib.util.spec_from_file_location(fullname, source) if package == __name__ else None


if os.environ.get(PURE) == "1":
    # First: the standard finder prefers the compiled file to the source beside it.
    sys.meta_path.insert(0, _Sources())


def is_compiled(name: str = "sends") -> bool:
    """Whether a module is compiled and wanted. Raises ImportError if the compiled modules are demanded and missing."""
    wish = os.environ.get(PURE, "")
    if wish == "1":
        return False
    spec = importlib.util.find_spec(f"saturnmq.hot.{name}")
    # The interpreter looks for extension suffixes before .py, so the origin says which of the two an import would load.
    compiled = spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))
    if wish == "0" and not compiled:
        raise ImportError(
            f"{PURE}=0 demands the compiled hot path, and this build has none; unset it, or install a C compiler and "
            "Python's headers (on Debian and Ubuntu: sudo apt install gcc python3-dev) and run `make setup` in a checkout"
        )
    return compiled


def compiled(name: str) -> ModuleType | None:
    """A module of this package if it is compiled and wanted, else None. Raises ImportError as `is_compiled`."""
    return hot_module(name) if is_compiled(name) else None


def hot_module(name: str) -> ModuleType:
    """A module of this package, compiled or not, for packages where no name of a module is computed."""
    return importlib.import_module(f"saturnmq.hot.{name}")
