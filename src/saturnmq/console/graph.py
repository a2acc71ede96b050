"""Who consumes what: topics and groups as an SVG that the server draws, from the survey; clients of the groups of a small graph.

Requirements: CON-15, UX-14, UX-15.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import quote

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from saturnmq.admin.connection import answered
from saturnmq.admin.survey import Survey
from saturnmq.admin.system_names import is_internal
from saturnmq.console.asking import within
from saturnmq.console.charts import short
from saturnmq.console.context import Page
from saturnmq.console.state import View
from saturnmq.escaping import escaped

EDGES_MAX: Final = 150
ASKED_MAX: Final = 20  # groups whose clients are asked for; a larger graph shows none
CLIENTS_MAX: Final = 5  # drawn of one group
NAME_MAX: Final = 34
_ROW, _TOP, _BOX, _WIDTH = 30, 16, 250, 1000
T = TypeVar("T")
_COLUMNS: Final = (10, 370, 730)


@dataclass(frozen=True)
class Edge:
    """A group consumes a topic."""

    cluster: str
    topic: str
    group: str
    lag: int


def edges_of(survey: Survey, search_text: str) -> list[Edge]:
    """Every topic that a group consumes and one of whose names holds the text, without the brokers' own; largest lag first."""
    text = search_text.lower()
    edges = [
        Edge(group.cluster, topic, group.name, progress.lag)
        for group in survey.groups.values()
        for topic, progress in group.topics.items()
        if not is_internal(topic) and (text in topic.lower() or text in group.name.lower())
    ]
    return sorted(edges, key=lambda edge: (-edge.lag, edge.topic, edge.group))


async def show(request: Request, page: Page, view: View) -> Response:
    """The graph of the topics and groups whose names hold the searched text."""
    search_text = request.query_params.get("q", "")[:255]
    edges = edges_of(view.survey, search_text)
    drawn = edges[:EDGES_MAX]
    groups = list(dict.fromkeys(edge.group for edge in drawn))
    clients: dict[str, list[str]] = {}
    if len(groups) <= ASKED_MAX:
        consumers = answered(await within(groups, page.services.admin.clients.consumers))
        clients = {
            name: sorted(connection.client_id for connection in each.connection_set) for name, each in consumers.items()
        }
    return page.render(
        "graph.html",
        search_text=search_text,
        drawing=draw(drawn, clients, page.gettext("Which groups consume which topics")) if drawn else "",
        more=len(edges) - len(drawn),
        age=page.services.state.age(view),
    )


def draw(edges: Sequence[Edge], clients: dict[str, list[str]], label: str) -> Markup:
    """Topics at the left, groups in the middle, clients at the right; text is escaped, links lead to the pages."""
    topics = _rows((edge.cluster, edge.topic) for edge in edges)
    groups = _rows((edge.cluster, edge.group) for edge in edges)
    ids = _rows(client for _, group in groups for client in clients.get(group, ())[:CLIENTS_MAX])
    parts = []
    for edge in edges:
        line = _line(0, topics[edge.cluster, edge.topic], groups[edge.cluster, edge.group])
        parts.append(
            f'<path class="edge{" late" if edge.lag else ""}" d="{line}"><title>{short(edge.lag)}</title></path>'
        )
    for (cluster, group), row in groups.items():
        for client in clients.get(group, ())[:CLIENTS_MAX]:
            parts.append(f'<path class="edge" d="{_line(1, row, ids[client])}"/>')
        parts.append(_box(1, row, group, f"/groups/{quote(cluster, safe='')}/{quote(group, safe='')}"))
    parts += [
        _box(0, row, topic, f"/topics/{quote(cluster, safe='')}/{quote(topic, safe='')}")
        for (cluster, topic), row in topics.items()
    ]
    parts += [_box(2, row, client, "") for client, row in ids.items()]
    height = max(len(topics), len(groups), len(ids)) * _ROW + 2 * _TOP
    return Markup(  # noqa: S704 - names are escaped in _box, all else are numbers
        f'<svg class="graph" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _rows(names: Iterable[T]) -> dict[T, int]:
    """Rows of a column by name, in the order of the names."""
    return {name: row for row, name in enumerate(dict.fromkeys(names))}


def _line(column: int, begin: int, end: int) -> str:
    begin_x, end_x = _COLUMNS[column] + _BOX, _COLUMNS[column + 1]
    middle = (begin_x + end_x) // 2
    first, last = (_TOP + row * _ROW + _ROW // 2 for row in (begin, end))
    return f"M{begin_x} {first}C{middle} {first} {middle} {last} {end_x} {last}"


def _box(column: int, row: int, name: str, path: str) -> str:
    x, y = _COLUMNS[column], _TOP + row * _ROW + 3
    shown = escaped(name)
    cut = shown if len(shown) <= NAME_MAX else shown[: NAME_MAX - 1] + "…"
    box = (
        f'<rect x="{x}" y="{y}" width="{_BOX}" height="{_ROW - 6}" rx="5"/><text x="{x + 8}" y="{y + 16}">{escape(cut)}'
        f"<title>{escape(shown)}</title></text>"
    )
    return f'<a href="{escape(path)}">{box}</a>' if path else box
