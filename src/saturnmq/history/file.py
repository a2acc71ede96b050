"""The history file: series of samples in SQLite, thinned with age.

A sample has a cumulative count, a level, and the highest level since the sample before: messages ever and messages kept of a topic,
consumed messages and lag of a group, puts and disk use of a broker. Because counts are cumulative, thinning drops samples and loses
no message; a rate is the difference of two counts.

Requirements: EXP-05.
"""

# Schema, version 1 (PRAGMA user_version)
#   series   one row per thing measured; texts that do not apply are empty
#   samples  (series, at): at is Unix seconds, a multiple of 60
#     total  cumulative count, messages; since when depends on the thing (offsets: the first message, brokers: since their start)
#     level  at that moment; peak: the highest level since the sample before
#   thinned  how far the samples of each of LEVELS have been thinned, Unix seconds
from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from saturnmq.admin.survey import encodable
from saturnmq.protocol.errors import ConfigError, StoreError

Kind = Literal["broker", "topic", "group", "cluster", "incoming", "replica", "alarms"]
VERSION: Final = 1
STEP_SECONDS: Final = 60
# Samples older than the first number of seconds are kept only at multiples of the second.
LEVELS: Final = ((2 * 86_400, 600), (30 * 86_400, 3600))
KEEP_SECONDS: Final = 400 * 86_400
SERIES_MAX: Final = 200_000
_NAME_MAX: Final = 255
_WHOLE_MAX: Final = 2**63 - 1
_LEVEL_MAX: Final = 1e300
_BUSY_SECONDS: Final = 10.0
_SCHEMA: Final = """
CREATE TABLE series (
  id INTEGER PRIMARY KEY, kind TEXT NOT NULL, cluster TEXT NOT NULL, broker TEXT NOT NULL, topic TEXT NOT NULL,
  consumer_group TEXT NOT NULL, UNIQUE (kind, cluster, broker, topic, consumer_group)
);
CREATE TABLE samples (
  series INTEGER NOT NULL REFERENCES series (id) ON DELETE CASCADE, at INTEGER NOT NULL, total INTEGER NOT NULL,
  level REAL NOT NULL, peak REAL NOT NULL, PRIMARY KEY (series, at)
) WITHOUT ROWID;
CREATE TABLE thinned (level INTEGER PRIMARY KEY, until INTEGER NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Series:
    """The subject of samples. A topic has cluster and topic, a group both and its name, a broker cluster and its name with id.

    A cluster has the consumed messages and the lag of the groups of users; incoming, the messages ever sent to their topics and
    those kept; a replica, named as a broker, the bytes it is behind its master; alarms how many hold in the console.
    """

    kind: Kind
    cluster: str
    broker: str = ""
    topic: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: cumulative count and level (see the module)."""

    series: Series
    total: int
    level: float


@dataclass(frozen=True, slots=True)
class Point:
    """One stored sample. at: Unix seconds. rate: per second since the point before, None for the first and after a restart."""

    at: int
    total: int
    level: float
    peak: float
    rate: float | None


class History:
    """One history file. Methods block; several threads may call them.

    Example:
        with History(Path("history.db")) as history:
            for point in history.read(Series("group", "DefaultCluster", topic="orders", group="billing"), since=0):
                print(point.at, point.level)
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises ConfigError for a file of another kind or version, StoreError."""
        self.path = path
        try:
            self._db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._prepare()
        except sqlite3.Error as error:
            raise ConfigError(f"{path} is not a history file of saturnmq: {error}") from error
        self._ids: dict[Series, int] = {}
        self._lock = threading.Lock()  # one transaction at a time on the connection

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("PRAGMA foreign_keys = ON")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version == 0 and not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            # One transaction: a process that is killed here leaves an empty file, not half a schema.
            self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        elif version != VERSION:
            raise ConfigError(f"{self.path} has version {version} of the history format; this release reads {VERSION}")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                raise StoreError(f"{self.path}: the history cannot be written: {error}") from error
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                    self._ids.clear()  # some may be of series that the transaction had made

    def record(self, at: int, samples: Iterable[Sample]) -> int:
        """Store the samples of one minute; return how many. at: Unix seconds, rounded down to the minute. Raises StoreError.

        A second sample of a series for the same minute replaces the first. New series beyond SERIES_MAX are not stored.
        """
        minute = at - at % STEP_SECONDS
        with self._writing():
            rows = [
                (number, minute, _whole(sample.total), _finite(sample.level), _finite(sample.level))
                for sample in samples
                if (number := self._id(sample.series)) is not None
            ]
            self._db.executemany("INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?)", rows)
        return len(rows)

    def _id(self, series: Series) -> int | None:
        cached_id = self._ids.get(series)
        if cached_id is not None:
            return cached_id
        key = (series.kind, series.cluster, series.broker, series.topic, series.group)
        if max(map(len, key)) > _NAME_MAX or not encodable(*key):
            return None
        row = self._db.execute(
            "SELECT id FROM series WHERE kind = ? AND cluster = ? AND broker = ? AND topic = ? AND consumer_group = ?",
            key,
        ).fetchone()
        if row is None:
            if self._db.execute("SELECT count(*) FROM series").fetchone()[0] >= SERIES_MAX:
                return None
            row = self._db.execute(
                "INSERT INTO series (kind, cluster, broker, topic, consumer_group) VALUES (?, ?, ?, ?, ?) RETURNING id",
                key,
            ).fetchone()
        self._ids[series] = number = int(row[0])
        return number

    def thin(self, now: int, *, keep_seconds: int = KEEP_SECONDS) -> int:
        """Drop what its age no longer needs; return how many samples. A kept sample takes the peak of those dropped before it.

        Reads only what has aged since the call before, so it may run often.
        """
        dropped = 0
        with self._writing():
            numbers = [number for (number,) in self._db.execute("SELECT id FROM series")]
            for level, (age, step) in enumerate(LEVELS):
                until = (now - age) - (now - age) % step
                row = self._db.execute("SELECT until FROM thinned WHERE level = ?", (level,)).fetchone()
                since = row[0] if row else 0
                if until > since:
                    dropped += sum(self._thin_one(number, step, since, until) for number in numbers)
                    self._db.execute("INSERT OR REPLACE INTO thinned VALUES (?, ?)", (level, until))
            oldest = now - keep_seconds
            expire = "DELETE FROM samples WHERE series = ? AND at < ?"
            dropped += sum(self._db.execute(expire, (number, oldest)).rowcount for number in numbers)
            self._db.execute("DELETE FROM series WHERE NOT EXISTS (SELECT 1 FROM samples WHERE series = series.id)")
            self._ids.clear()  # of series that were deleted
        return dropped

    def _thin_one(self, number: int, step: int, since: int, until: int) -> int:
        """Keep the samples at multiples of step of since < at <= until; return how many were dropped."""
        window = {"series": number, "step": step, "since": since, "until": until}
        # First the peaks, from samples that are dropped after; level and total of a kept sample are its own.
        self._db.execute(
            """
            UPDATE samples SET peak = (
              SELECT max(other.peak) FROM samples AS other
              WHERE other.series = :series AND other.at > samples.at - :step AND other.at <= samples.at)
            WHERE series = :series AND at > :since AND at <= :until AND at % :step = 0
            """,
            window,
        )
        deletion = "DELETE FROM samples WHERE series = :series AND at > :since AND at <= :until AND at % :step != 0"
        return self._db.execute(deletion, window).rowcount

    def series(self, kind: Kind, *, limit: int = 1000, offset: int = 0) -> list[Series]:
        """The series of a kind in the order of their names; a page of them."""
        rows = self._db.execute(
            "SELECT kind, cluster, broker, topic, consumer_group FROM series WHERE kind = ? "
            "ORDER BY cluster, broker, topic, consumer_group LIMIT ? OFFSET ?",
            (kind, limit, offset),
        )
        return [Series(*row) for row in rows]

    def read(self, series: Series, since: int, until: int = 2**62, *, limit: int = 100_000) -> list[Point]:
        """The points of a series with since <= at < until, oldest first. A count that fell (a restart) gives no rate."""
        rows = self._db.execute(
            "SELECT at, total, level, peak FROM samples WHERE at >= ? AND at < ? AND series = ("
            "SELECT id FROM series WHERE kind = ? AND cluster = ? AND broker = ? AND topic = ? AND consumer_group = ?"
            ") ORDER BY at LIMIT ?",
            (since, until, series.kind, series.cluster, series.broker, series.topic, series.group, limit),
        ).fetchall()
        return _points(rows)

    def first_at(self, since: int) -> int | None:
        """The time of the earliest sample at or after since, Unix seconds; None if there is none."""
        (at,) = self._db.execute("SELECT min(at) FROM samples WHERE at >= ?", (since,)).fetchone()
        return None if at is None else int(at)

    def first_samples(self, kind: Kind, since: int) -> list[tuple[int, Sample]]:
        """Of each series of a kind the earliest sample at or after since, with its time; series without one are left out."""
        rows = self._db.execute(
            "SELECT at, kind, cluster, broker, topic, consumer_group, total, level FROM series JOIN samples "
            "ON samples.series = series.id AND at = (SELECT min(at) FROM samples WHERE series = series.id AND at >= ?) "
            "WHERE kind = ? ORDER BY series.id",
            (since, kind),
        )
        return [(at, Sample(Series(*names), total, level)) for at, *names, total, level in rows]

    def samples(self, since: int, until: int) -> list[tuple[int, Sample]]:
        """All samples with since <= at < until, with their times, oldest first; about as many a minute as there are series."""
        rows = self._db.execute(
            "SELECT at, kind, cluster, broker, topic, consumer_group, total, level FROM samples "
            "JOIN series ON series.id = samples.series WHERE at >= ? AND at < ? ORDER BY at, series.id",
            (since, until),
        )
        return [(at, Sample(Series(*names), total, level)) for at, *names, total, level in rows]


def _whole(number: int) -> int:
    """The number within SQLite's 64 bits."""
    return max(-_WHOLE_MAX, min(number, _WHOLE_MAX))


def _finite(number: float) -> float:
    return float(number) if -_LEVEL_MAX < number < _LEVEL_MAX else 0.0  # a whole number may be too large for a float


def _points(rows: Sequence[tuple[int, int, float, float]]) -> list[Point]:
    points: list[Point] = []
    for at, total, level, peak in rows:
        rate = None
        if points and total >= points[-1].total:
            rate = (total - points[-1].total) / (at - points[-1].at)
        points.append(Point(at, total, level, peak, rate))
    return points
