"""Command line errors that newcomers cause: problem, location and next step, as text and as JSON."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ports import free_port
from recorded import SHORT_JAVA

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
CLASS_NAME = re.compile(r"\b(\w+(Error|Exception)|int|str|list|dict|NoneType|[A-Z]\w*Table)\b")


@pytest.fixture
def busy_port() -> Iterator[int]:
    """A port on which this process listens; the port 2 below it is free."""
    port = free_port((0, -2))
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        yield port


def holder() -> str:
    """This process, as an error message names it."""
    return f"process {os.getpid()} ({Path('/proc/self/comm').read_text().strip()})"


@pytest.mark.spec("UX-09", "CLI-09")
@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("namesrv", "--port", "{port}"), "option --port, key listenPort"),
        (("standalone", "--data", "{data}", "--namesrv-port", "{port}", "--port", "0"), "option --namesrv-port"),
        (("standalone", "--data", "{data}", "--namesrv-port", "0", "--port", "{port}"), "option --port, key listenPort"),
        (("broker", "--data", "{data}", "--port", "{port}"), "option --port, key listenPort"),
        (
            ("broker", "--data", "{data}", "--port", "{above}"),
            "the fast port is 2 below the main one: option --port, key listenPort",
        ),
        (
            ("broker", "--data", "{data}", "--port", "0", "--set", "enableDLegerCommitLog=true", "--set",
             "dLegerPeers=n0-127.0.0.1:{port}", "--set", "dLegerSelfId=n0", "--set", "dLegerGroup=g"),
            "key dLegerPeers, alike on all members",
        ),
    ],
)  # fmt: skip
def test_busy_port_error_names_holder_and_option(
    cli: Cli, tmp_path: Path, busy_port: int, command: tuple[str, ...], option: str
) -> None:
    values = {"port": busy_port, "above": busy_port + 2, "data": tmp_path / "data"}
    done = cli(*(word.format(**values) for word in command))
    assert done.returncode == 1
    error, hint = (line for line in done.stderr.splitlines() if line.startswith("saturnmq: "))
    assert error == f"saturnmq: error: port {busy_port} on 127.0.0.1 is in use by {holder()}."
    assert hint == f"saturnmq: next: Stop that process or choose another port ({option})."


@pytest.mark.spec("CLI-03")
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("admin", "ledgerStatus", "-n", "127.0.0.1:1", "-g", "x"), 4),
        (("broker", "-c", "absent.conf"), 2),
        (("broker", "-p", "10911"), 2),
        (("standalone", "--data"), 2),
        (("standalone", "--data", "{data}", "--port", "x"), 2),
        (("standalone", "--data", "{data}", "--namesrv-port", "99999"), 2),
        (("store", "verify", "--data", "absent"), 1),
        (("nonsense",), 2),
    ],
)
def test_json_error_has_message_and_hint_but_no_class_name(
    cli: Cli, tmp_path: Path, command: tuple[str, ...], code: int
) -> None:
    command = tuple(word.format(data=tmp_path / "data") for word in command)
    done = cli(*command, "--json")
    assert done.returncode == code
    assert done.stdout == ""
    error = json.loads(done.stderr)
    assert error.keys() == {"code", "message", "hint"}
    assert error["message"] and error["hint"]
    assert not CLASS_NAME.search(error["message"].replace(str(tmp_path), ""))
    as_text = cli(*command).stderr
    assert f"saturnmq: error: {error['message']}" in as_text
    assert f"saturnmq: next: {error['hint']}" in as_text


@pytest.mark.spec("UX-09", "CLI-03", "CLI-09")
@pytest.mark.parametrize("content", ["[]", "{", '{"topicConfigTable": []}', '{"topicConfigTable": {"x": 3}}', "\x00"])
def test_damaged_state_file_error_names_file_in_json_terms(cli: Cli, tmp_path: Path, content: str) -> None:
    file = tmp_path / "config" / "topics.json"
    file.parent.mkdir()
    file.write_text(content)
    done = cli("standalone", "--data", str(tmp_path), "--namesrv-port", "0", "--port", "0", "--json", "--quiet")
    assert done.returncode == 1
    error = json.loads(done.stderr)
    assert str(file) in error["message"]
    assert not CLASS_NAME.search(error["message"].replace(str(tmp_path), ""))
    assert "remove" in error["hint"]


@pytest.mark.spec("UX-05")
@pytest.mark.parametrize("verb", ["broker", "namesrv"])
def test_port_given_after_p_is_explained(cli: Cli, verb: str) -> None:
    done = cli(verb, "-p", "10911")
    assert done.returncode == 2
    assert "the port is --port 10911" in done.stderr
    assert "-p prints the configuration" in done.stderr


def test_broker_accepts_address_port_and_folder_options(cli: Cli, tmp_path: Path) -> None:
    options = ("--host", "127.0.0.2", "--port", "12345", "--data", str(tmp_path))
    done = cli("broker", *options, "-p", "--json")
    assert done.returncode == 0
    rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(done.stdout)["rows"]}
    assert rows["bindAddress"] == ("127.0.0.2", "option")
    assert rows["listenPort"] == ("12345", "option")
    assert rows["storePathRootDir"] == (str(tmp_path), "option")


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_check_reports_versions_and_worker(started_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SHORT_JAVA.items():
        monkeypatch.setenv(name, value)
    done = started_cli("spark", "--check", "--json", seconds_max=280)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["worker"] == "works"
    assert row["java"] and row["pyspark"]


@pytest.mark.spec("UX-05", "CLI-03")
@pytest.mark.parametrize(
    ("words", "problem", "step"),
    [
        (("sned", "orders"), "unknown command 'sned'", "did you mean send?"),
        (("store", "verfy"), "unknown command 'verfy'", "did you mean verify?"),
        (("xyzzy",), "unknown command 'xyzzy'; there are: standalone, namesrv,", "saturnmq --help lists the options."),
        (("completion", "bsh"), "unknown shell 'bsh'", "did you mean bash?"),
        (
            ("send", "orders", "--tagg", "x"),
            "unrecognized arguments: --tagg x",
            "did you mean --tag? saturnmq send --help lists the options.",
        ),
        (
            ("store", "verify", "--data", "x", "--forse"),
            "unrecognized arguments: --forse",
            "did you mean --force? saturnmq store verify --help lists the options.",
        ),
    ],
)
def test_wrong_word_is_answered_with_the_nearest(cli: Cli, words: tuple[str, ...], problem: str, step: str) -> None:
    done = cli(*words)
    assert (done.returncode, done.stdout) == (2, "")
    error, following = done.stderr.splitlines()
    assert error.startswith(f"saturnmq: error: {problem}") and following == f"saturnmq: next: {step}"
