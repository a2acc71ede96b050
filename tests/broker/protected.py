"""Fixture: a broker with access control, and connections that sign as its accounts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from wire import Clock, Wire, wire

from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.signatures import sign_v1, sign_v2

PREFIX = "org.apache.rocketmq.acl.common.AclException: "
ADMIN = ("rocketmq2", "12345678")
USER = ("RocketMQ", "87654321")
ACCOUNTS = """
globalWhiteRemoteAddresses: []
accounts:
  - accessKey: RocketMQ
    secretKey: 87654321
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - Both=PUB|SUB
      - Read=SUB
      - Write=PUB
      - Never=DENY
    groupPerms:
      - closed=DENY
  - accessKey: rocketmq2
    secretKey: 12345678
    admin: true
  - accessKey: limitedAdmin
    secretKey: 12345678
    admin: true
    topicPerms:
      - Both=PUB
"""


def write_accounts(home: Path, text: str = ACCOUNTS, name: str = "conf/plain_acl.yml", mode: int = 0o600) -> Path:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def v1(account: tuple[str, str]) -> Callable[[Command], None]:
    return lambda command: sign_v1(command, account[0], account[1].encode())


def v2(account: tuple[str, str], clock_ms: Callable[[], int]) -> Callable[[Command], None]:
    numbers = count()
    return lambda command: sign_v2(
        command, account[0], account[1].encode(), time_ms=clock_ms(), nonce=f"n{next(numbers)}"
    )


@asynccontextmanager
async def protected(
    home: Path, text: str = ACCOUNTS, *, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[Wire]:
    """A broker with aclEnable=true; requests are signed as ADMIN until `sign` is replaced."""
    write_accounts(home, text)
    more: dict[str, Any] = {"clock_ms": clock} if clock is not None else {}
    async with wire(data=home / "store", acl_enable=True, acl_home=str(home), **more, **settings) as w:
        w.sign = v1(ADMIN)
        yield w


def refused(answer: Command) -> str:
    """The text of a refusal by access control; "" if the request was not refused."""
    remark = answer.remark or ""
    if answer.code != 1 or not remark.startswith(PREFIX):
        return ""
    return remark.removeprefix(PREFIX).rpartition(", ")[0]


async def topics(w: Wire, *names: str) -> None:
    """Create topics as the administrator."""
    before, w.sign = w.sign, v1(ADMIN)
    for name in names:
        answer = await w.call(
            RequestCode.UPDATE_AND_CREATE_TOPIC, topic=name, defaultTopic="TBW102", readQueueNums=4, writeQueueNums=4,
            perm=6, topicFilterType="SINGLE_TAG",
        )  # fmt: skip
        assert answer.code == 0, answer.remark
    w.sign = before
