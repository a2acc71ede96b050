"""Line charts as SVG, drawn on the server: attributes only, because the Content-Security-Policy allows no inline style.

The time axis covers a fixed range, so a point stands where its time is. Labels of values stand at the height of their values.
The points are an attribute, from which the script of the console shows the value that the pointer or the arrow keys choose.

Requirements: CON-02, UX-15.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup, escape

from saturnmq.admin.brokers import is_statistic
from saturnmq.escaping import escaped

WIDTH: Final = 640
HEIGHT: Final = 170
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 64, 72, 12, 22  # margins of the area of the line
DAY_SECONDS: Final = 86_400
RANGES: Final = {"1h": 3600, "6h": 6 * 3600, "24h": DAY_SECONDS}  # of the time axis, seconds, by name in a query
_GAP_SECONDS: Final = 4000  # a longer pause breaks the line
_TICKS: Final = 4  # parts of the time axis
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MISSING: Final = "\u2013"  # in place of a number that cannot be true


def line_chart(
    title: str, points: Sequence[tuple[int, float]], unit: str = "", span: tuple[int, int] | None = None
) -> Markup:
    """A chart of (Unix seconds, value); empty text for fewer than two points.

    unit: of the values; B for bytes. span: first and last time of the axis, by default those of the points. The line has a gap
    where a value cannot be true.
    """
    if len(points) < 2:
        return Markup("")
    first, last = span or (points[0][0], points[-1][0])
    most = max((value for _, value in points if is_statistic(value)), default=-1.0)
    top = _rounded_up(most, unit)
    across, down = (
        (WIDTH - MARGIN_LEFT - MARGIN_RIGHT) / max(last - first, 1),
        (HEIGHT - MARGIN_TOP - MARGIN_BOTTOM) / top,
    )

    def x(at: float) -> float:
        return MARGIN_LEFT + (at - first) * across

    def y(value: float) -> float:
        return HEIGHT - MARGIN_BOTTOM - value * down

    path, before = [], first - _GAP_SECONDS - 1
    for at, value in points:
        if not is_statistic(value):
            before = first - _GAP_SECONDS - 1  # so that the next point begins a line
            continue
        path.append(f"{'M' if at - before > _GAP_SECONDS else 'L'}{x(at):.1f} {y(value):.1f}")
        before = at
    right = WIDTH - MARGIN_RIGHT
    parts = []
    for value in (0.0, top / 2, top) if most >= 0 else ():
        height = f"{y(value):.1f}"
        parts.append(
            f'<line class="grid" x1="{MARGIN_LEFT}" y1="{height}" x2="{right}" y2="{height}"/>'
            f'<text class="value" x="{MARGIN_LEFT - 8}" y="{height}" dominant-baseline="middle" text-anchor="end">'
            f"{_shown(value, unit)}</text>"
        )
    for number in range(_TICKS + 1):
        at = first + (last - first) * number // _TICKS
        anchor = "start" if number == 0 else "end" if number == _TICKS else "middle"
        parts.append(
            f'<text class="tick" x="{x(at):.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}" data-time="{at * 1000}">'
            f"{_clock(at)}</text>"
        )
    end, shown = points[-1], _shown(points[-1][1], unit)
    if is_statistic(end[1]):
        parts.append(
            f'<circle class="last" cx="{x(end[0]):.1f}" cy="{y(end[1]):.1f}" r="3"/>'
            f'<text class="now" x="{x(end[0]) + 8:.1f}" y="{y(end[1]):.1f}" dominant-baseline="middle">{shown}</text>'
        )
    else:
        parts.append(f'<text class="now" x="{right + 8}" y="{HEIGHT - MARGIN_BOTTOM}">{shown}</text>')
    name = escape(escaped(title))
    values = " ".join(f"{at},{_compact(value)}" for at, value in points if is_statistic(value))
    return Markup(  # noqa: S704 - the title is escaped, all else are numbers
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{name}: {shown}"'
        f' data-unit="{escape(unit)}" data-span="{first},{last}" data-top="{_compact(top)}" data-points="{values}">'
        f'{"".join(parts)}<path class="line" d="{"".join(path)}"/></svg>'
    )


def _rounded_up(most: float, unit: str) -> float:
    """The end of the axis of values: 1, 2 or 5 times a power of ten, of two for bytes; so the middle is short, too."""
    if most <= 0:
        return 1.0
    if unit == "B":
        return float(2.0 ** math.ceil(math.log2(most)))
    power = 10.0 ** math.floor(math.log10(most))
    return next((step * power for step in (1, 2, 5) if most <= step * power), 10 * power)


def _compact(value: float) -> str:
    return f"{value:.6g}"


def short(value: float) -> str:
    """A number with three digits and a unit, such as 1.23M; a dash for one that cannot be true."""
    if not is_statistic(value):
        return _MISSING
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def with_commas(value: float, digits: int = 0) -> str:
    """A number with its thousands separated; a dash for one that cannot be true. Whole numbers may be negative: differences."""
    if not is_statistic(abs(value) if isinstance(value, int) else value):
        return _MISSING
    return f"{value:,.{digits}f}" if isinstance(value, float) or digits else f"{value:,}"


def size(count: float) -> str:
    """Bytes with a unit, such as 1.5 KiB; a dash for a number that cannot be true."""
    if not is_statistic(count):
        return _MISSING
    for unit in _BINARY[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} {_BINARY[-1]}"


def _shown(value: float, unit: str) -> str:
    if unit == "B" or not is_statistic(value):
        return size(value)
    return f"{short(value)} {unit}".rstrip()


def _clock(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M")
