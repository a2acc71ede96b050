"""The pages that show: overview, brokers, topics, audit log.

Lists come from the latest survey; a page about one thing asks the brokers concerned, all within 0.7 s.

Requirements: CON-02, CON-04, CON-05, UX-14.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from saturnmq.admin.connection import MASTER_ID, answered, failed
from saturnmq.admin.consumption import queue_order
from saturnmq.admin.listings import topic_offsets
from saturnmq.admin.survey import TopicState
from saturnmq.admin.system_names import is_system, is_system_group
from saturnmq.console.asking import clients_of, masters_of, within
from saturnmq.console.context import Handler, Page, paged
from saturnmq.console.state import View, badge_of
from saturnmq.console.texts import N_
from saturnmq.history import Point, Series
from saturnmq.protocol.codes import DLQ_PREFIX, RETRY_PREFIX

CHART_POINTS_MAX: Final = 300
QUEUES_SHOWN_MAX: Final = 1000
AUDIT_BYTES_MAX: Final = 1_000_000
AUDIT_LINES_MAX: Final = 5000
SHOWN_MAX: Final = 10  # topics and groups on the overview
CHARTED_MAX: Final = 20  # brokers with charts on the overview
POOLS: Final = ("send", "pull", "query")  # thread pools of a broker, as its runtime values name them
TOPIC_KINDS: Final = ("normal", "retry", "dead", "system", "all")


@dataclass(frozen=True)
class Chart:
    """A line chart: (Unix seconds, value)."""

    name: str
    points: list[tuple[int, float]]
    unit: str


async def overview(request: Request, page: Page, view: View) -> Response:
    """Totals, problems, and charts: rates, lag, disks, replication, alarms."""
    survey = view.survey
    groups = sorted(
        (group for group in survey.groups.values() if not is_system_group(group.name)),
        key=lambda group: (-group.lag, group.name),
    )
    user_topics = [topic for topic in survey.topics.values() if not is_system(topic)]
    user_topics.sort(key=lambda topic: (-view.in_rates.get((topic.cluster, topic.name), 0.0), -topic.total, topic.name))
    connected, silent = await clients_of(page, view, groups[:SHOWN_MAX])
    badges = {(group.cluster, group.name): badge_of(view, group, connected, silent) for group in groups[:SHOWN_MAX]}
    return page.render(
        "overview.html",
        view=view,
        age=page.services.state.age(view),
        in_rate=sum(view.in_rates.get((topic.cluster, topic.name), 0.0) for topic in user_topics),
        out_rate=sum(view.out_rates.get((group.cluster, group.name), 0.0) for group in groups),
        lag=sum(group.lag for group in groups),
        dead=sum(topic.kept for topic in survey.topics.values() if topic.name.startswith(DLQ_PREFIX)),
        groups=groups[:SHOWN_MAX],
        group_count=len(groups),
        badges=badges,
        stopped=[group for group in groups[:SHOWN_MAX] if badges[group.cluster, group.name].kind in ("bad", "warn")],
        topics=user_topics[:SHOWN_MAX],
        topic_count=len(user_topics),
        charts=await asyncio.to_thread(overview_charts, page, view),
        problem=page.services.state.problem,
        alarms=page.services.alarms.listed()[:20],
    )


def overview_charts(page: Page, view: View) -> list[tuple[str, list[Chart]]]:
    """Charts by heading; those without values are left out. Blocks."""
    brokers = view.survey.brokers[:CHARTED_MAX]
    clusters = list(dict.fromkeys(broker.cluster for broker in brokers))
    members = [(broker, f"{broker.name}:{broker.number}") for broker in brokers]
    every = [(name, Series("broker", broker.cluster, broker=name)) for broker, name in members]
    slaves = [
        (name, Series("replica", broker.cluster, broker=name)) for broker, name in members if broker.number != MASTER_ID
    ]
    sent = [(name, Series("incoming", name)) for name in clusters]
    totals = [(name, Series("cluster", name)) for name in clusters]
    charts_by_heading = [
        (N_("In, msg/s"), [Chart(name, rates_of(page, series), "/s") for name, series in sent]),
        (N_("Out, msg/s"), [Chart(name, rates_of(page, series), "/s") for name, series in totals]),
        (N_("Lag"), [Chart(name, levels_of(page, series), "") for name, series in totals]),
        (N_("Disk used"), [Chart(name, levels_of(page, series, 100.0), "%") for name, series in every]),
        (N_("Slaves behind"), [Chart(name, levels_of(page, series), "B") for name, series in slaves]),
        (N_("Alarms"), [Chart(page.gettext("Alarms"), levels_of(page, Series("alarms", "")), "")]),
    ]
    drawable = [(key, [chart for chart in charts if len(chart.points) > 1]) for key, charts in charts_by_heading]
    return [(key, charts) for key, charts in drawable if charts]


async def brokers(request: Request, page: Page, view: View) -> Response:
    """All brokers with version, rates and disk."""
    return page.render("brokers.html", view=view, age=page.services.state.age(view))


async def broker(request: Request, page: Page, view: View) -> Response:
    """Runtime values of one broker."""
    address = request.path_params["address"]
    broker_state = next((candidate for candidate in view.survey.brokers if candidate.address == address), None)
    if broker_state is None:
        return missing(page, "broker", address)
    series = Series("broker", broker_state.cluster, broker=f"{broker_state.name}:{broker_state.number}")
    rates = await asyncio.to_thread(rates_of, page, series)
    disk = await asyncio.to_thread(levels_of, page, series, 100.0)
    return page.render(
        "broker.html", broker=broker_state, rates=rates, disk=disk, pools=POOLS, age=page.services.state.age(view)
    )


async def topics(request: Request, page: Page, view: View) -> Response:
    """A page of the topics of a kind whose name holds the searched text."""
    query = request.query_params
    search_text, kind, order = query.get("q", "").lower(), query.get("kind", ""), query.get("sort", "")
    kind = kind if kind in TOPIC_KINDS else "normal"
    matches = [(kind_of(topic), topic) for topic in view.survey.topics.values() if search_text in topic.name.lower()]
    counts = Counter(each for each, _ in matches) | {"all": len(matches)}
    chosen_topics = [topic for each, topic in matches if kind in ("all", each)]
    orders: dict[str, Callable[[TopicState], Any]] = {
        "rate": lambda topic: (-view.in_rates.get((topic.cluster, topic.name), 0.0), topic.name),
        "name": lambda topic: (topic.name, topic.cluster),
        "kept": lambda topic: (-topic.kept, topic.name),
        "total": lambda topic: (-topic.total, topic.name),
    }
    order = order if order in orders else "rate"
    chosen_topics.sort(key=orders[order])
    return page.render(
        "topics.html",
        rows=paged(chosen_topics, query.get("page")),
        view=view,
        search_text=search_text,
        kind=kind,
        kinds={topic_kind: counts.get(topic_kind, 0) for topic_kind in TOPIC_KINDS},
        order=order,
        age=page.services.state.age(view),
    )


def kind_of(topic: TopicState) -> str:
    """normal, retry, dead or system."""
    if topic.name.startswith(RETRY_PREFIX):
        return "retry"
    if topic.name.startswith(DLQ_PREFIX):
        return "dead"
    return "system" if is_system(topic) else "normal"


async def topic(request: Request, page: Page, view: View) -> Response:
    """One topic: configuration, queues, groups that consume it, history."""
    key = (request.path_params["cluster"], request.path_params["name"])
    topic_state = view.survey.topics.get(key)
    if topic_state is None:
        return missing(page, "topic", key[1])
    consumers = [group for group in view.survey.groups.values() if group.cluster == key[0] and key[1] in group.topics]
    addresses, problems = masters_of(view, key[0], topic_state.configs)
    connection = page.services.admin.connection
    tables = await within(addresses, lambda address: topic_offsets(connection, address, topic_state.name))
    queues = {queue: offsets for table in answered(tables).values() for queue, offsets in table.offset_table.items()}
    shown = sorted(queues, key=queue_order)[:QUEUES_SHOWN_MAX]
    series = Series("topic", topic_state.cluster, topic=topic_state.name)
    names = {master.name: master.address for master in view.masters if master.cluster == key[0]}
    return page.render(
        "topic.html",
        topic=topic_state,
        consumers=sorted(consumers, key=lambda group: -group.topics[key[1]].lag)[:200],
        queues=[(queue, queues[queue]) for queue in shown],
        queue_count=len(queues),
        problems=problems | {address: error.message for address, error in failed(tables).items()},
        addresses=names,
        members={"": page.gettext("all brokers")}
        | {names[name]: name for name in sorted(topic_state.configs) if name in names},
        in_rate=view.in_rates.get(key),
        rates=await asyncio.to_thread(rates_of, page, series),
        age=page.services.state.age(view),
    )


async def audit_log(request: Request, page: Page) -> Response:
    """The last changes whose line holds the searched text, newest first."""
    path, search_text = page.services.audit_file, request.query_params.get("q", "")
    lines = await asyncio.to_thread(_last_lines, path) if path is not None else []
    matches = [line for line in reversed(lines) if search_text.lower() in line.lower()]
    rows = paged(matches, request.query_params.get("page"))
    return page.render(
        "audit.html", rows=rows, lines=[dict(_pairs(line)) for line in rows.items], search_text=search_text
    )


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
    text = (
        page.gettext("Cluster state cannot be read: {reason}", reason=problem)
        if problem
        else page.gettext("The state of the cluster is being collected.")
    )
    return page.render("message.html", 503 if problem else 200, message=text)


def missing(page: Page, kind: str, name: str) -> Response:
    """The page for a thing that is not there."""
    return page.render(
        "message.html",
        404,
        heading=page.gettext("Page not found"),
        message=page.gettext("There is no {what} {name}.", what=page.gettext(kind), name=name),
    )


def _points(page: Page, series: Series) -> Sequence[Point]:
    history = page.services.history
    if history is None:
        return []
    points = history.read(series, page.span[0])
    step = len(points) // CHART_POINTS_MAX + 1
    return points[::-1][::step][::-1]


def rates_of(page: Page, series: Series) -> list[tuple[int, float]]:
    """Rates in the range of the charts. Blocks."""
    return [
        (after.at, max(after.total - before.total, 0) / (after.at - before.at))
        for before, after in pairwise(_points(page, series))
    ]


def levels_of(page: Page, series: Series, factor: float = 1.0) -> list[tuple[int, float]]:
    """Peaks in the range of the charts. Blocks."""
    return [(point.at, point.peak * factor) for point in _points(page, series)]


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
    return text.splitlines()[-AUDIT_LINES_MAX:]


def _pairs(line: str) -> list[tuple[str, str]]:
    import shlex

    try:
        fields = shlex.split(line)
    except ValueError:
        fields = line.split()
    return [(name, value) for name, equals, value in (field.partition("=") for field in fields) if equals]
