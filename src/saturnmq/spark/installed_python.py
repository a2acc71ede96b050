"""Starts planners and workers with the installed pyspark instead of Spark's zip of its sources.

Spark puts `pyspark.zip` and two more archives first into PYTHONPATH of each Python process. They contain no bytecode and Python
cannot write any into them, so every process compiles pyspark again; the planner of a stream has 10 s to start, a limit that no
setting changes. No variable precedes those archives, only the interpreter that Spark runs can drop them.

Requirements: SPK-09.
"""

from __future__ import annotations

import os
import shlex
import shutil
import site
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark import SparkContext

SCRIPT: Final = "saturnmq-python"


@contextmanager
def planners_use_installed(context: SparkContext) -> Iterator[None]:
    """Register data sources inside this block to run on the installed pyspark, where that is the same package as Spark's archives.

    Only with a local master: executors on other machines cannot run a script of this one.
    """
    inner: Any = context
    before: str = inner.pythonExec
    script = _script(inner)
    if script is not None:
        inner.pythonExec = str(script)
    try:
        yield
    finally:
        inner.pythonExec = before


def _script(context: Any) -> Path | None:
    """Write the script that runs this interpreter into Spark's temporary folder; None where Spark's archives have to stay."""
    package = installed_package()
    interpreter = shutil.which(context.pythonExec)
    if os.name != "posix" or not context.master.startswith("local") or package is None:
        return None
    if interpreter is None or Path(interpreter) != Path(sys.executable):
        return None
    search_paths = [context.environment.get("PYTHONPATH"), context._jvm.java.lang.System.getenv("PYTHONPATH")]
    if has_other_pyspark(package, os.pathsep.join(filter(None, search_paths))):
        return None
    script = Path(context._temp_dir) / SCRIPT
    try:
        script.write_text(interpreter_script(package), encoding="utf-8")
        script.chmod(0o700)
    except OSError:
        return None
    return script if os.access(script, os.X_OK) else None  # a file system mounted noexec


def installed_package() -> Path | None:
    """Return the folder of pyspark in this interpreter's site-packages, None where there is none, or none with py4j."""
    folders = [sysconfig.get_path("purelib"), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    for folder in map(Path, folders):
        if (folder / "pyspark" / "__init__.py").exists() and (folder / "py4j" / "__init__.py").exists():
            return folder / "pyspark"
    return None


def has_other_pyspark(package: Path, path: str) -> bool:
    """Whether an entry of this PYTHONPATH outside `package` has a pyspark, which would be imported in place of `package`."""
    entries = [Path(entry) for entry in path.split(os.pathsep) if entry]
    return any(_has_pyspark(entry) for entry in entries if package not in entry.parents)


def _has_pyspark(entry: Path) -> bool:
    """Whether Python imports a pyspark from a folder or archive of PYTHONPATH."""
    if not entry.is_file():
        return (entry / "pyspark").exists()
    try:
        with zipfile.ZipFile(entry) as archive:
            return any(name.startswith("pyspark/") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False  # Python cannot import from it either


def interpreter_script(package: Path) -> str:
    """Return a script that runs this interpreter without the leading entries of PYTHONPATH that are archives inside `package`."""
    inside = shlex.quote(f"{package}/")
    return (
        "#!/bin/sh\n"
        "# Made by saturnmq: Spark's archives of pyspark have no bytecode, the same package is installed.\n"
        "while :; do\n"
        '  case "$PYTHONPATH" in\n'
        f"    {inside}*:*) PYTHONPATH=${{PYTHONPATH#*:}} ;;\n"
        f"    {inside}*) PYTHONPATH= ;;\n"
        "    *) break ;;\n"
        "  esac\n"
        "done\n"
        "export PYTHONPATH\n"
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
