"""The line `next:` of an error that carries no hint of its own: what an operator can do, by response code.

Requirements: CLI-03, UX-05.
"""

from __future__ import annotations

import re
from typing import Final

from saturnmq.protocol.codes import RETRY_PREFIX, ResponseCode
from saturnmq.protocol.errors import ConfigError, SaturnError

DEBUG: Final = "Run it again with --debug for the traceback."
_TOPIC: Final = re.compile(r"topic ?[:\[] ?([^\s\[\],]+)")
_GROUPS: Final = "saturnmq admin consumerProgress lists the groups that have consumed."
_SLOW: Final = "The server did not answer in time: it is overloaded, hangs, or a firewall drops packets. saturnmq admin clusterList"
_REFUSED_KEY: Final = "Can not update config"
_DELAY_MAX: Final = re.compile(r"bigger than the max delay (\d{1,18})ms")
_SERVERS: Final = ("broker", "namesrv", "standalone")
_BY_CODE: Final = {
    ResponseCode.CONNECT_BROKER: "See that the server runs and listens there: saturnmq admin clusterList, saturnmq doctor",
    ResponseCode.ACCESS_BROKER_TIMEOUT: _SLOW,
    ResponseCode.NO_PERMISSION: "See which accounts and rights the broker has: saturnmq admin getAclConfig; keys: --tools-yml FILE",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: _GROUPS,
    ResponseCode.CONSUMER_NOT_ONLINE: f"The group has no member here, or never committed an offset. {_GROUPS}",
    ResponseCode.NO_NAME_SERVER: "-n HOST:PORT or the variable NAMESRV_ADDR names the NameServers of a cluster.",
    ResponseCode.REQUEST_TIMEOUT: _SLOW,
    ResponseCode.MESSAGE_ILLEGAL: "Correct it; nothing was sent.",
    ResponseCode.NO_MESSAGE: "Nothing found: it may have expired, or the id or key belongs to another topic.",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "The server's version has no such request; saturnmq admin clusterList shows versions.",
}


def next_step(error: Exception, command: str = "") -> str:
    """The next step after an error: its own hint, else one for its kind. command: the name of the one that failed."""
    if isinstance(error, ConfigError):
        keys = (
            " `saturnmq broker --print-config` lists every key with its value."
            if command in _SERVERS or not command
            else ""
        )
        return (
            error.hint
            or f"{' '.join(filter(None, ('saturnmq', command)))} --help lists the options and their values.{keys}"
        )
    if not isinstance(error, SaturnError):
        if isinstance(error, TimeoutError):
            return _SLOW
        return _BY_CODE[ResponseCode.CONNECT_BROKER] if isinstance(error, ConnectionError) else DEBUG
    if error.hint:
        return error.hint
    if (limit := _DELAY_MAX.search(error.message)) is not None:
        days = int(limit[1]) / 86_400_000
        return f"This broker delivers at most {days:g} days ahead: option --delay takes 0 to {days:g}d here."
    if "AclException" in error.message:
        return "Name the keys of an account with this right: --tools-yml FILE, or $ROCKETMQ_HOME/conf/tools.yml."
    if "from slave broker" in error.message:
        return "saturnmq admin clusterList shows the masters: #BID 0."
    if error.code == ResponseCode.TOPIC_NOT_EXIST:
        return _for_topic(error.message)
    if error.code == ResponseCode.NO_PERMISSION and error.message.startswith(_REFUSED_KEY):
        return "docs/configuration.md lists every key, and which can change at run time."
    return next((hint for code, hint in _BY_CODE.items() if code == error.code), DEBUG)


def _for_topic(message: str) -> str:
    """A topic, or the retry topic of a group, that is unknown."""
    match = _TOPIC.search(message)
    if match and match[1].startswith(RETRY_PREFIX):
        return f"No broker knows the group {match[1].removeprefix(RETRY_PREFIX)}. {_GROUPS}"
    return "saturnmq admin topicList lists the topics; saturnmq admin updateTopic creates one."
