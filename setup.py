"""Compiles the hot path (`src/saturnmq/hot`) where a C compiler and Python's headers are; everything else is in pyproject.toml.

Without them, on free-threaded builds, and with SATURNMQ_PURE=1 the package has no compiled part and runs as pure Python.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

HOT = Path("src/saturnmq/hot")


def extensions() -> list[Extension]:
    """The modules to compile. `optional`: a failure to compile one is a warning."""
    if os.environ.get("SATURNMQ_PURE") == "1" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return []
    from Cython.Build import cythonize

    modules = [
        Extension(
            f"saturnmq.hot.{source.stem}",
            [str(source.with_suffix(".py"))],
            extra_compile_args=["-O2", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"],
            optional=True,
        )
        for source in sorted(HOT.glob("*.pxd"))
    ]
    built: list[Extension] = cythonize(
        modules,
        build_dir="build/cython",
        # Types are those of the .pxd files: `int` in a signature of Python is a number of any size.
        compiler_directives={"language_level": 3, "annotation_typing": False},
    )
    return built


setup(ext_modules=extensions())
