"""Builds the distributions: `make dist` the sdist, a wheel for this interpreter and a pure one, `make wheels` one per interpreter.

Each wheel is built from the sdist, so that no file of the checkout gets into it by chance. Times in the archives are that of the
last commit (or SOURCE_DATE_EPOCH), file modes are fixed, and the build tools are pinned in build-constraints.txt: the same commit
and compiler give the same bytes. `--check` installs each wheel into an empty virtual environment and runs check_installed.py there.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
MINORS: Final = range(11, 15)
EXTRAS: Final = "console,compression,msgspec,pydantic"
UMASK: Final = 0o022


def environment(**changes: str) -> dict[str, str]:
    """The environment of a build."""
    committed = ["git", "log", "-1", "--format=%ct"]
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or subprocess.check_output(committed, cwd=REPOSITORY, text=True).strip()
    pins = str(REPOSITORY / "tools" / "build-constraints.txt")
    return os.environ | {"SOURCE_DATE_EPOCH": epoch, "PIP_CONSTRAINT": pins, "PIP_NO_COMPILE": "1"} | changes


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command and return what it prints, which is shown if it fails."""
    done = subprocess.run(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, umask=UMASK, check=False
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nfailed: {' '.join(map(str, command))}")
    return done.stdout


def reproducible(sdist: Path, epoch: int) -> None:
    """Rewrite an sdist with fixed times, owners, modes and order, which setuptools takes from the file system."""
    packed = io.BytesIO()
    with tarfile.open(sdist) as source, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as target:
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            target.addfile(member, source.extractfile(member) if member.isfile() else None)
    sdist.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))


def build_sdist(out: Path) -> Path:
    """Build the sdist into a folder. It comes from the files that git knows, with their changes."""
    env = environment()
    with tempfile.TemporaryDirectory() as folder:
        listing = subprocess.check_output(["git", "ls-files", "-z"], cwd=REPOSITORY, text=True)
        for name in filter(None, listing.split("\0")):
            copy = Path(folder, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, copy)
        run(sys.executable, "-m", "build", "--sdist", "--outdir", out, folder, env=env)
    (sdist,) = out.glob("*.tar.gz")
    reproducible(sdist, int(env["SOURCE_DATE_EPOCH"]))
    return sdist


def build_wheel(python: str | Path, sdist: Path, out: Path, *, pure: bool = False) -> Path:
    """Build a wheel from an sdist, and print what setup.py says about it. python: an interpreter that has pip."""
    env = environment(**{"SATURNMQ_PURE": "1"} if pure else {})
    with tempfile.TemporaryDirectory() as folder:
        said = run(python, "-m", "pip", "wheel", "--verbose", "--no-deps", "--wheel-dir", folder, sdist, env=env)
        (wheel,) = Path(folder).glob("*.whl")
        sys.stdout.writelines(
            f"{line.strip()}\n" for line in said.splitlines() if line.strip().startswith("saturnmq: ")
        )
        return Path(shutil.move(wheel, out / wheel.name))


def empty_environment(python: str | Path, folder: Path) -> Path:
    """Create a virtual environment, and return its interpreter."""
    run(python, "-m", "venv", folder)
    return folder / "bin" / "python"


def check(python: str | Path, wheel: Path, extras: str = EXTRAS) -> str:
    """Install a wheel into an empty environment and run check_installed.py there; return its version line."""
    with tempfile.TemporaryDirectory() as folder:
        clean = empty_environment(python, Path(folder, "environment"))
        run(clean, "-m", "pip", "install", "--quiet", "--no-compile", f"{wheel}[{extras}]", "pytest", cwd=Path(folder))
        printed = run(clean, REPOSITORY / "tools" / "check_installed.py", "--extras", extras, cwd=Path(folder))
    return printed.splitlines()[-1]


def interpreters() -> list[str]:
    """The interpreters of this machine that wheels are for."""
    names = [f"python3.{minor}" for minor in MINORS]
    works = [
        name for name in names if shutil.which(name) and subprocess.run([name, "-c", ""], check=False).returncode == 0
    ]
    return works or [sys.executable]


def write_checksums(files: list[Path]) -> None:
    """Print the checksums of files of one folder, and write them to SHA256SUMS beside the files, as sha256sum reads it."""
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in sorted(files)]
    print("\n".join(lines))
    min(files).with_name("SHA256SUMS").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Build into --out, which is emptied before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "dist")
    parser.add_argument("--wheels", action="store_true", help="a wheel for each interpreter of this machine")
    parser.add_argument("--check", action="store_true", help="test each wheel in an empty environment")
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    sdist = build_sdist(args.out)
    files = [sdist]
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(interpreters() if args.wheels else [sys.executable]):
            python = empty_environment(name, Path(folder, str(number)))
            for pure in (False, True) if number == 0 else (False,):
                wheel = build_wheel(python, sdist, args.out, pure=pure)
                if args.check:
                    print(f"{name}: {check(name, wheel)}", flush=True)
                files.append(wheel)
    write_checksums(files)


if __name__ == "__main__":
    main()
