"""The pages that show: overview, brokers, topics, groups, audit log.

Lists come from the latest survey; a page about one thing asks the brokers concerned, each within two seconds.

Requirements: CON-02, CON-04, CON-05, CON-06, UX-14.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from saturnmq.admin.survey import GroupState
from saturnmq.console.context import Handler, Page, Rows, paged
from saturnmq.console.state import View, is_system
from saturnmq.history import Point, Series
from saturnmq.protocol.bodies import ConsumerConnection, MessageQueue, OffsetWrapper
from saturnmq.protocol.errors import SaturnError

DAY_SECONDS: Final = 86_400
CHART_POINTS_MAX: Final = 300
QUEUES_SHOWN_MAX: Final = 1000
AUDIT_BYTES_MAX: Final = 100_000
Key = tuple[str, str]


async def overview(request: Request, page: Page, view: View) -> Response:
    """Totals, problems, and the rates of the last day."""
    survey = view.survey
    brokers = [
        Series("broker", one.cluster, broker=f"{one.name}:{one.number}") for one in survey.brokers if one.number == 0
    ]
    charts = [(series.broker, await _rates(page, series)) for series in brokers[:20]]
    groups = sorted(survey.groups.values(), key=lambda one: one.lag, reverse=True)[:10]
    own = [one for one in survey.topics.values() if not is_system(one)]
    own.sort(key=lambda one: (-view.in_rates.get((one.cluster, one.name), 0.0), -one.total, one.name))
    return page.render(
        "overview.html",
        view=view,
        age=page.services.state.age(view),
        in_rate=sum(view.in_rates.get((one.cluster, one.name), 0.0) for one in own),
        out_rate=sum(view.out_rates.values()),
        lag=sum(one.lag for one in survey.groups.values()),
        groups=groups,
        topics=own[:10],
        topic_count=len(own),
        charts=charts,
        problem=page.services.state.problem,
        alarms=list(page.services.alarms.active.values())[:20],
    )


async def brokers(request: Request, page: Page, view: View) -> Response:
    """All brokers with version, rates and disk."""
    return page.render("brokers.html", view=view, age=page.services.state.age(view))


async def broker(request: Request, page: Page, view: View) -> Response:
    """Runtime values of one broker."""
    address = request.path_params["address"]
    found = next((one for one in view.survey.brokers if one.address == address), None)
    if found is None:
        return missing(page, "broker", address)
    chart = await _rates(page, Series("broker", found.cluster, broker=f"{found.name}:{found.number}"))
    return page.render("broker.html", broker=found, chart_points=chart, age=page.services.state.age(view))


async def topics(request: Request, page: Page, view: View) -> Response:
    """A page of the topics whose name holds the searched text, highest rate first."""
    wanted, system = request.query_params.get("q", "").lower(), request.query_params.get("system") == "1"
    found = [
        one for one in view.survey.topics.values() if wanted in one.name.lower() and (system or not is_system(one))
    ]
    found.sort(key=lambda one: (-view.in_rates.get((one.cluster, one.name), 0.0), one.name))
    return _list(page, "topics.html", paged(found, request.query_params.get("page")), view, wanted, system=system)


async def topic(request: Request, page: Page, view: View) -> Response:
    """One topic: configuration, queues, groups that consume it, history."""
    key = (request.path_params["cluster"], request.path_params["name"])
    found = view.survey.topics.get(key)
    if found is None:
        return missing(page, "topic", key[1])
    consumers = [one for one in view.survey.groups.values() if one.cluster == key[0] and key[1] in one.topics]
    statistics = await page.services.admin.topics.statistics(found.name)
    return page.render(
        "topic.html",
        topic=found,
        consumers=sorted(consumers, key=lambda one: -one.topics[key[1]].lag)[:200],
        queues=list(statistics.offsets.items())[:QUEUES_SHOWN_MAX],
        failures=statistics.failures,
        in_rate=view.in_rates.get(key),
        chart_points=await _rates(page, Series("topic", found.cluster, topic=found.name)),
        age=page.services.state.age(view),
    )


async def groups(request: Request, page: Page, view: View) -> Response:
    """A page of the groups whose name holds the searched text, largest lag first."""
    wanted = request.query_params.get("q", "").lower()
    found = [one for one in view.survey.groups.values() if wanted in one.name.lower()]
    found.sort(key=lambda one: (-one.lag, one.name))
    return _list(page, "groups.html", paged(found, request.query_params.get("page")), view, wanted)


async def group(request: Request, page: Page, view: View) -> Response:
    """One group: progress by topic and queue, clients, history of its lag."""
    key = (request.path_params["cluster"], request.path_params["name"])
    found = view.survey.groups.get(key)
    if found is None:
        return missing(page, "group", key[1])
    progress, clients = await asyncio.gather(_progress(page, found), _clients(page, found.name))
    names = sorted(found.topics)[:20]
    charts = [(name, await _lags(page, Series("group", key[0], topic=name, group=key[1]))) for name in names]
    return page.render(
        "group.html",
        group=found,
        queues=progress,
        clients=clients,
        charts=charts,
        out_rate=view.out_rates.get(key),
        age=page.services.state.age(view),
    )


async def audit_log(request: Request, page: Page) -> Response:
    """The last changes, newest first."""
    path = page.services.audit_file
    lines = await asyncio.to_thread(_last_lines, path) if path is not None else []
    return page.render("audit.html", lines=[dict(_pairs(line)) for line in reversed(lines)])


# ---- parts


def of_state(show: Callable[[Request, Page, View], Awaitable[Response]]) -> Handler:
    """The handler of a page that shows the latest survey; until there is one, it says so."""

    async def handler(request: Request, page: Page) -> Response:
        view = await page.services.state.view()
        return collecting(page) if view is None else await show(request, page, view)

    return handler


def collecting(page: Page) -> Response:
    """What is shown until the first survey is there."""
    problem = page.services.state.problem
    text = page.text("server", reason=problem) if problem else page.text("collecting")
    return page.render("message.html", 503 if problem else 200, message=text)


def missing(page: Page, what: str, name: str) -> Response:
    """The page for a thing that is not there."""
    return page.render("message.html", 404, message=page.text("not_found", what=page.text(what), name=name))


def _list(page: Page, template: str, rows: Rows, view: View, wanted: str, *, system: bool = False) -> Response:
    return page.render(template, rows=rows, view=view, wanted=wanted, age=page.services.state.age(view), system=system)


async def _progress(page: Page, group: GroupState) -> list[tuple[MessageQueue, OffsetWrapper]]:
    """Offsets by queue, largest lag first; empty if no broker has any."""
    try:
        stats = await page.services.admin.groups.progress(group.name)
    except SaturnError:
        return []
    rows = list(stats.offset_table.items())
    rows.sort(key=lambda row: (row[1].consumer_offset - row[1].broker_offset, row[0].topic, row[0].queue_id))
    return rows[:QUEUES_SHOWN_MAX]


async def _clients(page: Page, name: str) -> ConsumerConnection | None:
    try:
        return await page.services.admin.clients.consumers(name)
    except SaturnError:
        return None


async def _points(page: Page, series: Series) -> Sequence[Point]:
    history = page.services.history
    if history is None:
        return []
    points = await asyncio.to_thread(history.read, series, int(time.time()) - DAY_SECONDS)
    step = len(points) // CHART_POINTS_MAX + 1
    return points[::-1][::step][::-1]


async def _rates(page: Page, series: Series) -> list[tuple[int, float]]:
    points = await _points(page, series)
    return [
        (after.at, max(after.total - before.total, 0) / (after.at - before.at)) for before, after in pairwise(points)
    ]


async def _lags(page: Page, series: Series) -> list[tuple[int, float]]:
    return [(point.at, point.peak) for point in await _points(page, series)]


def _last_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            begin = max(file.tell() - AUDIT_BYTES_MAX, 0)
            file.seek(begin)
            if begin:
                file.readline()  # the rest of a line, which may look like one
            text = file.read(AUDIT_BYTES_MAX).decode(errors="replace")
    except FileNotFoundError:
        return []
    return text.splitlines()[-200:]


def _pairs(line: str) -> list[tuple[str, str]]:
    import shlex

    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    return [(name, value) for name, equals, value in (word.partition("=") for word in words) if equals]
