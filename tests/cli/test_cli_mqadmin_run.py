"""`saturnmq admin` beside its commands: the list, options of ours, NameServers, errors, repetition on a terminal, start-up time."""

from __future__ import annotations

import argparse
import asyncio
import http.server
import io
import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from admincli import AdminCli
from test_cli_help import seconds_of

from saturnmq.admin.connection import AdminConnection
from saturnmq.cli.cluster import admin_of, name_cluster
from saturnmq.cli.commands import ADMIN
from saturnmq.cli.mqadmin import run
from saturnmq.cli.mqadmin.options import (
    COMMON_EXTENSIONS,
    HELP,
    NAME_SERVERS,
    WrongOptions,
    help_text,
    opt,
    parse,
    take_extensions,
)
from saturnmq.cli.mqadmin.output import frame
from saturnmq.cli.mqadmin.table import COMMANDS

# Multiples of an interpreter start, of which one takes 10 to 20 ms: below 250 ms of processor time on a machine of today.
LIST_STARTS_MAX = 15.0
COMMAND_STARTS_MAX = 28.0
NOWHERE = "127.0.0.1:1"


@pytest.mark.spec("ADM-01")
def test_list_names_commands_of_mqadmin_then_ours_then_ledgers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines[1:-2]]
    ledgers = [command.name.split()[1] for command in ADMIN if command.function]
    assert lines[0] == "The most commonly used mqadmin commands are:"
    assert names == [command.name for command in COMMANDS] + ledgers
    assert "   updateTopic          Update or create topic" in lines
    assert all(re.fullmatch(r" {3}\S.{19} \S.*| {3}\S{20,} \S.*", line) for line in lines[1:-2])


@pytest.mark.spec("ADM-02")
def test_names_and_aliases_match_in_any_case() -> None:
    for command in COMMANDS:
        for name in (command.name, *command.aliases):
            assert run.find(name.upper()) is run.find(name.lower()) is command


def test_options_of_ours_collide_with_none_of_mqadmin() -> None:
    ours = {each.long for each in COMMON_EXTENSIONS}
    assert all(one.long.strip() not in ours for command in COMMANDS for one in command.options)


@pytest.mark.spec("ADM-01")
def test_help_prints_what_is_ours_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["help", "topicList"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("usage: mqadmin topicList [-c] [-h] [-n <arg>]\n") and "--json" not in printed.out
    assert all(
        name in printed.err for name in ("--json", "--watch", "--vip-channel", "example: saturnmq admin topicList")
    )
    widths = [len(line) for command in COMMANDS for line in help_text(command.name, command.options).splitlines()]
    assert 100 < max(widths) <= 110


@pytest.mark.parametrize(
    "words",
    [
        ("topicList", "--signature", "v3"),
        ("topicList", "-x"),
        ("nothing",),
        ("topicList", "--timeout", "-1"),
        ("help", "x"),
    ],
)
def test_wrong_words_are_one_json_object_and_exit_code_1(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main([*words, "--json"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and set(json.loads(printed.err)) == {"code", "message", "hint"}


def test_wrong_options_print_help_on_stdout_and_the_reason_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["topicList", "--clusterModl"]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("usage: mqadmin topicList")
    assert "did you mean --clusterModel?" in printed.err and "saturnmq admin help topicList" in printed.err


def test_only_listings_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    (changing,) = [command for command in COMMANDS if command.name == "deleteTopic"]
    assert run.main([changing.name, "-t", "t", "-c", "c", "--watch", "1"]) == 1
    assert "--watch repeats listings" in capsys.readouterr().err


# ---- options


OPTIONS = (
    HELP,
    NAME_SERVERS,
    opt("a", "all", "", value=False),
    opt("m", "more", "", value=False),
    opt("t", "topic", ""),
    opt("", "keep", "", value=False, is_extension=True),
)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["-am"], {"a": "true", "m": "true"}),
        (["-amt", "x"], {"a": "true", "m": "true", "t": "x"}),
        (["-atx"], {"a": "true", "t": "x"}),
        (["-t", "x", "-t", "y"], {"t": "x"}),
        (["-t", "-1"], {"t": "-1"}),
        (["--keep"], {"keep": "true"}),
    ],
)
def test_posix_forms(words: list[str], values: dict[str, str]) -> None:
    assert dict(parse(words, OPTIONS)) == values


@pytest.mark.parametrize("words", [["-t", "-a"], ["-ax"], ["-"], ["--a b"]])
def test_what_is_no_option_is_refused(words: list[str]) -> None:
    with pytest.raises(WrongOptions):
        parse(words, OPTIONS)


# ---- where the NameServers come from


@pytest.fixture
def address_server() -> Iterator[str]:
    """URL of an HTTP server that names two NameServers."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"10.0.0.1:9876;10.0.0.2:9876\n")

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/rocketmq/nsaddr"
        server.shutdown()
        thread.join()


async def connected(name_servers: str = "") -> tuple[AdminConnection, str]:
    """What a command connects to, and the option or variable that names it."""
    args = argparse.Namespace(name_servers=name_servers, config=None, tools_yml=None, signature="v1")
    source = await name_cluster(args)
    return admin_of(args).connection, source


def name_servers(option: str = "") -> str:
    return ";".join(asyncio.run(connected(option))[0].name_servers)


@pytest.mark.spec("ADM-03")
def test_name_servers_of_option_environment_address_server_default(
    address_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.delenv("SATURNMQ_URL", raising=False)
    assert name_servers() == "127.0.0.1:9876"
    monkeypatch.setenv("SATURNMQ_ADDRESS_SERVER", address_server)
    assert name_servers() == "10.0.0.1:9876;10.0.0.2:9876"
    monkeypatch.setenv("NAMESRV_ADDR", "from-environment:9876")
    assert name_servers() == "from-environment:9876"
    assert name_servers("given:1;given:2") == "given:1;given:2"


def test_admin_commands_use_the_url_that_other_commands_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "another:9876")
    monkeypatch.setenv("SATURNMQ_URL", "rmqs://key:secret@of-url:9876")
    connection, source = asyncio.run(connected())
    assert connection.name_servers == ("of-url:9876",) and source == "variable SATURNMQ_URL"
    assert connection.access.access_settings == {"access_key": "key", "secret_key": "secret", "tls": True}
    assert "secret" not in repr(connection.access).replace("cluster_secret", "")
    other, source = asyncio.run(connected("given:1"))
    assert other.name_servers == ("given:1",) and other.access.access_settings == {} and source == "option -n"


def test_admin_commands_sign_with_the_account_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATURNMQ_ACCESS_KEY", "key")
    monkeypatch.setenv("SATURNMQ_SECRET_KEY", "secret")
    access = asyncio.run(connected("given:1"))[0].access
    assert access.access_settings == {"access_key": "key", "secret_key": "secret"} and access.signer is not None


def test_change_shows_its_cluster_and_why_on_stderr(admin_cli: AdminCli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATURNMQ_URL", f"rmq://{admin_cli.server.name_servers}")
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    words = ("updateTopic", "-t", "chosen", "-b", admin_cli.server.broker_address)
    code, out, err = admin_cli.run_bare(*words)
    assert code == 0, err
    line = f"cluster: NameServer {admin_cli.server.name_servers} (variable SATURNMQ_URL)"
    assert err.count(line) == 1 and line not in out
    assert "(option -n)" in admin_cli.run(*words)[2]
    code, out, err = admin_cli.run_bare("topicList")
    assert code == 0 and "chosen" in out and "cluster:" not in err


def test_vip_channel_of_option_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SATURNMQ_VIP_CHANNEL", raising=False)
    assert not take_extensions([])[0].vip_channel
    assert take_extensions(["--vip-channel"])[0].vip_channel
    monkeypatch.setenv("SATURNMQ_VIP_CHANNEL", "True")
    assert take_extensions([])[0].vip_channel


# ---- a terminal


class Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.writes.append(text)
        return len(text)


def test_repeated_listing_is_one_write_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    with frame(True):
        print("first")
        print("second")
    assert terminal.writes == ["\x1b[Hfirst\x1b[K\nsecond\x1b[K\n\x1b[J"]
    assert sys.stdout is terminal


def test_repeated_listing_in_a_pipe_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    with frame(True):
        print("first")
    assert capsys.readouterr().out == "first\n"


# ---- start


@pytest.mark.realtime
def test_commands_start_in_less_than_250_ms(tmp_path: Path) -> None:
    python, _ = seconds_of(tmp_path, "-c", "pass")
    listing, printed = seconds_of(tmp_path, "-m", "saturnmq.cli", "admin")
    assert re.search(r"^   topicList ", printed, re.M)
    command = (
        "import sys; from saturnmq.cli import main; "
        f"sys.exit(main(['admin', 'topicList', '-n', '{NOWHERE}']) - 4)"  # nothing listens there
    )
    running, _ = seconds_of(tmp_path, "-c", command)
    assert listing < LIST_STARTS_MAX * python and running < COMMAND_STARTS_MAX * python


# ---- a reader of stdout that has gone


@pytest.mark.spec("CLI-04")
def test_closed_pipe_is_no_error_of_the_command(admin_cli: AdminCli, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("saturnmq.cli.mqadmin.output.emit", closed)
    with pytest.raises(BrokenPipeError):  # `saturnmq.cli.run` ends it with 0, without a word
        admin_cli.run("topicList", "--json")
