"""Transactional producers, against a scripted broker and a real one."""
# ruff: noqa: SIM117 - separate nested blocks for cluster, client and the objects created from it

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import saturnmq.sync
from saturnmq import (
    Client,
    ClientError,
    Closed,
    ConfigError,
    Message,
    MessageQueue,
    ResponseError,
    SendFailed,
    TransactionRolledBack,
    TransactionState,
    json_codec,
    str_codec,
)
from saturnmq.broker import BrokerSettings
from saturnmq.client.connection import transaction_checks
from saturnmq.errors import ConnectFailed, GroupInUse
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import CheckTransactionState, EndTransaction, decode_header
from saturnmq.protocol.message import Host, decode_properties, encode_record
from saturnmq.protocol.message import Message as Record
from saturnmq.testing import EmbeddedBroker, SyncEmbeddedBroker

Run = Callable[[Callable[[], Any]], Any]
PLACE = "7F00000100002A9F" + "0000000000000140"
QUEUE = MessageQueue("T", "b0", 1)


def commit(message: Message[Any]) -> TransactionState:
    return TransactionState.COMMIT


def stored(code: int = 0) -> Callable[[Command], Command]:
    return lambda command: command.reply(code, None, {"msgId": PLACE, "queueId": command.ext["e"], "queueOffset": "5"})


async def ends(c: Any, count: int = 1) -> list[Any]:
    commands = await c.broker.wait_for(37, count)
    assert all(command.is_oneway for command in commands)
    return [decode_header(EndTransaction, command.ext) for command in commands]


@pytest.mark.spec("TX-01", "TX-02", "API-14", "PR-25")
async def test_transaction_block_commits_on_normal_exit(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", codec=str_codec(), check=commit) as out:
            c.broker.script[310] = stored()
            transaction = out.transaction("T", "order", tag="t", keys="k", properties={"a": "b"}, queue=QUEUE)
            with pytest.raises(ClientError, match="has not begun"):
                _ = transaction.receipt
            async with transaction as half:
                (sent,) = c.broker.of(310)
                assert c.broker.of(37) == []
                assert half.message_id == half.receipt.message_id and half.receipt.offset == 5
            (end,) = await ends(c)
            assert (sent.ext["f"], sent.ext["e"], sent.body) == ("4", "1", b"order")
            assert decode_properties(sent.ext["i"]) == {
                "a": "b", "KEYS": "k", "TAGS": "t", "UNIQ_KEY": half.message_id, "WAIT": "true", "TRAN_MSG": "true",
                "PGROUP": "g",
            }  # fmt: skip
            assert (end.producer_group, end.tran_state_table_offset, end.commit_log_offset) == ("g", 5, 0x140)
            assert (end.commit_or_rollback, end.from_transaction_check) == (8, False)
            assert (end.msg_id, end.transaction_id, end.broker_name) == (half.message_id, half.message_id, "b0")
            with pytest.raises(ClientError, match="begins once"):
                await transaction.__aenter__()


@pytest.mark.spec("API-14", "TX-02")
async def test_transaction_rolls_back_on_an_exception_and_reraises(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", check=commit) as out:
            c.broker.script[310] = stored()
            with pytest.raises(ZeroDivisionError):
                async with out.transaction("T", b"x"):
                    _ = 1 / 0
            async with out.transaction("T", b"x") as half:
                half.rollback()
            assert [end.commit_or_rollback for end in await ends(c, 2)] == [12, 12]
            assert "ZeroDivisionError" in (c.broker.of(37)[0].remark or "")
        with pytest.raises(Closed):
            out.transaction("T", b"x")


@pytest.mark.spec("TX-02")
async def test_exception_with_on_error_unknown_leaves_the_outcome_to_check(
    cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", check=commit) as out:
            c.broker.script[310] = stored()
            with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError):
                async with out.transaction("T", b"x", on_error=TransactionState.UNKNOWN) as half:
                    _ = 1 / 0
            assert f"transaction left open, the broker will check id={half.message_id}" in caplog.text
            assert client._core.checks._checkers["g"].open_ids == set(), "a check is answered from now on"
            async with out.transaction("T", b"x", on_error=TransactionState.UNKNOWN):
                pass
            assert [end.commit_or_rollback for end in await ends(c)] == [8], "no decision on the first one"
            with pytest.raises(ConfigError, match=r"must be TransactionState\.ROLLBACK or TransactionState\.UNKNOWN"):
                out.transaction("T", b"x", on_error=TransactionState.COMMIT)


@pytest.mark.spec("TX-02", "TX-09")
async def test_work_that_raised_after_it_was_done_is_committed_by_check() -> None:
    settings = BrokerSettings(transaction_timeout_ms=100, transaction_interval_ms=100)
    done: set[str] = set()

    def was_done(message: Message[bytes]) -> TransactionState:
        return TransactionState.COMMIT if message.message_id in done else TransactionState.ROLLBACK

    async with EmbeddedBroker(settings=settings) as server, Client.from_url(server.url) as client:
        async with client.producer("g", check=was_done) as out:
            with pytest.raises(TimeoutError):
                async with out.transaction("New", b"done", on_error=TransactionState.UNKNOWN) as half:
                    done.add(half.message_id)
                    raise TimeoutError("the database's answer was lost")
            async with client.consumer("c", start="first") as inbox:
                await inbox.subscribe("New")
                assert (await inbox.recv(timeout=20)).body == b"done"


@pytest.mark.spec("API-14")
async def test_cancelled_or_open_transaction_sends_no_decision(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", check=commit) as out:
            c.broker.script[310] = stored()
            inside = asyncio.Event()

            async def slow() -> None:
                async with out.transaction("T", b"x"):
                    inside.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(slow())
            await inside.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            async with out.transaction("T", b"x") as half:
                half.leave_open()
            async with out.transaction("T", b"x"):
                pass
            assert [end.commit_or_rollback for end in await ends(c)] == [8], "of the last one only"
            c.broker.script[310] = lambda command: None
            task = asyncio.create_task(slow())
            await c.broker.wait_for(310, 4)
            task.cancel()  # before the half message is answered
            await asyncio.gather(task, return_exceptions=True)
            assert client._core.checks._checkers["g"].open_ids == set()


@pytest.mark.spec("TX-02")
@pytest.mark.parametrize("code", [10, 11, 12])
async def test_unconfirmed_durability_rolls_back_without_running_the_block(cluster: Any, code: int) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", check=commit) as out:
            c.broker.script[310] = stored(code)
            with pytest.raises(TransactionRolledBack, match="rolled back"):
                async with out.transaction("T", b"x"):
                    pytest.fail("the block ran")
            (end,) = await ends(c)
            assert end.commit_or_rollback == 12


@pytest.mark.spec("TX-01", "TX-02", "API-14")
async def test_transaction_needs_a_stored_message_and_a_check(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", check=commit) as out, client.producer("plain") as plain:
            c.broker.script[310] = lambda command: command.reply(16, "sending transaction message is forbidden")
            with pytest.raises((SendFailed, ResponseError)):
                async with out.transaction("T", b"x", queue=QUEUE):
                    pytest.fail("the block ran")
            assert client._core.checks._checkers["g"].open_ids == set()
            with pytest.raises(ConfigError, match="check="):
                plain.transaction("T", b"x")


@pytest.mark.spec("TX-02")
async def test_undeliverable_transaction_end_is_only_logged(cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", check=commit) as out:
            c.broker.script[310] = stored()

            async def lost(address: str, command: Command, timeout_ms: int) -> None:
                raise ConnectFailed("cannot reach it", broker=address)

            with caplog.at_level(logging.WARNING):
                async with out.transaction("T", b"x"):
                    client._core.remote.call_oneway = lost  # type: ignore[method-assign]
            assert "the broker will check" in caplog.text


# transaction checks


def question(offset: int = 5, key: str = "ID", group: str = "g") -> Command:
    record = Record("T", b'"body"', f"PGROUP\x01{group}\x02UNIQ_KEY\x01{key}".encode(), 1, queue_offset=offset)
    record.born_host = record.store_host = Host("127.0.0.1", 1)
    header = CheckTransactionState(
        tran_state_table_offset=offset, commit_log_offset=77, msg_id=key, transaction_id=key, offset_msg_id=PLACE
    )
    return Command(RequestCode.CHECK_TRANSACTION_STATE, ext=header.to_ext(), body=encode_record(record))


async def ask(c: Any, command: Command) -> None:
    await c.broker.wait_for(34)
    c.broker.connections[0].invoke_oneway(command)


@pytest.mark.spec("TX-09", "API-14", "SPR-05")
@pytest.mark.parametrize("state", list(TransactionState))
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_transaction_check_is_answered_with_the_callbacks_verdict(
    cluster: Any, state: TransactionState, kind: str
) -> None:
    seen: list[tuple[Any, ...]] = []

    def plain(message: Message[Any]) -> TransactionState:
        main = threading.current_thread() is threading.main_thread()
        seen.append((message.value, message.message_id, message.queue.queue_id, main))
        return state

    async def asynchronous(message: Message[Any]) -> TransactionState:
        return plain(message)

    check: Any = plain if kind == "plain" else asynchronous
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", codec=json_codec(str), check=check) as out:
            await out.send("T", "makes the broker known")
            await ask(c, question())
            (end,) = await ends(c)
            assert (end.commit_or_rollback, end.from_transaction_check) == (state.value, True)
            assert (end.producer_group, end.tran_state_table_offset, end.commit_log_offset) == ("g", 5, 77)
            assert (end.msg_id, end.transaction_id) == ("ID", "ID")
            assert seen == [("body", "ID", 1, kind == "async")]


@pytest.mark.spec("PRC-10", "SPR-05")
async def test_plain_checks_run_in_the_given_executor(cluster: Any) -> None:
    names: set[str] = set()

    def check(message: Message[Any]) -> TransactionState:
        names.add(threading.current_thread().name)
        return TransactionState.COMMIT

    with ThreadPoolExecutor(2, thread_name_prefix="outcomes") as executor:
        async with cluster() as c, Client(name_servers=c.name_servers) as client:
            async with client.producer("g", codec=json_codec(str), check=check, check_executor=executor) as out:
                await out.send("T", "makes the broker known")
                for n in range(5):
                    await ask(c, question(n, f"ID{n}"))
                assert {end.msg_id for end in await ends(c, 5)} == {f"ID{n}" for n in range(5)}
    assert names and names <= {"outcomes_0", "outcomes_1"}
    assert transaction_checks.CHECKS_MAX == 2000


@pytest.mark.spec("TX-09", "API-14")
async def test_failing_or_invalid_check_answers_unknown(cluster: Any) -> None:
    outcomes: list[Any] = [ValueError("no database"), "COMMIT", None]

    def check(message: Message[Any]) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", check=check) as out:
            await out.send("T", b"x")
            for number in range(3):
                await ask(c, question())
                assert (await ends(c, number + 1))[-1].commit_or_rollback == 0
            assert "no database" in (c.broker.of(37)[0].remark or "")


@pytest.mark.spec("TX-09", "API-14")
async def test_check_answers_unknown_while_open_and_ignores_other_groups(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", check=commit) as out:
            c.broker.script[310] = stored()
            async with out.transaction("T", b"x") as half:
                await ask(c, question(key=half.message_id))
                (end,) = await ends(c)
                assert end.commit_or_rollback == 0
            with caplog.at_level(logging.WARNING):
                await ask(c, question(group="others"))
                await ask(c, Command(RequestCode.CHECK_TRANSACTION_STATE, ext={}, body=b"junk"))
                await ask(c, question(key="last"))
                assert (await ends(c, 3))[-1].msg_id == "last"
            assert "no such producer" in caplog.text and "not decoded" in caplog.text
            monkeypatch.setattr(transaction_checks, "CHECKS_MAX", 0)
            await ask(c, question(key="surplus"))
            async with asyncio.timeout(30):
                while " pending" not in caplog.text:
                    await asyncio.sleep(0.01)  # poll: the question is on its way
            monkeypatch.undo()
            await ask(c, question(key="one more"))
            assert (await ends(c, 4))[-1].msg_id == "one more"


async def test_stopping_a_rejected_producer_keeps_the_checks_of_its_group(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.producer("g", check=commit) as out:
            await out.send("T", b"makes the broker known")
            second = client.producer("g", check=commit)
            with pytest.raises(GroupInUse):
                await second.start()
            await second.stop()
            await client.producer("g").stop()
            await ask(c, question())
            (end,) = await ends(c)
            assert (end.commit_or_rollback, end.msg_id) == (8, "ID")
        assert client._core.checks._checkers == {}, "the running producer removes its own checker"


# against SaturnMQ's broker


@pytest.mark.spec("TX-01", "TX-09", "API-14", "SPR-05")
async def test_commit_rollback_and_check_end_to_end() -> None:
    asked: list[str] = []

    async def check(message: Message[str]) -> TransactionState:
        asked.append(message.value)
        return TransactionState.COMMIT

    settings = BrokerSettings(transaction_interval_ms=50, transaction_timeout_ms=100)
    async with EmbeddedBroker(settings=settings) as server, Client.from_url(server.url) as client:
        async with client.producer("g", codec=str_codec(), check=check) as out:
            async with out.transaction("Orders", "committed"):
                pass
            with pytest.raises(ValueError, match="no"):
                async with out.transaction("Orders", "rolled back"):
                    raise ValueError("no")
            async with out.transaction("Orders", "asked about") as half:
                half.leave_open()
            async with client.consumer("readers", codec=str_codec(), start="first") as inbox:
                await inbox.subscribe("Orders")
                got = [await inbox.recv(30) for _ in range(2)]
                assert {message.value for message in got} == {"committed", "asked about"}
                assert got[-1].properties["PGROUP"] == "g"
                for message in got:
                    await message.ack()
                with pytest.raises(TimeoutError):
                    await inbox.recv(0.3)
            assert asked == ["asked about"]
            assert server.broker.master.transactions.table.pending == {}


@pytest.mark.spec("API-31", "API-14")
def test_sync_transactions_and_requests() -> None:
    with SyncEmbeddedBroker() as server, saturnmq.sync.Client.from_url(server.url) as client:
        with client.producer("g", codec=str_codec(), check=commit) as out:
            with out.transaction("Orders", "yes") as half:
                assert half.message_id == half.receipt.message_id
            with pytest.raises(KeyError), out.transaction("Orders", "no"):
                raise KeyError
            with client.consumer("readers", codec=str_codec(), start="first") as inbox:
                inbox.subscribe("Orders")
                message = inbox.recv(30)
                assert message.value == "yes"
                message.ack()
                with pytest.raises(TimeoutError):
                    inbox.recv(0.2)
                answers: list[str] = []
                asking = threading.Thread(
                    target=lambda: answers.append(out.request("Orders", "ping", timeout=10).value)
                )
                asking.start()
                request = inbox.recv(30)
                out.reply(request, request.value + " pong")
                request.ack()
                asking.join(10)
                assert answers == ["ping pong"]
