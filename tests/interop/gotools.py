"""The Go side: is there a Go toolchain, the released Go client from the module proxy, our program over it, how to run it."""

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
    """No Go, or the module proxy does not give the modules of go.mod: the reason, as the test run shows it."""


def _go(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """`go ARGUMENTS` in our project, by the toolchain that is there (a newer one is never fetched)."""
    env = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -buildvcs=false", "CGO_ENABLED": "0"}
    command = ["go", *arguments]
    return subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)


@cache
def why_not() -> str | None:
    """Why the Go client cannot run here, or None when our program over it is built."""
    try:
        binary()
    except GoUnavailable as reason:
        return f"skipped: {reason}"
    return None


@cache
def binary() -> Path:
    """Our program, named after its sources, built where it is not there yet (about 30 s with an empty cache).

    Raises GoUnavailable where it cannot be had, RuntimeError with the compiler's words where it does not compile.
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
    """Run our program's COMMAND key=value...; checks that it ended well. Broadcast offsets lie under home."""
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
