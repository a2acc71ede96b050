"""The image and the compose file: what they say is started here, on a root file system that is read-only."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from realtools import checked_by
from serverprocess import Server

import dist
from boards import DEPLOY
from ports import free_port
from saturnmq.sync import Client

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
COMPOSE = DEPLOY / "docker" / "compose.yml"
READ_ONLY = """
mount --make-rprivate / && mount --bind "$0" "$0" && mount -o remount,bind,ro / && ! touch /written 2> /dev/null && exec "$@"
"""


def instructions() -> dict[str, str]:
    """The last stage of the Dockerfile, by instruction; the last one of a kind."""
    stage = DOCKERFILE.read_text().rpartition("\nFROM ")[2]
    return dict(line.split(" ", 1) for line in stage.splitlines()[1:] if line and not line.startswith("#"))


def exec_form(text: str) -> list[str]:
    words: list[str] = json.loads(text[text.index("[") :])
    return words


def service() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]["saturnmq"]
    return found


@pytest.fixture
def contained(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts the image's entry point in a name space of its own, where only the folder for /data can be written."""
    data = tmp_path / "data"
    data.mkdir()
    command = ["--user", "--map-root-user", "--mount", "sh", "-c", READ_ONLY, str(data)]
    if subprocess.run(["unshare", *command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare(1) makes no mount name space here")
    servers: list[Server] = []

    def start(*words: str, **env: str) -> Server:
        assert exec_form(instructions()["ENTRYPOINT"]) == ["saturnmq"]
        program = [sys.executable, "-m", "saturnmq.cli", *(word.replace("/data", str(data)) for word in words)]
        set_by_image = dict(pair.split("=", 1) for pair in instructions()["ENV"].split())
        set_by_image["HOME"] = set_by_image["HOME"].replace("/data", str(data))
        del set_by_image["PATH"]
        servers.append(Server(*command, *program, env=set_by_image | env, program=Path(shutil.which("unshare") or "")))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.mark.spec("INT-16")
def test_image_runs_as_another_user_and_is_checked() -> None:
    stage = instructions()
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", stage["USER"])
    assert stage["VOLUME"] == stage["WORKDIR"] == "/data"
    assert exec_form(stage["HEALTHCHECK"])[0] == "saturnmq"
    assert service()["read_only"] and service()["cap_drop"] == ["ALL"]


@pytest.mark.spec("INT-16")
def test_dockerfile_is_accepted_by_hadolint() -> None:
    checked_by("hadolint", DOCKERFILE)


@pytest.mark.spec("INT-16", "UX-04")
def test_image_serves_the_host_from_a_read_only_root(
    contained: Callable[..., Server],
) -> None:
    """As `docker run -p 9876:9876 -p 10911:10911 -e SATURNMQ_ADVERTISED_HOST=localhost --read-only`, on free ports."""
    command = exec_form(instructions()["CMD"])
    server = contained(*command, "--port", "0", "--namesrv-port", "0", SATURNMQ_ADVERTISED_HOST="localhost")
    assert server.facts["broker"].startswith("0.0.0.0:") and server.facts["advertised"].startswith("localhost:")
    address = f"127.0.0.1:{server.facts['namesrv'].rpartition(':')[2]}"
    with Client.from_url(f"rmq://{address}") as client, client.producer("orders-p") as out:
        assert out.send("orders", b"one").offset == 0
    health = [sys.executable, "-m", "saturnmq.cli", *exec_form(instructions()["HEALTHCHECK"])[1:]]
    env = os.environ | {"NAMESRV_ADDR": address}
    assert subprocess.run(health, env=env, timeout=60, check=False).returncode == 0
    assert server.stop() == 0
    assert subprocess.run(health, env=env, timeout=60, check=False).returncode == 3


@pytest.mark.spec("INT-16")
def test_compose_file_serves_console_and_metrics(contained: Callable[..., Server]) -> None:
    text = yaml.safe_load(COMPOSE.read_text())
    assert {name: entry.get("network_mode") for name, entry in text["services"].items()} == {
        "saturnmq": None, "prometheus": "service:saturnmq", "grafana": "service:saturnmq",
    }  # fmt: skip
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scraped["static_configs"][0]["targets"] == ["127.0.0.1:5557"]
    metrics = free_port()
    command = [word.replace("5557", str(metrics)) for word in service()["command"]]
    assert command != service()["command"]
    server = contained(
        *command, "--port", "0", "--namesrv-port", "0", "--console-port", "0", SATURNMQ_ADVERTISED_HOST="localhost"
    )
    port = server.facts["console"].rstrip("/").rpartition(":")[2]
    for url, part in (
        (f"http://127.0.0.1:{metrics}/metrics", b"saturnmq_"),
        (f"http://localhost:{port}/", b"SaturnMQ"),
    ):
        with urllib.request.urlopen(url, timeout=30) as page:
            assert part in page.read()


def test_compose_file_is_accepted_by_its_schema() -> None:
    checked_by("check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_context_of_the_image_has_what_a_build_needs(tmp_path: Path) -> None:
    ignore = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    context, out = tmp_path / "context", tmp_path / "out"
    for name in (line[1:] for line in ignore if line.startswith("!")):
        copy = shutil.copytree if (dist.REPOSITORY / name).is_dir() else shutil.copy
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        copy(dist.REPOSITORY / name, context / name)
    out.mkdir()
    assert dist.build_wheel(sys.executable, context, out, pure=True).exists()
