"""Background tasks report their failure."""

from __future__ import annotations

import asyncio
import logging

import pytest

from saturnmq.tasks import supervised


async def fail() -> None:
    raise KeyError("topic")


def test_failed_task_is_reported_once_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[BaseException] = []

    async def run() -> None:
        task = supervised(fail(), "delayed messages", failures.append)
        await asyncio.wait([task])
        await asyncio.sleep(0)

    asyncio.run(run())
    assert [type(error) for error in failures] == [KeyError]
    (record,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert record.getMessage() == "background task failed task='delayed messages' error=KeyError('topic')"


def test_cancelled_and_completed_tasks_are_no_failures() -> None:
    failures: list[BaseException] = []

    async def run() -> int:
        endless = supervised(asyncio.Event().wait(), "endless", failures.append)
        number = supervised(asyncio.sleep(0, 7), "short", failures.append)
        result = await number
        endless.cancel()
        await asyncio.wait([endless])
        await asyncio.sleep(0)
        return result

    assert asyncio.run(run()) == 7
    assert failures == []
