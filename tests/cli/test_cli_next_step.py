"""What an error without a hint of its own advises, by its code; commands that it names exist."""

from __future__ import annotations

import re

import pytest
from admincli import AdminCli

from saturnmq.cli.mqadmin.table import find
from saturnmq.cli.next_step import _BY_CODE, DEBUG, next_step
from saturnmq.cli.output import plain
from saturnmq.net.errors import CallTimeout, ConnectFailed
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
        (SaturnError("strange"), DEBUG),
        (OSError("strange"), DEBUG),
    ],
)
def test_next_step_fits_the_error(error: Exception, expected: str) -> None:
    assert expected in next_step(error)


def test_name_and_place_of_a_java_exception_are_cut_off() -> None:
    place = "org.apache.rocketmq.acl.plain.PlainPermissionManager.validate(PlainPermissionManager.java:663)"
    text = f"10.0.0.1:10911: org.apache.rocketmq.acl.common.AclException: No accessKey is configured, {place}"
    assert plain(text) == "10.0.0.1:10911: No accessKey is configured"
    assert plain("org.apache.rocketmq.acl.common.AclException: No, it is not") == "No, it is not"


def test_commands_that_steps_name_exist() -> None:
    named = [name for text in _BY_CODE.values() for name in re.findall(r"saturnmq admin (\w+)", text)]
    assert named and all(find(name) is not None for name in named)


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
    error, following = err.splitlines()
    assert got == code and problem in error and "\\x0a" not in error and "faq" not in error
    assert following.startswith("saturnmq: next: ") and step in following and "traceback" not in following
