"""The members of the churn test: forks one process per line on stdin, and kills all of them at the end of stdin.

Arguments: name servers, topic, group, `ordered` or `plain`. Members report their actions on the shared stdout, one line
each: `KIND MEMBER MONOTONIC_NS [TOPIC QUEUE OFFSET]`. SIGTERM closes a member while it works; messages that it holds
are not acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
import traceback
from typing import NoReturn

import saturnmq
from saturnmq.client.message import Message

HANDLERS = 4
WORK_SECONDS_MAX = 0.008


def say(kind: str, member: int, message: Message[bytes] | None = None) -> None:
    """Write one line atomically: less than PIPE_BUF bytes."""
    place = f" {message.queue.topic} {message.queue.queue_id} {message.offset}" if message is not None else ""
    os.write(1, f"{kind} {member} {time_ns()}{place}\n".encode())


def time_ns() -> int:
    """The clock that all processes of the machine share."""
    return time.monotonic_ns()


async def spend(seconds: float) -> None:
    """Wait for the duration of work, or between two events of a load; no event ends it."""
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)


async def handle(consumer: saturnmq.Consumer[bytes], member: int, rng: random.Random) -> None:
    async for message in consumer:
        say("take", member, message)
        await spend(rng.uniform(0, WORK_SECONDS_MAX))
        say("work", member, message)
        await message.ack()
        say("done", member, message)


async def live(member: int, name_servers: str, topic: str, group: str, ordered: bool) -> None:
    """Consume until SIGTERM, then leave."""
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    os.write(1, f"born {member} {time_ns()} {os.getpid()}\n".encode())
    rng = random.Random(member)
    settings = {"persist_offsets_ms": 200, "heartbeat_ms": 2000, "rebalance_ms": 2000}
    async with saturnmq.Client(name_servers=name_servers, instance=f"member-{member}", **settings) as client:
        consumer = client.consumer(group, ordered=ordered, start="first", prefetch=64)
        await consumer.subscribe(topic)  # before joining: the other members learn the topic from the broker
        async with consumer:
            handlers = [asyncio.create_task(handle(consumer, member, rng)) for _ in range(HANDLERS)]
            await leave.wait()
            for handler in handlers:
                handler.cancel()
            await asyncio.gather(*handlers, return_exceptions=True)
    say("left", member)


def be_member(member: int, name_servers: str, topic: str, group: str, kind: str) -> NoReturn:
    """Run a forked process from start to exit."""
    code = 1
    try:
        asyncio.run(live(member, name_servers, topic, group, kind == "ordered"))
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    name_servers, topic, group, kind = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped automatically
    children = []
    for line in sys.stdin:
        member = int(line)
        child = os.fork()
        if child == 0:
            be_member(member, name_servers, topic, group, kind)
        children.append(child)
    for child in children:
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    main()
