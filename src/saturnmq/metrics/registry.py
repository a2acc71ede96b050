"""The metrics of one process, and their text in pieces.

Every family reads its values when it is scraped: from objects that the data path changes anyway. A scrape is a generator that
yields after STEP rows at most, so that the event loop serves others in between; the text of one scrape is never in memory as a
whole. It is not a snapshot: rows of one family may be some milliseconds older than those of the next.

Labels are bounded: constant ones, and names from tables that have limits of their own (topicsMax and others); at most ROWS_MAX rows
leave in one scrape, and `saturnmq_scrape_omitted_rows` says how many did not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from saturnmq.metrics.histogram import Histogram
from saturnmq.metrics.text import escaped, head, joined, number, template

STEP: Final = 32  # rows between two yields
ROWS_MAX: Final = 1_000_000
COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"
OMITTED: Final = "saturnmq_scrape_omitted_rows"

Row = tuple[tuple[str, ...], float]  # values of the labels, and the number
Rows = Iterable[Row | None]  # None: a step of work without a row
Chunk = list[str]  # lines


class Registry:
    """Families in the order of their registration. labels: constant labels of all families that name none themselves.

    registry = Registry()
    sends = 0
    registry.counter("shop_sends_total", "Messages sent.", lambda: sends)
    registry.text()
    """

    def __init__(self, labels: Mapping[str, str] | None = None, rows_max: int = ROWS_MAX) -> None:
        self._labels = dict(labels or {})
        self._rows_max = rows_max
        self._families: dict[str, tuple[str, Callable[[], Iterator[Chunk]]]] = {}  # by name: its first lines, its rows

    @property
    def names(self) -> list[str]:
        """Names of the families."""
        return list(self._families)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Register one value that rises and falls."""
        self.family(GAUGE, name, text, (), lambda: [((), read())])

    def counter(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Register one value that only rises, from zero at the start of the process. Its name ends with _total."""
        self.family(COUNTER, name, text, (), lambda: [((), read())])

    def family(
        self,
        kind: str,
        name: str,
        text: str,
        labels: tuple[str, ...],
        rows: Callable[[], Rows],
        constant: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        """Register a family with a row for each combination of label values. constant: replaces the registry's own.

        Raises ValueError for a name that is taken or not accepted by Prometheus.
        """
        if kind == COUNTER and not name.endswith("_total"):
            raise ValueError(f"the counter {name} must end with _total")
        template(name, labels, {})

        def chunks() -> Iterator[Chunk]:
            fixed = constant() if callable(constant) else constant  # at each scrape: a broker may change its role
            line = template(name, labels, self._labels if fixed is None else fixed)
            unescaped_line = line % (*labels, 0)  # as a line without anything to escape
            quotes, slashes = unescaped_line.count('"'), unescaped_line.count("\\")
            part: list[str] = []
            steps = 0
            for row in rows():
                steps += 1
                if row is not None:
                    values, value = row
                    shown = number(value) if type(value) is float and value - value else value  # infinite, or no number
                    row_line = line % (*values, shown)
                    # Names with quotes are rare: three counts of a line cost less than to escape each value of each row.
                    if row_line.count('"') != quotes or row_line.count("\\") != slashes or row_line.count("\n") != 1:
                        row_line = line % (*map(escaped, values), shown)
                    part.append(row_line)
                if steps >= STEP:
                    yield part
                    part, steps = [], 0
            yield part

        self._add(name, head(name, kind, text), chunks)

    def histogram(
        self, name: str, text: str, read: Histogram | Callable[[], Iterable[tuple[str, Histogram]]], label: str = ""
    ) -> None:
        """Register one histogram, or one for each value of a label."""
        labels = (label,) if label else ()

        def chunks() -> Iterator[Chunk]:
            bucket = template(f"{name}_bucket", (*labels, "le"), self._labels)
            total, count = (template(f"{name}_{part}", labels, self._labels) for part in ("sum", "count"))
            for value, histogram in [("", read)] if isinstance(read, Histogram) else read():
                key = (escaped(value),) if label else ()
                sums = list(accumulate(histogram.counts))
                ends = (*map(repr, histogram.edges), "+Inf")
                part = [bucket % (*key, edge, below) for edge, below in zip(ends, sums, strict=True)]
                yield [*part, total % (*key, repr(histogram.sum)), count % (*key, sums[-1])]

        self._add(name, head(name, HISTOGRAM, text), chunks)

    def _add(self, name: str, begin: str, chunks: Callable[[], Iterator[Chunk]]) -> None:
        if name in self._families:
            raise ValueError(f"{name} is registered already")
        self._families[name] = begin, chunks

    def pieces(self) -> Iterator[bytes]:
        """The text of one scrape; a piece after each STEP rows or steps without a row, or a histogram."""
        remaining_rows, omitted = self._rows_max, 0
        for begin, chunks in self._families.values():
            yield begin.encode()
            for rows in chunks():
                if remaining_rows < len(rows):
                    omitted += len(rows) - remaining_rows
                    del rows[remaining_rows:]
                remaining_rows -= len(rows)
                yield joined(rows)
        if omitted:
            line = template(OMITTED, (), {}) % omitted
            yield (head(OMITTED, GAUGE, "Rows that did not fit into this answer.") + line).encode()

    def text(self) -> str:
        """The whole text of one scrape, for a registry with few rows."""
        return b"".join(self.pieces()).decode()
