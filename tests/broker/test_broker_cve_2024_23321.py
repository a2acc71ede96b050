"""CVE-2024-23321: users and white-listed addresses read the secret keys of all accounts by the requests for accounts.

Requirements: SEC-04, SEC-11, SEC-13.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from protected import ACCOUNTS, ADMIN, USER, protected, refused, v1, v2
from wire import Wire

from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command

LISTED = ACCOUNTS.replace("Addresses: []", "Addresses: ['*']")
CODES = [
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
    RequestCode.GET_BROKER_CONFIG,
]


def secrets_in(answer: Command) -> list[str]:
    text = f"{answer.ext}{answer.remark}{answer.body!r}"
    return [secret for _, secret in (ADMIN, USER) if secret in text]


@pytest.mark.spec("SEC-04", "SEC-11", "G12")
@pytest.mark.parametrize("sign", [None, v1(USER), v1(("stranger", "12345678"))], ids=["unsigned", "user", "stranger"])
async def test_white_listed_addresses_and_users_read_no_accounts(
    tmp_path: Path, sign: Callable[[Command], None] | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with protected(tmp_path, LISTED) as w:
        w.sign = sign
        for code in CODES:
            answer = await w.call(code)
            assert secrets_in(answer) == []
            assert refused(answer) or code == RequestCode.GET_BROKER_CONFIG
    lines = [record.getMessage() for record in caplog.records if record.name == "saturnmq.audit"]
    for code in CODES[:2]:
        assert sum(f" code={int(code)} " in line and 'result="refused: ' in line for line in lines) == 1, code


@pytest.mark.spec("SEC-04", "SEC-13")
@pytest.mark.parametrize("compat", [False, True])
async def test_administrators_read_accounts_without_secret_keys(tmp_path: Path, compat: bool) -> None:
    async with protected(tmp_path, LISTED, acl_compat=compat) as w:
        for sign in (v1(ADMIN), v2(ADMIN, w.broker._clock_ms)):
            w.sign = sign
            for code in CODES:
                answer = await w.call(code)
                assert answer.code == 0 and secrets_in(answer) == []


@pytest.mark.spec("SEC-04")
async def test_a_broker_without_access_control_has_no_accounts_to_read(wire: Wire) -> None:
    for code in CODES[:2]:
        assert (await wire.call(code)).code == 1
