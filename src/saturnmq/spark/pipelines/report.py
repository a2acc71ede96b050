"""HTML reports with charts: one self-contained file with the chart library inlined. Does not import pyspark."""

from __future__ import annotations

import html
import importlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from saturnmq.spark.local_paths import local_path
from saturnmq.spark.pipelines.lake import in_lake

Figure = Any  # plotly is untyped
ROWS_MAX: Final = 200

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1b2733; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
dl {{ display: flex; flex-wrap: wrap; gap: 1rem; }} dl div {{ border: 1px solid #d5dde5; border-radius: 6px; padding: .5rem 1rem; }}
dt {{ color: #5b6b7a; font-size: .8rem; }} dd {{ margin: 0; font-size: 1.4rem; font-variant-numeric: tabular-nums; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #e4e9ee; }}
td {{ font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }}
</style></head><body>
<h1>{title}</h1><p>Made {made} UTC.</p>
{body}
</body></html>
"""


def _styled(figure: Figure, title: str) -> Figure:
    figure.update_layout(title=title, template="plotly_white", height=360, margin={"l": 60, "r": 20, "t": 50, "b": 50})
    return figure


def bars(title: str, names: Sequence[str], series: Mapping[str, Sequence[Any]]) -> Figure:
    """Return a bar chart with one group per name."""
    graph_objects = importlib.import_module("plotly.graph_objects")

    return _styled(graph_objects.Figure([graph_objects.Bar(name=name, x=list(names), y=list(values))
                                         for name, values in series.items()]), title)  # fmt: skip


def lines(title: str, series: Mapping[str, tuple[Sequence[Any], Sequence[Any]]], unit: str = "") -> Figure:
    """Return a line chart over time: name -> (times, values)."""
    graph_objects = importlib.import_module("plotly.graph_objects")

    figure = graph_objects.Figure([graph_objects.Scatter(name=name, x=list(x), y=list(y), mode="lines+markers")
                                   for name, (x, y) in series.items()])  # fmt: skip
    figure.update_yaxes(title=unit, rangemode="tozero")
    return _styled(figure, title)


def page(
    title: str, facts: Mapping[str, Any], figures: Sequence[Figure], tables: Mapping[str, Sequence[Mapping[str, Any]]]
) -> str:
    """Return the report as HTML."""
    shown = "".join(f"<div><dt>{html.escape(name.replace('_', ' '))}</dt><dd>{html.escape(_text(value))}</dd></div>"
                    for name, value in facts.items())  # fmt: skip
    parts = [f"<dl>{shown}</dl>"]
    for number, figure in enumerate(figures):
        parts.append(figure.to_html(full_html=False, include_plotlyjs=number == 0, config={"displaylogo": False}))
    parts += [_table(name, rows) for name, rows in tables.items() if rows]
    created = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return _PAGE.format(title=html.escape(title), made=created, body="\n".join(parts))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(_text(value))}</td>" for value in row.values()) + "</tr>"
                   for row in rows[:ROWS_MAX])  # fmt: skip
    more = f"<p>{len(rows) - ROWS_MAX} more are in the table.</p>" if len(rows) > ROWS_MAX else ""
    return f"<h2>{html.escape(name)}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def write(lake: str, name: str, title: str, facts: Mapping[str, Any], figures: Sequence[Figure],
          tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> str | None:  # fmt: skip
    """Write LAKE/reports/NAME.html atomically; return its path, None for a lake that is not on a local disk."""
    if local_path(lake) is None:
        return None
    path = in_lake(lake, "reports", f"{name}.html")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(page(title, facts, figures, tables))
    beside.replace(path)
    return str(path)
