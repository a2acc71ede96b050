"""The Java side: checks for a JDK and Maven, fetches the jars of 4.9.7, compiles and runs our Java programs."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from recorded import SHORT_JAVA

PROJECT = Path(__file__).resolve().parent / "java"
SPRING = PROJECT.with_name("spring")  # an application of rocketmq-spring, with a class path of its own
BENCH = PROJECT.parents[2] / "bench" / "java"  # the load generator is compiled together with our programs
ROCKETMQ_VERSION = "4.9.7"
JAVA_VERSION_MIN = 17
# Packages that 4.9.7 accesses by reflection and that Java 17 closes by default.
OPENINGS = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
# Set by the tests of this folder: programs that live for seconds start with a third less processor time. Benchmarks and long
# runs use Java's defaults, and so does everything started by hand.
SHORT_RUNS = "SATURNMQ_SHORT_JAVA"
_LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{file}</file>
    <encoder><pattern>%d %-5level %logger{{20}} - %msg%n</pattern></encoder>
  </appender>
  <root level="{level}"><appender-ref ref="file"/></root>
</configuration>
"""


def why_not() -> str | None:
    """Why the Java peers cannot run on this machine, or None if they can."""
    java = _java()
    if java is None:
        return "skipped: no `java` on the PATH and no JAVA_HOME; make interop needs a JDK 17 or newer and Maven"
    version = java_version()
    if version < JAVA_VERSION_MIN:
        return f"skipped: {java} is Java {version}; make interop needs a JDK {JAVA_VERSION_MIN} or newer"
    if not Path(java).resolve().with_name("javac").exists():
        return f"skipped: {java} is a runtime without a compiler; make interop needs a JDK {JAVA_VERSION_MIN} or newer"
    if shutil.which("mvn") is None:
        return "skipped: no `mvn` on the PATH; make interop needs Maven to fetch rocketmq-client and rocketmq-tools"
    return None


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


@cache
def java_version_text() -> str:
    """The version line of `java -version`."""
    java = _java()
    if java is None:
        return ""
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    return next((line for line in said.splitlines() if "version" in line), said)


def java_version() -> int:
    """Feature version of the Java in use: 17, 21, ...; 0 if unknown."""
    match = re.search(r'version "(?:1\.)?(\d+)', java_version_text())
    return int(match.group(1)) if match else 0


@cache
def classpath(project: Path = PROJECT) -> str:
    """Fetch the jars of a project and compile its programs if needed (Maven), once per process; returns the class path.

    The jar is named after a hash of its sources, so that a later build does not replace it under a running program.
    Raises RuntimeError with Maven's output.
    """
    target = project / "target"
    sources = sorted([project / "pom.xml", *project.glob("src/**/*.java")])
    if project == PROJECT:
        sources += sorted(BENCH.glob("**/*.java"))
    version = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    jar = target / f"interop-{version}.jar"
    target.mkdir(exist_ok=True)
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jar.exists():
            _run_maven(project, "package")
            shutil.copy(target / "interop.jar", jar.with_suffix(".part"))
            jar.with_suffix(".part").rename(jar)
    return os.pathsep.join([str(jar), *sorted(str(path) for path in (target / "lib").glob("*.jar"))])


@cache
def classpath_of(version: str, project: Path = PROJECT, artifact: str = "rocketmq") -> str:
    """The class path with another version of an artifact: our programs, as `classpath` compiled them, run on its jars."""
    ours = classpath(project).split(os.pathsep)[0]
    folder = project / "target" / f"lib-{version}"
    with (project / "target" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".complete").exists():
            words = [f"-D{artifact}.version={version}", f"-DoutputDirectory={folder}"]
            _run_maven(project, "dependency:copy-dependencies", *words)
            (folder / ".complete").touch()
    return os.pathsep.join([ours, *sorted(str(path) for path in folder.glob("*.jar"))])


def _run_maven(project: Path, *words: str) -> None:
    command = ["mvn", "-q", "-B", "-ntp", *words]
    options = f"{SHORT_JAVA['JDK_JAVA_OPTIONS']} {os.environ.get('MAVEN_OPTS', '')}"  # half the processor time
    environment = {**os.environ, "MAVEN_OPTS": options}
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=480, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"mvn {words[0]} failed:\n" + (done.stdout + done.stderr)[-4000:])


def write_home(folder: Path, level: str = "WARN") -> Path:
    """Prepare folder as ROCKETMQ_HOME: writes the logback files that 4.9.7 requires, logging to folder/logs."""
    conf = folder / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for part in ("broker", "namesrv", "tools"):
        text = _LOGBACK.format(file=folder / "logs" / f"{part}.log", level=level)
        fresh = conf / f".{part}.{os.getpid()}.{threading.get_ident()}"
        fresh.write_text(text)
        fresh.replace(conf / f"logback_{part}.xml")  # another command may be reading it at this moment
    return folder


def java_command(
    main: str,
    arguments: Sequence[str] = (),
    *,
    home: Path,
    heap_mb: int = 256,
    properties: Mapping[str, str] | None = None,
    version: str = ROCKETMQ_VERSION,
    jars: str | None = None,
) -> list[str]:
    """The command line that runs a main class; user.home and temporary files stay under home.

    jars: the class path, by default that of our programs and Apache's jars of this version.
    """
    java = _java()
    assert java is not None
    given = {"user.home": str(home), "rocketmq.client.logRoot": str(home / "logs"), "rocketmq.client.logLevel": "WARN"}
    given.update(properties or {})
    return [
        java,
        *OPENINGS,
        *(SHORT_JAVA["JDK_JAVA_OPTIONS"].split() if os.environ.get(SHORT_RUNS) else ()),
        f"-Xms{heap_mb}m",
        f"-Xmx{heap_mb}m",
        *(f"-D{key}={value}" for key, value in given.items()),
        "-cp",
        jars or (classpath() if version == ROCKETMQ_VERSION else classpath_of(version)),
        main,
        *arguments,
    ]


def java_environment(home: Path) -> dict[str, str]:
    """The environment for java_command: no inherited options, ROCKETMQ_HOME set."""
    env = {
        key: value for key, value in os.environ.items() if key not in {"JAVA_TOOL_OPTIONS", "NAMESRV_ADDR", "CLASSPATH"}
    }
    env["ROCKETMQ_HOME"] = str(home)
    return env


@dataclass(frozen=True)
class Finished:
    """The result of a program that ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def results(self) -> list[dict[str, Any]]:
        """What our programs report: every `RESULT {...}` line, decoded."""
        return [json.loads(line[7:]) for line in self.stdout.splitlines() if line.startswith("RESULT ")]

    def check(self) -> Finished:
        """Return self; raises AssertionError with both outputs if the program failed."""
        assert self.code == 0, f"exit {self.code}\n--- stdout\n{self.stdout[-6000:]}\n--- stderr\n{self.stderr[-6000:]}"
        return self


def run_java(
    main: str,
    arguments: Sequence[str] = (),
    *,
    home: Path,
    timeout_s: float = 90.0,
    properties: Mapping[str, str] | None = None,
    version: str = ROCKETMQ_VERSION,
) -> Finished:
    """Run a main class to its end; raises subprocess.TimeoutExpired after timeout_s."""
    done = subprocess.run(
        java_command(main, arguments, home=home, properties=properties, version=version),
        env=java_environment(home),
        cwd=home,  # some mqadmin commands write files into the working directory
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def run_client(
    command: str, *, home: Path, timeout_s: float = 90.0, serialization: str = "JSON", **options: object
) -> Finished:
    """Run `interop.Interop COMMAND key=value...`, our program on Apache's client; fails the test on an error exit."""
    arguments = [command, *(f"{key}={value}" for key, value in options.items())]
    properties = {"rocketmq.serialize.type": serialization}
    return run_java("interop.Interop", arguments, home=home, timeout_s=timeout_s, properties=properties).check()


def mqadmin(name_servers: str, *arguments: str, home: Path | None = None, timeout_s: float = 60.0) -> str:
    """Output of Apache's `mqadmin` for a command, followed by the exception lines of its stack traces."""
    folder = home or Path(tempfile.gettempdir()) / f"saturnmq-mqadmin-{os.getuid()}"
    write_home(folder)
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"
    done = run_java(main, [*arguments, "-n", name_servers], home=folder, timeout_s=timeout_s).check()
    reasons = [line for line in done.stderr.splitlines() if re.match(r"(Caused by: )?[\w.]+(Exception|Error)\b", line)]
    return "\n".join([done.stdout, *reasons])
