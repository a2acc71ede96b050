"""Consumer hooks of receipts, processing and failed settlements, and hooks installed in the process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from saturnmq import (
    Ack,
    Client,
    ConsumeContext,
    ConsumeHook,
    Message,
    ResponseError,
    SendContext,
    SendHook,
    install_hooks,
    remove_hooks,
)
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.testing import EmbeddedBroker
from waiting import until


class Steps(SendHook, ConsumeHook):
    """Records what it is called for, by message bodies."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def received(self, contexts: Sequence[ConsumeContext], started: float) -> None:
        self._record("received", contexts)

    @contextmanager
    def processing(self, contexts: Sequence[ConsumeContext]) -> Iterator[None]:
        self._record("processing", contexts)
        try:
            yield
        finally:
            self._record("processed", contexts)

    def settle_failed(self, context: ConsumeContext, error: BaseException) -> None:
        self._record(f"{context.verdict} {type(error).__name__}", [context])

    def after(self, context: SendContext | ConsumeContext) -> None:
        if isinstance(context, SendContext):
            self.steps.append(f"sent by {context.shard_by}")
        else:
            self._record(f"{context.verdict}", [context])

    def _record(self, step: str, contexts: Sequence[ConsumeContext]) -> None:
        self.steps.append(f"{step} {b','.join(context.message.body for context in contexts).decode()}")


class Broken(ConsumeHook):
    """Fails whenever it is called."""

    def received(self, contexts: Sequence[ConsumeContext], started: float) -> None:
        raise ValueError("received")

    def processing(self, contexts: Sequence[ConsumeContext]) -> None:
        raise ValueError("processing")


async def test_installed_hooks_see_receipts_processing_and_settlements(caplog: pytest.LogCaptureFixture) -> None:
    hook, broken = Steps(), Broken()
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        await client.create_topic("T", queues=1)
        install_hooks(hook, broken)
        try:
            out, inbox = client.producer("p"), client.consumer("g", start="first")
        finally:
            remove_hooks(hook, broken)
        await out.start()
        for body in (b"a", b"b", b"c"):
            await out.send("T", body, shard_by=1)
        async with inbox:
            await inbox.subscribe("T")
            first = await inbox.recv(30)
            with inbox.processing(first):
                pass
            refused = {RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2}
            server.tap.answer_next(refused, ResponseCode.MESSAGE_ILLEGAL, "refused", 2)
            with pytest.raises(ResponseError):
                await first.reject()
            await first.ack()
            with inbox.processing(first):
                pass  # settled: no hook is called
            async for batch in inbox.batches(2):
                await batch.ack()
                break
    assert hook.steps == [
        *["sent by 1"] * 3,
        "received a",
        "processing a",
        "processed a",
        "Ack.REJECT MessageIllegal a",
        "Ack.SUCCESS a",
        "received b,c",
        "Ack.SUCCESS b",
        "Ack.SUCCESS c",
    ]
    assert [text for text in caplog.messages if "hook failed" in text] == [
        "consume hook failed hook=Broken stage=received",
        "consume hook failed hook=Broken stage=processing",
        "consume hook failed hook=Broken stage=received",
    ]
    assert client.producer("q")._hooks == client.consumer("h").hooks == ()


async def test_listener_reports_processing_only() -> None:
    hook = Steps()
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p") as out:
            await out.send("T", b"a")

        @client.listener("T", group="g", start="first", hooks=[hook])
        def handle(message: Message[bytes]) -> Ack:
            hook.steps.append("handled")
            return Ack.SUCCESS

        running = asyncio.create_task(client.run())
        await until(lambda: "Ack.SUCCESS a" in hook.steps)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert hook.steps == ["processing a", "handled", "processed a", "Ack.SUCCESS a"]
