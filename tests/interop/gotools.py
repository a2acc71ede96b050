"""The Go side: checks for a toolchain, fetches the released Go client from the module proxy, builds and runs our program."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from javatools import Finished

PROJECT = Path(__file__).resolve().parent / "go"


class GoUnavailable(Exception):
    """Go is missing, or the module proxy does not serve the modules of go.mod; the message is the skip reason."""


def _go(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run `go ARGUMENTS` in our project with the installed toolchain (a newer one is never fetched)."""
    env = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -buildvcs=false", "CGO_ENABLED": "0"}
    command = ["go", *arguments]
    return subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)


@cache
def why_not() -> str | None:
    """Why the Go client cannot run here, or None if our program is built."""
    try:
        binary()
    except GoUnavailable as reason:
        return f"skipped: {reason}"
    return None


@cache
def binary() -> Path:
    """Path of our program, named after a hash of its sources; built on first use (about 30 s with an empty cache).

    Raises GoUnavailable if Go or its modules are missing, RuntimeError with the compiler's output if the build fails.
    """
    sources = sorted([*PROJECT.glob("*.go"), PROJECT / "go.mod", PROJECT / "go.sum"])
    version = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    program = PROJECT / "target" / f"interop-{version}"
    if program.exists():
        return program
    if shutil.which("go") is None:
        raise GoUnavailable("no `go` on the PATH; the cases of the Go client need Go 1.19 or newer")
    program.parent.mkdir(exist_ok=True)
    with (program.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            fetched = _go("mod", "download", timeout_s=240)
            if fetched.returncode != 0:
                raise GoUnavailable("the Go modules of go.mod are not to be had: " + fetched.stderr.strip()[-300:])
            built = _go("build", "-trimpath", "-o", f"{program}.part", ".", timeout_s=240)
            if built.returncode != 0:
                raise RuntimeError("go build failed:\n" + built.stderr[-4000:])
            Path(f"{program}.part").rename(program)
    return program


def run_go(command: str, *, home: Path, timeout_s: float = 120.0, **options: object) -> Finished:
    """Run `COMMAND key=value...` of our program; fails the test on an error exit. Broadcast offsets are stored under home."""
    env = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    env.update({"HOME": str(home), "ROCKETMQ_GO_LOG_LEVEL": os.environ.get("ROCKETMQ_GO_LOG_LEVEL", "error")})
    words = [command, *(f"{key}={value}" for key, value in options.items())]
    done = subprocess.run(
        [str(binary()), *words],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr).check()
