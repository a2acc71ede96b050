"""Line charts as SVG, drawn on the server: attributes only, because the Content-Security-Policy allows no inline style.

Requirements: CON-02, UX-15.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup, escape

WIDTH: Final = 640
HEIGHT: Final = 160
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 10, 22
_GAP_SECONDS: Final = 4000  # a longer pause breaks the line


def line_chart(title: str, points: Sequence[tuple[int, float]]) -> Markup:
    """A chart of (Unix seconds, value); empty text for fewer than two points."""
    if len(points) < 2:
        return Markup("")
    first, last = points[0][0], points[-1][0]
    top = max(max(value for _, value in points), 1e-9)
    across, down = (WIDTH - _LEFT - _RIGHT) / max(last - first, 1), (HEIGHT - _TOP - _BOTTOM) / top

    def place(at: int, value: float) -> str:
        return f"{_LEFT + (at - first) * across:.1f} {HEIGHT - _BOTTOM - value * down:.1f}"

    path, before = [], first - _GAP_SECONDS - 1
    for at, value in points:
        path.append(("M" if at - before > _GAP_SECONDS else "L") + place(at, value))
        before = at
    base = HEIGHT - _BOTTOM
    return Markup(  # noqa: S704 - the title is escaped, all else are numbers
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}: {short(points[-1][1])}</title>"
        f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{WIDTH - _RIGHT}" y2="{base}"/>'
        f'<line class="grid" x1="{_LEFT}" y1="{_TOP}" x2="{WIDTH - _RIGHT}" y2="{_TOP}"/>'
        f'<text x="{_LEFT - 6}" y="{_TOP + 4}" text-anchor="end">{short(top)}</text>'
        f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">0</text>'
        f'<text x="{_LEFT}" y="{HEIGHT - 6}">{_clock(first)}</text>'
        f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{_clock(last)} UTC</text>'
        f'<path class="line" d="{"".join(path)}"/></svg>'
    )


def short(value: float) -> str:
    """A number with three digits and a unit, such as 1.23M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def _clock(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M")
