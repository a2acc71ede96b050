"""Alarms: rules about lag, disks, brokers, dead letters and group members, evaluated on a survey every minute.

A finding is one thing that breaks a rule now. A finding that is new begins an alarm, one that is over ends it; both are kept in a
bounded list and sent. A broker that does not answer is a finding of its own and ends no alarm about what it serves: the survey
keeps its last values.

Requirements: CON-07, OPS-17.
"""

# alarms.json (a copy of the version before: alarms.json.bak)
#   limits  {"lag": messages of a group, "disk": percent, "slave_bytes": bytes, "dead_letters": new ones in 10 min,
#           "head_wait": ms that the oldest send or pull waits, "page_cache": ms that an append takes so far}; 0: off
#   groups  {name: {"minCount": clients, "maxDiffTotal": messages}}; 0: off; the names of Apache's dashboard
from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from saturnmq.admin import Admin
from saturnmq.admin.connection import ask_each
from saturnmq.admin.survey import Survey
from saturnmq.durable import sync_path
from saturnmq.escaping import quoted
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ConfigError, SaturnError

log = logging.getLogger(__name__)

ROUND_SECONDS: Final = 60.0
GROWTH_SECONDS: Final = 600.0
GROUPS_MAX: Final = 500
ACTIVE_MAX: Final = 1000
HISTORY_MAX: Final = 500
UNSENT_MAX: Final = 200
TRIES: Final = 3
RETRY_SECONDS: Final = 5.0
_FILE_BYTES_MAX: Final = 1_000_000
_DEAD: Final = "%DLQ%"
LIMITS: Final = {
    "lag": 2**62, "disk": 100, "slave_bytes": 2**62, "dead_letters": 2**31, "head_wait": 2**31, "page_cache": 2**31,
}  # fmt: skip
WAITS: Final = {"send": "sendThreadPoolQueueHeadWaitTimeMills", "pull": "pullThreadPoolQueueHeadWaitTimeMills"}
LOCK: Final = "pageCacheLockTimeMills"
Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True)
class GroupRule:
    """Limits of one group: clients at least, messages not consumed at most; 0 for none."""

    minCount: int = 0
    maxDiffTotal: int = 0


@dataclass(frozen=True)
class Rules:
    """All rules; 0 switches one off."""

    limits: dict[str, int] = field(
        default_factory=lambda: {
            "lag": 100_000,
            "disk": 85,
            "slave_bytes": 64 * 1024 * 1024,
            "dead_letters": 1,
            "head_wait": 1000,
            "page_cache": 500,
        }
    )
    groups: dict[str, GroupRule] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """An alarm began or ended. at: Unix seconds; rule: such as lag or disk; what: a group or broker."""

    at: int
    began: bool
    rule: str
    what: str
    value: str


class Surveys(Protocol):
    """Where surveys come from: the state of the console."""

    async def recent(self, seconds: float) -> Survey | None: ...


class RulesFile:
    """Keeps the rules. Methods block."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Rules:
        """The rules; the defaults without a file. Raises ConfigError for a damaged one."""
        try:
            if self._path.stat().st_size > _FILE_BYTES_MAX:
                raise ConfigError(f"{self._path} has more than {_FILE_BYTES_MAX} bytes")
            document = json.loads(self._path.read_text(encoding="utf-8"))
            limits = {name: int(value) for name, value in document["limits"].items() if name in LIMITS}
            groups = {
                str(name): GroupRule(int(one["minCount"]), int(one["maxDiffTotal"]))
                for name, one in document["groups"].items()
            }
        except FileNotFoundError:
            return Rules()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"{self._path} is no file of alarm rules: {error!r:.100}; its last version is in {self._path}.bak"
            ) from None
        return Rules(Rules().limits | limits, groups)

    def write(self, rules: Rules) -> None:
        """Store the rules durably, and keep those before as .bak."""
        text = json.dumps(
            {"limits": rules.limits, "groups": {name: asdict(one) for name, one in rules.groups.items()}}, indent=1
        )
        fresh = self._path.with_suffix(".json.tmp")
        fresh.write_text(text, encoding="utf-8")
        sync_path(fresh)
        if self._path.exists():
            self._path.replace(self._path.with_suffix(".json.bak"))
        fresh.replace(self._path)
        sync_path(self._path.parent)


class Alarms:
    """Evaluates rules and keeps what they found. file: None for rules in memory; senders: called with each event.

    counted: called in a thread after each round, with Unix seconds and how many alarms hold.
    """

    def __init__(
        self,
        file: RulesFile | None = None,
        *senders: Send,
        clock: Callable[[], float] = time.time,
        counted: Callable[[int, int], None] | None = None,
    ) -> None:
        self.rules = file.read() if file is not None else Rules()
        self.active: dict[tuple[str, str], Event] = {}
        self.events: deque[Event] = deque(maxlen=HISTORY_MAX)
        self.unsent = 0
        self._file = file
        self._senders = senders
        self._clock = clock
        self._counted = counted
        self._queue: asyncio.Queue[Event] = asyncio.Queue(UNSENT_MAX)
        self._dead: dict[str, int] = {}
        self._grown: dict[str, tuple[float, int]] = {}

    async def change(self, rules: Rules) -> None:
        """Check and store new rules. Raises ConfigError."""
        for name, value in rules.limits.items():
            if not 0 <= value <= LIMITS.get(name, -1):
                raise ConfigError(f"{name} {value} must be in 0..{LIMITS.get(name, 0)}")
        if len(rules.groups) > GROUPS_MAX:
            raise ConfigError(f"{len(rules.groups)} groups have rules; at most {GROUPS_MAX} may")
        if self._file is not None:
            await asyncio.to_thread(self._file.write, rules)
        self.rules = rules

    async def with_group(self, name: str, rule: GroupRule) -> None:
        """Set the rule of a group; one without limits is removed."""
        groups = {other: one for other, one in self.rules.groups.items() if other != name}
        await self.change(replace(self.rules, groups=groups if rule == GroupRule() else groups | {name: rule}))

    async def run(
        self, surveys: Surveys, admin: Admin, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Evaluate the rules every minute and send what is new, until cancelled."""
        sending = asyncio.get_running_loop().create_task(self._send(sleep), name="alarms")
        try:
            while True:
                try:
                    survey = await surveys.recent(ROUND_SECONDS)
                    if survey is not None:
                        self.look(survey, await self._members(admin))
                        if self._counted is not None:
                            await asyncio.to_thread(self._counted, int(self._clock()), len(self.active))
                except Exception:  # the next round may succeed
                    log.exception("alarms not evaluated")
                await sleep(ROUND_SECONDS)
        finally:
            sending.cancel()

    def look(self, survey: Survey, members: dict[str, int | None]) -> None:
        """Compare a survey with the rules. members: clients by group; None if unknown."""
        now = self._clock()
        found = dict(list(self._findings(survey, members, now))[:ACTIVE_MAX])
        for key in [key for key in self.active if key not in found]:
            if key[0] == "members" and members.get(key[1], 0) is None:
                continue
            self._record(Event(int(now), False, *key, self.active.pop(key).value))
        for key, value in found.items():
            event = Event(int(now), True, *key, value)
            if key not in self.active:
                self._record(event)
                self.active[key] = event
            else:
                self.active[key] = replace(self.active[key], value=value)

    def _findings(
        self, survey: Survey, members: dict[str, int | None], now: float
    ) -> Iterator[tuple[tuple[str, str], str]]:
        limits = dict.fromkeys(LIMITS, 0) | self.rules.limits
        masters = {(one.cluster, one.name): one for one in survey.brokers if one.number == 0}
        for one in survey.brokers:
            where = f"{one.cluster}/{one.name}:{one.number}"
            if one.problem:
                yield ("broker", where), one.problem
            ratio = (one.first_number("commitLogDiskRatio") or 0.0) * 100
            if limits["disk"] and ratio > limits["disk"]:
                yield ("disk", where), f"{ratio:.0f} %"
            waits = {name: one.integer(key) for name, key in WAITS.items()}
            longest = max(waits, key=lambda name: waits[name])
            if limits["head_wait"] and waits[longest] > limits["head_wait"]:
                yield ("head_wait", where), f"{longest} {waits[longest]} ms"
            if limits["page_cache"] and one.integer(LOCK) > limits["page_cache"]:
                yield ("page_cache", where), f"{one.integer(LOCK)} ms"
            master = masters.get((one.cluster, one.name))
            if master is None:
                yield ("leader", f"{one.cluster}/{one.name}"), "no master"
            elif one.number and limits["slave_bytes"] and not (one.problem or master.problem):
                ends = [each.integer("commitLogMaxOffset") for each in (master, one)]
                if ends[0] - ends[1] > limits["slave_bytes"]:
                    yield ("slave", where), f"{ends[0] - ends[1]} B"
        for group in survey.groups.values():
            rule = self.rules.groups.get(group.name)
            most = rule.maxDiffTotal if rule is not None and rule.maxDiffTotal else limits["lag"]
            if most and group.lag > most:
                yield ("lag", f"{group.cluster}/{group.name}"), str(group.lag)
        for name, rule in self.rules.groups.items():
            count = members.get(name)
            if rule.minCount and count is not None and count < rule.minCount:
                yield ("members", name), f"{count} < {rule.minCount}"
        yield from self._dead_letters(survey, now)

    def _dead_letters(self, survey: Survey, now: float) -> Iterator[tuple[tuple[str, str], str]]:
        totals = {
            f"{one.cluster}/{one.name[len(_DEAD) :]}": one.total
            for one in survey.topics.values()
            if one.name.startswith(_DEAD)
        }
        for name, total in totals.items():
            fresh = total - self._dead.get(name, total)
            at, count = self._grown.get(name, (now, 0))
            if fresh > 0:
                self._grown[name] = (now, count + fresh)
            elif now - at > GROWTH_SECONDS:
                self._grown.pop(name, None)
        self._dead = totals
        self._grown = {name: one for name, one in self._grown.items() if name in totals}
        least = self.rules.limits["dead_letters"]
        for name, (_, count) in self._grown.items():
            if least and count >= least:
                yield ("dead_letters", name), f"+{count}"

    async def _members(self, admin: Admin) -> dict[str, int | None]:
        """Clients of the groups that have a rule; each asked for at most two seconds."""

        async def ask(group: str) -> int:
            try:
                return len((await admin.clients.consumers(group)).connection_set)
            except SaturnError as error:
                if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                    return 0
                raise

        found = await ask_each([name for name, rule in self.rules.groups.items() if rule.minCount], ask)
        return {name: None if isinstance(one, SaturnError) else one for name, one in found.items()}

    def _record(self, event: Event) -> None:
        log.warning(
            "alarm %s rule=%s what=%s value=%s",
            "began" if event.began else "ended",
            event.rule,
            quoted(event.what),
            event.value,
        )
        self.events.append(event)
        try:
            if self._senders:
                self._queue.put_nowait(event)
        except asyncio.QueueFull:
            self.unsent += 1

    async def _send(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        while True:
            event = await self._queue.get()
            for send in self._senders:
                await self._try(send, event, sleep)

    async def _try(self, send: Send, event: Event, sleep: Callable[[float], Awaitable[None]]) -> None:
        for attempt in range(TRIES):
            try:
                await send({"event": "alarm", **asdict(event)})
                return
            except Exception as error:
                log.warning("alarm not sent attempt=%d error=%r", attempt + 1, error)
                if attempt + 1 < TRIES:
                    await sleep(RETRY_SECONDS * 2**attempt)
        self.unsent += 1
