"""What pyproject.toml cannot say: the compiled hot path (`src/saturnmq/hot`) and the addresses of the project.

The package has no compiled part, and its wheel is `py3-none-any`, without a C compiler or Python's headers, on free-threaded
builds, and with SATURNMQ_PURE=1. SATURNMQ_PURE=0 makes a missing compiler an error.
SATURNMQ_PROJECT_URL is the address of the repository that a release is built from; a build without it names none.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

HOT = Path("src/saturnmq/hot")
PURE = os.environ.get("SATURNMQ_PURE", "")
URL = os.environ.get("SATURNMQ_PROJECT_URL", "").rstrip("/")


def has_compiler() -> bool:
    """Whether a C compiler and Python's headers are installed. Windows, whose compiler has other options, gets no compiled part."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or ""
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return bool(command) and shutil.which(command.split()[0]) is not None and headers.exists()


def extensions() -> list[Extension]:
    """The modules to compile. `SystemExit` if they are demanded and there is no compiler."""
    if PURE == "1" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return []
    if not has_compiler():
        missing = "no C compiler, or no headers of Python (on Debian and Ubuntu: sudo apt install gcc python3-dev)"
        if PURE == "0":
            raise SystemExit(f"saturnmq: SATURNMQ_PURE=0 demands the compiled hot path: {missing}")
        print(f"saturnmq: built as pure Python, about half as fast: {missing}", file=sys.stderr)
        return []
    from Cython.Build import cythonize

    modules = [
        Extension(
            f"saturnmq.hot.{source.stem}",
            [str(source.with_suffix(".py"))],
            # Without debug information, which names folders of the build: the same sources give the same bytes.
            extra_compile_args=["-O2", "-g0", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"],
            optional=PURE != "0",  # a failure to compile one is a warning
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


def description() -> str:
    """README, whose links to files of the repository work elsewhere too."""
    text = Path("README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\((?=docs/|[A-Z]+\.md)", f"]({URL}/blob/main/", text) if URL else text


setup(
    ext_modules=extensions(),
    long_description=description(),
    long_description_content_type="text/markdown",
    project_urls={
        "Source": URL,
        "Documentation": f"{URL}/tree/main/docs",
        "Changelog": f"{URL}/blob/main/CHANGELOG.md",
        "Issues": f"{URL}/issues",
    }
    if URL
    else {},
)
