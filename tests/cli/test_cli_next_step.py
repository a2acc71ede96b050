"""What an error without a hint of its own advises, by its code; commands that it names exist."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import Any

import pytest
from admincli import AdminCli

from saturnmq.cli import console, servers
from saturnmq.cli.mqadmin.table import find
from saturnmq.cli.next_step import _BY_CODE, DEBUG, next_step
from saturnmq.cli.output import without_exception_name
from saturnmq.errors import CallTimeout, ConnectFailed
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ConfigError, SaturnError, response_error


@pytest.mark.spec("UX-05")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectFailed("no"), "clusterList"),
        (ConnectionRefusedError("no"), "clusterList"),
        (CallTimeout("late"), "in time"),
        (TimeoutError("late"), "in time"),
        (response_error(ResponseCode.NO_PERMISSION, "no"), "getAclConfig"),
        (response_error(ResponseCode.NO_PERMISSION, "Can not update config path"), "configuration.md"),
        (response_error(ResponseCode.TOPIC_NOT_EXIST, "No topic route info for the topic: orders"), "topicList"),
        (
            response_error(ResponseCode.TOPIC_NOT_EXIST, "for the topic: %RETRY%billing"),
            "No broker knows the group billing.",
        ),
        (response_error(ResponseCode.SYSTEM_ERROR, "org.apache.rocketmq.acl.common.AclException: no"), "--tools-yml"),
        (response_error(ResponseCode.SYSTEM_ERROR, "Can't modify topic from slave broker"), "#BID 0"),
        (response_error(ResponseCode.CONSUMER_NOT_ONLINE, "no"), "consumerProgress"),
        (response_error(ResponseCode.SYSTEM_ERROR, "no", hint="Do this."), "Do this."),
        (ConfigError("x must be a number"), "--print-config"),
        (
            response_error(ResponseCode.MESSAGE_ILLEGAL, "time should not be bigger than the max delay 259200000ms"),
            "takes 0 to 3d",
        ),
        (SaturnError("strange"), DEBUG),
        (OSError("strange"), DEBUG),
    ],
)
def test_next_step_fits_the_error(error: Exception, expected: str) -> None:
    assert expected in next_step(error)


def test_next_step_of_a_wrong_option_names_the_command() -> None:
    assert next_step(ConfigError("x"), "send") == "saturnmq send --help lists the options and their values."
    assert "`saturnmq broker --print-config`" in next_step(ConfigError("x"), "broker")


@pytest.mark.parametrize("words", [("store", "verify", "-c", "none.conf"), ("broker", "-c", "none.conf")])
def test_missing_configuration_file_is_named_with_what_it_must_be(cli: Any, words: tuple[str, ...]) -> None:
    done = cli(*words)
    assert done.returncode == 2 and "none.conf" in done.stderr
    assert "ls -l none.conf" in done.stderr and "key=value lines" in done.stderr


def test_wrong_duration_names_option_value_form_and_command(cli: Any) -> None:
    done = cli("send", "orders", "x", "--delay", "soon")
    assert done.returncode == 2
    assert "--delay 'soon' must be a duration such as 90000" in done.stderr and "saturnmq send --help" in done.stderr


def test_missing_packages_are_named_with_their_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "NEEDED", ("no_such_package",))
    with pytest.raises(ConfigError, match="needs the packages no_such_package") as caught:
        console.require_packages()
    assert str(caught.value.hint).startswith(f"Install them: {sys.executable} -m pip install 'starlette>=")
    arguments = argparse.Namespace(console=True, print_config=False, config=None, data=None, set=[])
    monkeypatch.setattr(servers, "configure", lambda *given: None)
    monkeypatch.setattr(servers, "Reload", lambda *given: None)
    with pytest.raises(ConfigError, match="no_such_package"):  # before a port is opened
        servers.run_standalone(arguments)


def test_name_and_place_of_a_java_exception_are_cut_off() -> None:
    place = "org.apache.rocketmq.acl.plain.PlainPermissionManager.validate(PlainPermissionManager.java:663)"
    text = f"10.0.0.1:10911: org.apache.rocketmq.acl.common.AclException: No accessKey is configured, {place}"
    assert without_exception_name(text) == "10.0.0.1:10911: No accessKey is configured"
    assert without_exception_name("org.apache.rocketmq.acl.common.AclException: No, it is not") == "No, it is not"


def test_commands_that_steps_name_exist() -> None:
    named = [name for text in _BY_CODE.values() for name in re.findall(r"saturnmq admin (\w+)", text)]
    assert named and all(find(name) is not None for name in named)


@pytest.mark.spec("CLI-03")
def test_json_error_has_the_code_of_the_response_or_none(admin_cli: AdminCli) -> None:
    for words, code in ((("topicRoute", "-t", "nowhere"), 17), (("topicList", "-x"), None)):
        got, out, err = admin_cli.run(*words, "--json")
        error = json.loads(err.splitlines()[-1])
        assert (got, out, error["code"]) == (1, "", code) and error["message"] and error["hint"]


@pytest.mark.spec("UX-05")
@pytest.mark.parametrize(
    ("words", "code", "problem", "step"),
    [
        (("topicRoute", "-t", "nowhere"), 1, "No topic route info in name server for the topic: nowhere", "topicList"),
        (("topicStatus", "-t", "nowhere"), 1, "nowhere", "topicList"),
        (("consumerProgress", "-g", "absent"), 1, "absent", "No broker knows the group absent."),
        (("brokerStatus", "-b", "127.0.0.1:1"), 4, "cannot connect to 127.0.0.1:1", "clusterList"),
        (("topicList", "-x"), 1, "'-x'", "saturnmq admin help topicList"),
        (("updateTopic", "-t", "t", "-c", "Nowhere"), 1, "no cluster 'Nowhere'", "clusterList"),
    ],
)
def test_unknown_name_has_one_line_and_a_step(
    admin_cli: AdminCli, words: tuple[str, ...], code: int, problem: str, step: str
) -> None:
    got, _, err = admin_cli.run(*words)
    error, following = [line for line in err.splitlines() if "cluster: NameServer" not in line]
    assert got == code and problem in error and "\\x0a" not in error and "faq" not in error
    assert following.startswith("saturnmq: next: ") and step in following and "traceback" not in following
