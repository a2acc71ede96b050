"""Line charts as SVG, drawn on the server: attributes only, because the Content-Security-Policy allows no inline style.

Requirements: CON-02, UX-15.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup, escape

from saturnmq.admin.brokers import is_statistic
from saturnmq.escaping import escaped

WIDTH: Final = 640
HEIGHT: Final = 160
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 20, 22
_GAP_SECONDS: Final = 4000  # a longer pause breaks the line
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MISSING: Final = "\u2013"  # in place of a number that cannot be true


def line_chart(title: str, points: Sequence[tuple[int, float]], unit: str = "") -> Markup:
    """A chart of (Unix seconds, value); empty text for fewer than two points. unit: of the values; B for bytes.

    The line has a gap where a value cannot be true.
    """
    if len(points) < 2:
        return Markup("")
    first, last = points[0][0], points[-1][0]
    most = max((value for _, value in points if is_statistic(value)), default=-1.0)
    top = max(most, 1e-9)
    across, down = (WIDTH - _LEFT - _RIGHT) / max(last - first, 1), (HEIGHT - _TOP - _BOTTOM) / top

    def place(at: int, value: float) -> str:
        return f"{_LEFT + (at - first) * across:.1f} {HEIGHT - _BOTTOM - value * down:.1f}"

    path, before = [], first - _GAP_SECONDS - 1
    for at, value in points:
        if not is_statistic(value):
            before = first - _GAP_SECONDS - 1
            continue
        path.append(("M" if at - before > _GAP_SECONDS else "L") + place(at, value))
        before = at
    base, name = HEIGHT - _BOTTOM, escape(escaped(title))
    return Markup(  # noqa: S704 - the title is escaped, all else are numbers
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}: {_shown(points[-1][1], unit)}">'
        f"<title>{name}: {_shown(points[-1][1], unit)}</title>"
        f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{WIDTH - _RIGHT}" y2="{base}"/>'
        f'<line class="grid" x1="{_LEFT}" y1="{_TOP}" x2="{WIDTH - _RIGHT}" y2="{_TOP}"/>'
        f'<text x="{_LEFT}" y="{_TOP - 6}">{_shown(most, unit)}</text>'
        f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">0</text>'
        f'<text x="{WIDTH - _RIGHT}" y="{_TOP - 6}" text-anchor="end">{_shown(points[-1][1], unit)}</text>'
        f'<text x="{_LEFT}" y="{HEIGHT - 6}">{_clock(first)}</text>'
        f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{_clock(last)} UTC</text>'
        f'<path class="line" d="{"".join(path)}"/></svg>'
    )


def short(value: float) -> str:
    """A number with three digits and a unit, such as 1.23M; a dash for one that cannot be true."""
    if not is_statistic(value):
        return _MISSING
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def many(value: float, digits: int = 0) -> str:
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
