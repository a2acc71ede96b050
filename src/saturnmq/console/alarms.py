"""Alarms: rules about the cluster, lag, disks, brokers, dead letters and group members, evaluated every minute.

A finding is one thing that breaks a rule now. A finding that is new begins an alarm, one that is over ends it; both are kept in a
bounded list and sent. A cluster of which no survey can be taken is a finding, and ends no other alarm. So is a broker that does
not answer or is not registered any more: alarms about what it serves hold until it is back, or until an operator forgets it.

Requirements: CON-07, OPS-17, SEC-22.
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
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from saturnmq.admin import Admin
from saturnmq.admin.brokers import BrokerState
from saturnmq.admin.connection import ask_each
from saturnmq.admin.monitoring import post_json
from saturnmq.admin.survey import Survey
from saturnmq.durable import replace_file
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
_OF_GROUPS: Final = ("lag", "dead_letters")  # rules about groups of a cluster, the others are about a broker
LIMITS: Final = {
    "lag": 2**62, "disk": 100, "slave_bytes": 2**62, "dead_letters": 2**31, "head_wait": 2**31, "page_cache": 2**31,
}  # fmt: skip
WAITS: Final = {"send": "sendThreadPoolQueueHeadWaitTimeMills", "pull": "pullThreadPoolQueueHeadWaitTimeMills"}
LOCK: Final = "pageCacheLockTimeMills"
# TOPIC_NOT_EXIST: the group has no retry topic, so no client ever joined it.
_NO_CLIENT: Final = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.TOPIC_NOT_EXIST)
Send = Callable[[str, dict[str, Any]], Awaitable[None]]  # subject and document of an alarm; such as Mailer.send


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
class AlarmEvent:
    """An alarm began or ended. at: Unix seconds; rule: such as lag or disk; what: a group or broker."""

    at: int
    began: bool
    rule: str
    what: str
    value: str


class Surveys(Protocol):
    """Where surveys come from: the state of the console. problem: why the last one failed, or empty."""

    @property
    def problem(self) -> str: ...

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
                str(name): GroupRule(int(limits_of_group["minCount"]), int(limits_of_group["maxDiffTotal"]))
                for name, limits_of_group in document["groups"].items()
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
            {"limits": rules.limits, "groups": {name: asdict(rule) for name, rule in rules.groups.items()}}, indent=1
        )
        replace_file(self._path, text.encode(), mode=0o666, has_backup=True)


def place_of(broker: BrokerState) -> str:
    """A member of a broker as alarms name it: cluster/name:id."""
    return f"{broker.cluster}/{broker.name}:{broker.number}"


def _broker_of(key: tuple[str, str]) -> str:
    """The broker, cluster/name, that an alarm about a broker or one of its members is about."""
    rule, subject = key
    return subject if rule in ("leader", "missing") else subject.rpartition(":")[0]


def _state(event: AlarmEvent) -> str:
    return "began" if event.began else "ended"


def webhook(url: str) -> Send:
    """Posts each alarm as JSON to an http or https address, within 10 s; follows no redirects. Raises ConfigError for others.

    Addresses come from the command line only, so no user of the console can make it connect elsewhere.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--webhook {url!r:.100} must be an http:// or https:// address")

    async def send(_subject: str, document: dict[str, Any]) -> None:
        await post_json(url, json.dumps(document).encode())

    return send


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
        self.active: dict[tuple[str, str], AlarmEvent] = {}
        self.events: deque[AlarmEvent] = deque(maxlen=HISTORY_MAX)
        self.unsent = 0
        self._file = file
        self._senders = senders
        self._clock = clock
        self._counted = counted
        self._queue: asyncio.Queue[AlarmEvent] = asyncio.Queue(UNSENT_MAX)
        self._members_max: dict[tuple[str, str], int] = {}  # most members of a broker that were registered at once
        self._fewer: dict[tuple[str, str], int] = {}  # brokers with fewer members than that, in the last survey
        self._surveyed: set[tuple[str, str]] = set()  # brokers whose topics were listed
        self._dead: dict[tuple[str, str, str], int | None] = {}  # by cluster, topic, broker; None: not known
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
        groups = {group: group_rule for group, group_rule in self.rules.groups.items() if group != name}
        await self.change(replace(self.rules, groups=groups if rule == GroupRule() else groups | {name: rule}))

    async def run(
        self, surveys: Surveys, admin: Admin, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Evaluate the rules every minute and send what is new, until cancelled."""
        sending = asyncio.get_running_loop().create_task(self._send(sleep), name="alarms")
        try:
            while True:
                try:
                    await self.round(surveys, admin)
                except Exception as error:  # the next round may succeed
                    log.exception("alarms not evaluated")
                    self.unreachable(admin.connection.name_servers, f"alarms not evaluated: {error!r:.200}")
                await sleep(ROUND_SECONDS)
        finally:
            sending.cancel()

    async def round(self, surveys: Surveys, admin: Admin) -> None:
        """Evaluate the rules once."""
        survey = await surveys.recent(ROUND_SECONDS / 2)
        name_servers = admin.connection.name_servers
        if survey is None:
            self.unreachable(name_servers, surveys.problem or "no survey")
        elif not survey.brokers:
            self.unreachable(name_servers, "no broker is registered")
        else:
            self.look(survey, await self._members(admin))
        if self._counted is not None:
            await asyncio.to_thread(self._counted, int(self._clock()), len(self.active))

    def listed(self) -> list[AlarmEvent]:
        """The alarms that hold: an unreachable cluster first, then the newest."""
        return sorted(self.active.values(), key=lambda event: (event.rule != "cluster", -event.at))

    def forget(self, broker: str) -> None:
        """Expect no more members of a broker, `cluster/name`, than are registered now. Raises ConfigError if none is missing."""
        missing = {f"{cluster}/{name}": (cluster, name) for cluster, name in self._fewer}
        if broker not in missing:
            raise ConfigError(f"no member of {broker!r:.200} is missing; missing are: {', '.join(missing) or 'none'}")
        key = missing[broker]
        self._members_max[key] = count = self._fewer.pop(key)
        about = [alarm for alarm in self.active if alarm[0] not in _OF_GROUPS and _broker_of(alarm) == broker]
        for alarm in about if not count else [alarm for alarm in about if alarm[0] == "missing"]:
            self._end(alarm)  # those of members that are left end with the next survey

    def unreachable(self, name_servers: Iterable[str], problem: str) -> None:
        """Begin or continue the alarm about a cluster of which nothing is known; the others hold."""
        self._begin(("cluster", ";".join(name_servers)), problem)

    def look(self, survey: Survey, members: dict[str, int | None]) -> None:
        """Compare a survey with the rules. members: clients by group; None if unknown."""
        silent = {place_of(broker) for broker in survey.brokers if broker.problem}
        # Evaluated to the end, although only ACTIVE_MAX are kept: the generator also keeps counts for the next survey.
        findings = dict(list(self._findings(survey, members, self._clock()))[:ACTIVE_MAX])
        for key in [
            key for key in self.active if key not in findings and not self._is_unobservable(key, silent, members)
        ]:
            self._end(key)
        for key, value in findings.items():
            self._begin(key, value)

    def _is_unobservable(self, key: tuple[str, str], silent: set[str], members: dict[str, int | None]) -> bool:
        """Whether an alarm without a finding may hold nevertheless: what it is about cannot be seen."""
        rule, subject = key
        if rule == "members":
            return members.get(subject, 0) is None
        if rule in _OF_GROUPS:
            return any(subject.startswith(f"{cluster}/") for cluster, _ in self._fewer)
        missing = {f"{cluster}/{name}" for cluster, name in self._fewer}
        return rule != "cluster" and (_broker_of(key) in missing or subject in silent)

    def _begin(self, key: tuple[str, str], value: str) -> None:
        event = AlarmEvent(int(self._clock()), True, *key, value)
        if key in self.active:
            self.active[key] = replace(self.active[key], value=value)
        else:
            self._record(event)
            self.active[key] = event

    def _end(self, key: tuple[str, str]) -> None:
        self._record(AlarmEvent(int(self._clock()), False, *key, self.active.pop(key).value))

    def _findings(
        self, survey: Survey, members: dict[str, int | None], now: float
    ) -> Iterator[tuple[tuple[str, str], str]]:
        limits = dict.fromkeys(LIMITS, 0) | self.rules.limits
        masters = {(broker.cluster, broker.name): broker for broker in survey.brokers if broker.number == 0}
        for broker in survey.brokers:
            where = place_of(broker)
            if broker.problem:
                yield ("broker", where), broker.problem
            ratio = (broker.first_number("commitLogDiskRatio") or 0.0) * 100
            if limits["disk"] and ratio > limits["disk"]:
                yield ("disk", where), f"{ratio:.0f} %"
            waits = {name: broker.integer(key) for name, key in WAITS.items()}
            longest = max(waits, key=lambda name: waits[name])
            if limits["head_wait"] and waits[longest] > limits["head_wait"]:
                yield ("head_wait", where), f"{longest} {waits[longest]} ms"
            if limits["page_cache"] and broker.integer(LOCK) > limits["page_cache"]:
                yield ("page_cache", where), f"{broker.integer(LOCK)} ms"
            master = masters.get((broker.cluster, broker.name))
            if master is None:
                yield ("leader", f"{broker.cluster}/{broker.name}"), "no master"
            elif broker.number and limits["slave_bytes"] and not (broker.problem or master.problem):
                ends = [each.integer("commitLogMaxOffset") for each in (master, broker)]
                if ends[0] - ends[1] > limits["slave_bytes"]:
                    yield ("slave", where), f"{ends[0] - ends[1]} B"
        yield from self._missing(survey)
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

    def _missing(self, survey: Survey) -> Iterator[tuple[tuple[str, str], str]]:
        """Brokers with fewer members than were registered before: in two surveys, as a NameServer may just have restarted."""
        counts = Counter((broker.cluster, broker.name) for broker in survey.brokers)
        before = self._fewer
        self._members_max = {
            key: max(counts[key], most) for key, most in (dict.fromkeys(counts, 0) | self._members_max).items()
        }
        self._fewer = {key: counts[key] for key, most in self._members_max.items() if counts[key] < most}
        for cluster, name in self._fewer:
            if (cluster, name) in before or ("missing", f"{cluster}/{name}") in self.active:
                yield ("missing", f"{cluster}/{name}"), f"{counts[cluster, name]} of {self._members_max[cluster, name]}"

    def _dead_letters(self, survey: Survey, now: float) -> Iterator[tuple[tuple[str, str], str]]:
        """Groups whose dead letters grew in the last GROWTH_SECONDS, by more than the limit.

        The topic of dead letters appears with the first one: without an earlier total it counts from zero, unless it is there when
        its broker is first seen.
        """
        masters = [broker for broker in survey.brokers if broker.number == 0]
        answering = {(master.cluster, master.name) for master in masters if master.address not in survey.problems}
        topics = [topic for topic in survey.topics.values() if topic.name.startswith(_DEAD)]
        totals = {
            (topic.cluster, topic.name, broker): topic.totals.get(broker)
            for topic in topics
            for broker in topic.configs
        }
        new_letters: Counter[str] = Counter()
        for (cluster, topic, broker), total in totals.items():
            before = self._dead.get((cluster, topic, broker), 0 if (cluster, broker) in self._surveyed else None)
            if total is not None and before is not None:  # less than before: the topic was created again
                new_letters[f"{cluster}/{topic.removeprefix(_DEAD)}"] += total - before if total >= before else total
        self._surveyed |= answering
        self._dead = {key: total for key, total in self._dead.items() if (key[0], key[2]) not in answering} | totals
        for name, count in new_letters.items():
            if count:
                self._grown[name] = now, self._grown.get(name, (now, 0))[1] + count
        self._grown = {name: grown for name, grown in self._grown.items() if now - grown[0] <= GROWTH_SECONDS}
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
                if error.code in _NO_CLIENT:
                    return 0
                raise

        client_counts = await ask_each([name for name, rule in self.rules.groups.items() if rule.minCount], ask)
        return {name: None if isinstance(count, SaturnError) else count for name, count in client_counts.items()}

    def _record(self, event: AlarmEvent) -> None:
        log.warning(
            "alarm %s rule=%s what=%s value=%s", _state(event), event.rule, quoted(event.what), quoted(event.value)
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

    async def _try(self, send: Send, event: AlarmEvent, sleep: Callable[[float], Awaitable[None]]) -> None:
        for attempt in range(TRIES):
            try:
                await send(f"{event.rule} {_state(event)}: {event.what}", {"event": "alarm", **asdict(event)})
                return
            except Exception as error:
                log.warning("alarm not sent attempt=%d error=%r", attempt + 1, error)
                if attempt + 1 < TRIES:
                    await sleep(RETRY_SECONDS * 2**attempt)
        self.unsent += 1
