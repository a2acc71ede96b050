"""Charts and figures of pages: every mark stands at the place of its value, and numbers are written short."""

from __future__ import annotations

import re
from typing import Any

import pytest

from saturnmq.console.charts import HEIGHT, RANGES, WIDTH, line_chart, short, size, with_commas
from saturnmq.console.state import Badge, group_badge

START = 1_700_000_000


def attributes(chart: str, pattern: str) -> list[Any]:
    return re.findall(pattern, chart)


def test_line_goes_through_its_points_on_the_axes() -> None:
    """The area of the line reaches from x = 64 to 568 and from y = 148, for 0, to y = 12, for the end of the axis."""
    chart = line_chart("Messages", [(START, 0.0), (START + 1800, 25.0), (START + 3600, 50.0)], "/s")
    assert 'd="M64.0 148.0L316.0 80.0L568.0 12.0"' in chart
    assert attributes(chart, r'<line class="grid" x1="(.*?)" y1="(.*?)" x2="(.*?)" y2="(.*?)"') == [
        ("64", "148.0", "568", "148.0"), ("64", "80.0", "568", "80.0"), ("64", "12.0", "568", "12.0"),
    ]  # fmt: skip
    assert attributes(chart, r'<text class="value" x="(.*?)" y="(.*?)".*?>(.*?)<') == [
        ("56", "148.0", "0 /s"), ("56", "80.0", "25 /s"), ("56", "12.0", "50 /s"),
    ]  # fmt: skip
    assert attributes(chart, r'<circle class="last" cx="(.*?)" cy="(.*?)"') == [("568.0", "12.0")]
    assert attributes(chart, r'<text class="now" x="(.*?)" y="(.*?)".*?>(.*?)<') == [("576.0", "12.0", "50 /s")]
    assert f'viewBox="0 0 {WIDTH} {HEIGHT}"' in chart and 'aria-label="Messages: 50 /s"' in chart
    assert f'data-span="{START},{START + 3600}" data-top="50" ' in chart
    assert 'data-unit="/s"' in chart
    assert f'data-points="{START},0 {START + 1800},25 {START + 3600},50"' in chart


def test_time_axis_has_five_marks_over_its_span() -> None:
    chart = line_chart("t", [(START + 1800, 1.0), (START + 2700, 1.0)], span=(START, START + 3600))
    assert attributes(chart, r'class="tick" x="(.*?)" y="(.*?)" text-anchor="(.*?)" data-time="(.*?)">(.*?)<') == [
        ("64.0", "164", "start", "1700000000000", "11-14 22:13"), ("190.0", "164", "middle", "1700000900000", "11-14 22:28"),
        ("316.0", "164", "middle", "1700001800000", "11-14 22:43"), ("442.0", "164", "middle", "1700002700000", "11-14 22:58"),
        ("568.0", "164", "end", "1700003600000", "11-14 23:13"),
    ]  # fmt: skip
    assert 'd="M316.0 12.0L442.0 12.0"' in chart
    assert RANGES == {"1h": 3600, "6h": 21_600, "24h": 86_400}


@pytest.mark.parametrize(("pause", "mark"), [(4000, "L"), (4001, "M")])
def test_line_is_broken_by_a_longer_pause(pause: int, mark: str) -> None:
    chart = line_chart("t", [(START, 1.0), (START + pause, 1.0)])
    assert f'd="M64.0 12.0{mark}568.0 12.0"' in chart


def test_value_that_cannot_be_true_leaves_a_gap() -> None:
    chart = line_chart("t", [(START, 1.0), (START + 10, float("nan")), (START + 20, 1.0), (START + 30, -5.0)])
    assert 'd="M64.0 12.0M400.0 12.0"' in chart and f'data-points="{START},1 {START + 20},1"' in chart
    assert attributes(chart, r'<text class="now" x="(.*?)" y="(.*?)">(.*?)<') == [("576", "148", "–")]
    assert "circle" not in chart
    nothing = line_chart("t", [(START, -1.0), (START + 10, -1.0)])
    assert "grid" not in nothing and 'd=""' in nothing


def test_fewer_than_two_points_are_no_chart() -> None:
    assert line_chart("t", []) == line_chart("t", [(START, 1.0)]) == ""
    assert 'd="M64.0 12.0L64.0 12.0"' in line_chart("t", [(START, 1.0), (START, 1.0)]), "at the same time"


@pytest.mark.parametrize(
    ("most", "unit", "top"),
    [
        (0.0, "", "1"), (0.03, "", "0.05"), (1.0, "", "1"), (1.1, "", "2"), (2.0, "", "2"), (2.1, "", "5"), (5.0, "", "5"),
        (5.1, "", "10"), (99.0, "", "100"), (101.0, "", "200"), (3.0, "B", "4"), (4.0, "B", "4"), (1025.0, "B", "2048"),
    ],
)  # fmt: skip
def test_axis_ends_at_a_short_number(most: float, unit: str, top: str) -> None:
    assert f'data-top="{top}"' in line_chart("t", [(START, 0.0), (START + 1, most)], unit)


def test_values_of_bytes_have_binary_units() -> None:
    chart = line_chart("t", [(START, 0.0), (START + 1, 3072.0)], "B")
    assert attributes(chart, r'<text class="value".*?>(.*?)<') == ["0 B", "2 KiB", "4 KiB"]
    assert attributes(chart, r'<text class="now".*?>(.*?)<') == ["3 KiB"]


def test_title_is_escaped() -> None:
    chart = line_chart('<b>"x"\u202e', [(START, 1.0), (START + 1, 1.0)])
    assert "<b>" not in chart and "\u202e" not in chart


@pytest.mark.parametrize(
    ("value", "shortened", "bytes_of"),
    [
        (0, "0", "0 B"), (7, "7", "7 B"), (999, "999", "999 B"), (1000, "1k", "1000 B"), (1023, "1.02k", "1023 B"),
        (1024, "1.02k", "1 KiB"), (1536, "1.54k", "1.5 KiB"), (999_999, "1e+03k", "977 KiB"), (10**6, "1M", "977 KiB"),
        (1_234_567, "1.23M", "1.18 MiB"), (10**9, "1G", "954 MiB"), (2**30, "1.07G", "1 GiB"), (2**40, "1.1e+03G", "1 TiB"),
        (2**50, "1.13e+06G", "1 PiB"), (-1, "–", "–"), (float("inf"), "–", "–"),
    ],
)  # fmt: skip
def test_numbers_are_short(value: float, shortened: str, bytes_of: str) -> None:
    assert (short(value), size(value)) == (shortened, bytes_of)


def test_thousands_are_separated() -> None:
    assert (with_commas(0), with_commas(1234), with_commas(-1234), with_commas(1_234_567)) == (
        "0",
        "1,234",
        "-1,234",
        "1,234,567",
    )
    assert (with_commas(1234.5), with_commas(1234.56, 1), with_commas(12, 2)) == ("1,234", "1,234.6", "12.00")
    assert (with_commas(float("nan")), with_commas(-1.5)) == ("–", "–")


@pytest.mark.parametrize(
    ("lag", "clients", "rate", "kind", "text"),
    [
        (0, None, None, "idle", "not known"),
        (5, None, 0.0, "idle", "not known"),
        (0, 0, None, "idle", "no client"),
        (1, 0, None, "bad", "stopped: no client"),
        (1, 1, 0.0, "warn", "stuck: nothing consumed"),
        (1, 1, None, "ok", "consuming"),
        (1, 1, 0.5, "ok", "consuming"),
        (0, 1, 0.0, "ok", "up to date"),
        (0, 2, 9.0, "ok", "up to date"),
    ],
)
def test_badge_of_a_group(lag: int, clients: int | None, rate: float | None, kind: str, text: str) -> None:
    assert group_badge(lag, clients, rate) == Badge(kind, text)
