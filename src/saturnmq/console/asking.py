"""Asks brokers for a page, which must not wait for one that hangs: all at once, within a deadline for all together.

Requirements: UX-14.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from saturnmq.admin.consumption import consumer_connection, merged_clients
from saturnmq.admin.listings import group_offsets
from saturnmq.admin.survey import GroupState
from saturnmq.console.context import Page
from saturnmq.console.state import View
from saturnmq.errors import CallTimeout
from saturnmq.protocol.bodies import ConsumerConnection, ConsumeStats
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.tasks import cancel

PAGE_SECONDS: Final = 0.7
AT_ONCE: Final = 32
R = TypeVar("R")


async def within(
    names: Iterable[str], ask: Callable[[str], Awaitable[R]], seconds: float = PAGE_SECONDS
) -> dict[str, R | SaturnError]:
    """Ask for all names, and wait for all together no longer than `seconds`; the answer or the error by name."""
    permits = asyncio.Semaphore(AT_ONCE)

    async def answer_of(name: str) -> R | SaturnError:
        async with permits:
            try:
                return await ask(name)
            except SaturnError as error:
                return error

    tasks = {name: asyncio.ensure_future(answer_of(name)) for name in dict.fromkeys(names)}
    if not tasks:
        return {}
    await asyncio.wait(tasks.values(), timeout=seconds)
    late = CallTimeout(f"no response within {seconds:g} s")
    answers = {name: task.result() if task.done() else late for name, task in tasks.items()}
    await cancel(*(task for task in tasks.values() if not task.done()))  # none goes on when the page is sent
    return answers


def masters_of(view: View, cluster: str, names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Addresses of the masters with these broker names that answered the survey, and the problems of the others."""
    broker_names = set(names)
    masters = [master for master in view.masters if master.cluster == cluster and master.name in broker_names]
    return [master.address for master in masters if not master.problem], {
        master.address: master.problem for master in masters if master.problem
    }


async def progress_of(page: Page, view: View, group: GroupState) -> tuple[ConsumeStats, dict[str, str]]:
    """Offsets of a group by queue, and the problems of its brokers by address."""
    addresses, problems = masters_of(view, group.cluster, group.configs)
    connection = page.services.admin.connection
    tables = await within(addresses, lambda address: group_offsets(connection, address, group.name))
    merged = ConsumeStats()
    for address, table in tables.items():
        if isinstance(table, SaturnError):
            problems[address] = table.message
        else:
            merged.offset_table.update(table.offset_table)
            merged.consume_tps += table.consume_tps
    return merged, problems


async def clients_of(
    page: Page, view: View, groups: Iterable[GroupState]
) -> tuple[dict[tuple[str, str], ConsumerConnection], dict[str, str]]:
    """Clients and subscriptions of groups that have any, by cluster and name, and the problems of brokers by address."""
    lookups = {
        f"{number} {address}": (group, address)  # by number: two clusters may have groups of one name
        for number, group in enumerate(groups)
        for address in masters_of(view, group.cluster, group.configs)[0]
    }
    connection = page.services.admin.connection

    async def ask(lookup: str) -> ConsumerConnection:
        group, address = lookups[lookup]
        return await consumer_connection(connection, group.name, [address])

    answers: dict[tuple[str, str], list[ConsumerConnection]] = {}
    problems: dict[str, str] = {}
    for lookup, consumers in (await within(lookups, ask)).items():
        group, address = lookups[lookup]
        if not isinstance(consumers, SaturnError):
            answers.setdefault((group.cluster, group.name), []).append(consumers)
        elif consumers.code != ResponseCode.CONSUMER_NOT_ONLINE:
            problems[address] = consumers.message
    return {key: merged_clients(connections) for key, connections in answers.items()}, problems
