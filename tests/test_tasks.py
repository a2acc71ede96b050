"""Background tasks report their failure."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest

from saturnmq.tasks import cancel, supervised


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


SERVERS = ("broker", "namesrv", "net", "raft", "replication", "store", "acl")
# Tasks that are awaited by their creator, or that report their failure in another way.
REPORTED_OTHERWISE = {
    "namesrv/answer_cache.py": "encodings: every caller awaits them, and the done callback retrieves the error",
    "net/metrics_port.py": "scrapes: `_connection` logs every exception, and `stop` awaits those that are open",
    "net/client.py": "a connection attempt: every caller awaits it, and its done callback retrieves the error",
    "net/endpoint.py": "requests: `Requests._finish` answers every exception; closed connections are awaited",
    "raft/peers.py": "calls to members: the done callback decodes or reports each result",
    "broker/dledger_sync.py": "copies from several members, awaited together",
    "broker/forwarding.py": "calls to the leader: the request that is forwarded awaits it",
    "broker/services/registrar.py": "questions to several NameServers, awaited together",
    "broker/state/state_writer.py": "a write: its done callback logs the failure, and the next change retries",
}


def test_every_task_of_a_server_reports_its_failure() -> None:
    source = Path(__file__).parents[1] / "src" / "saturnmq"
    bare = {
        str(path.relative_to(source))
        for folder in SERVERS
        for path in (source / folder).rglob("*.py")
        if re.search(r"\b(create_task|ensure_future)\(", path.read_text(encoding="utf-8"))
    }
    assert bare == REPORTED_OTHERWISE.keys()


@pytest.mark.loop(real=True)
async def test_cancel_waits_until_all_tasks_have_ended() -> None:
    ended = []

    async def work(name: str, error: Exception | None) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # poll
            ended.append(name)
            if error is not None:
                raise error

    tasks = [asyncio.ensure_future(work("a", None)), asyncio.ensure_future(work("b", ValueError("late")))]
    done = asyncio.ensure_future(asyncio.sleep(0, 7))
    await done
    await cancel(*tasks, None, done)
    await cancel()
    assert sorted(ended) == ["a", "b"] and done.result() == 7
