"""Exhaustive search over the runs of a small group: the real core, every order of events within a scope, each state once.

A state is three members with their disks, and the messages in flight. From each state every possible event is tried: a
tick, a proposal, an arrival, a loss, the end of a sync, a crash. States are recognized by their canonical form
(search_form.py), in which times are rounded to a few classes, so that the number of states is finite.

Within the scope the search omits only this: a second request of one kind, for one index, in one term, from one member
to another replaces the first if that is still in flight; and no message is duplicated.

Requirements: SIM-12.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from harness.raftsim.observer import Violation
from harness.raftsim.search_form import Form, Lane, Machine, Outcome, first_form
from saturnmq.protocol.errors import InvariantBroken
from saturnmq.raft.core.entry import Entry

MEMBERS: Final = 3
Net = tuple[tuple[int, int], ...]  # (lane, message), in the order in which they were sent
Truth = tuple[Entry, ...]
Path = tuple[Any, Any]  # the last event, and the path before it


@dataclass(frozen=True, slots=True)
class Scope:
    """The limits of the search. Terms count from 0, entries of a log from index 0.

    turns: how often a run may deviate from the default schedule, in which syncs end at once, messages arrive in order,
    the clock advances only when no message is in flight, nothing is lost, nothing times out and no member crashes;
    None: any number of times.
    """

    terms: int = 2
    entries: int = 3
    crashes: int = 1  # of each member
    turns: int | None = 3
    states_max: int = 10_000_000


@dataclass(slots=True)
class Found:
    """Result of a search. events: number of steps taken; done: no state within the scope was skipped."""

    states: int = 0
    events: int = 0
    steps: int = 0  # distinct steps of single members
    deepest: int = 0
    done: bool = True
    leaders: set[int] = field(default_factory=set)  # terms that had a leader
    committed: int = -1
    cuts: int = 0


@dataclass(frozen=True, slots=True)
class World:
    """A state. forms: numbers of the members' forms; truth: entries ever committed, by index; led: (term, member)."""

    forms: tuple[int, ...]
    net: Net
    truth: int
    led: tuple[tuple[int, int], ...]
    crashes: tuple[int, ...]
    turns: int


class Search:
    """Visits every state of a scope. Raises Violation with the events that lead to it."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.found = Found()
        self._machines = [Machine(number, MEMBERS, scope.terms, scope.entries) for number in range(MEMBERS)]
        self._forms: list[dict[Form, int]] = [{} for _ in range(MEMBERS)]
        self._by_number: list[list[Form]] = [[] for _ in range(MEMBERS)]
        self._steps: dict[tuple[int, int, Any], tuple[int, Outcome] | None] = {}
        self._truths: dict[Truth, int] = {}
        self._truth_list: list[Truth] = []
        self._lanes: dict[Lane, int] = {}
        self._lane_list: list[Lane] = []
        self._messages: dict[Any, int] = {}
        self._message_list: list[Any] = []
        self._matching: set[tuple[Truth, Truth]] = set()
        self._trying: tuple[Any, ...] = ()

    # numbers for values that are compared often

    def _form_number(self, member: int, form: Form) -> int:
        number = self._forms[member].setdefault(form, len(self._by_number[member]))
        if number == len(self._by_number[member]):
            self._by_number[member].append(form)
        return number

    def _truth_number(self, truth: Truth) -> int:
        number = self._truths.setdefault(truth, len(self._truth_list))
        if number == len(self._truth_list):
            self._truth_list.append(truth)
        return number

    def _lane_number(self, lane: Lane) -> int:
        number = self._lanes.setdefault(lane, len(self._lane_list))
        if number == len(self._lane_list):
            self._lane_list.append(lane)
        return number

    def _message_number(self, message: Any) -> int:
        number = self._messages.setdefault(message, len(self._message_list))
        if number == len(self._message_list):
            self._message_list.append(message)
        return number

    # the search

    def run(self) -> Found:
        """Search breadth first, so that a violation is found with as few events as possible.

        Visited states are remembered by a 64-bit hash of their canonical form.
        """
        forms = tuple(self._form_number(member, first_form()) for member in range(MEMBERS))
        turns = self.scope.turns if self.scope.turns is not None else -1
        start = World(forms, (), self._truth_number(()), (), (self.scope.crashes,) * MEMBERS, turns)
        seen = {hash(start)}
        waiting: deque[tuple[World, Path | None, int]] = deque([(start, None, 0)])
        found = self.found
        while waiting:
            world, path, found.deepest = waiting.popleft()
            try:
                for event, then in self._events(world):
                    found.events += 1
                    number = hash(then)
                    if number in seen:
                        continue
                    if len(seen) >= self.scope.states_max:
                        found.done = False
                        continue
                    seen.add(number)
                    waiting.append((then, (event, path), found.deepest + 1))
            except (Violation, InvariantBroken) as error:
                raise Violation(_story(error, (self._trying, path))) from error
        found.states, found.steps = len(seen), len(self._steps)
        return found

    def _events(self, world: World) -> Iterator[tuple[Any, World]]:
        """Every possible next event. One that deviates from the default schedule costs one of `turns`."""
        forms = [self._by_number[member][number] for member, number in enumerate(world.forms)]
        plain_found = False
        for member in range(MEMBERS):
            if forms[member].syncing:
                yield from self._step(world, member, ("synced",), 0 if not plain_found else 1)
                plain_found = True
        for place, (lane_number, message_number) in enumerate(world.net):
            lane, message = self._lane_list[lane_number], self._message_list[message_number]
            rest = world.net[:place] + world.net[place + 1 :]
            receiver = lane.sender if message[0] == "answer" else lane.receiver
            yield from self._step(world, receiver, (message[0], lane, message[1]), 1 if plain_found else 0, rest)
            if self._affords(world, 1):  # lost: its sender notices now, or times out later
                yield from self._step(world, lane.sender, ("answer", lane, None), 1, rest)
            plain_found = True
        cost = 1 if plain_found else 0
        alike = not any(form.core for form in forms)  # at first the members differ only by name: let n0 begin
        for member in range(1 if alike else MEMBERS):
            yield from self._step(world, member, ("tick", "soon"), cost)
            yield from self._step(world, member, ("propose",), cost)
            yield from self._step(world, member, ("tick", "late"), 1)
            if world.crashes[member]:
                for crash in forms[member].crashes():
                    yield from self._step(world, member, crash, 1)

    def _affords(self, world: World, cost: int) -> bool:
        return world.turns < 0 or world.turns >= cost

    def _step(
        self, world: World, member: int, event: tuple[Any, ...], cost: int, net: Net | None = None
    ) -> Iterator[tuple[Any, World]]:
        """Let one member handle one event; yields nothing if that is out of scope or changes nothing."""
        if not self._affords(world, cost):
            return
        self._trying = (f"n{member}", *event)
        key = (member, world.forms[member], event)
        if key not in self._steps:
            outcome = self._machines[member].step(self._by_number[member][world.forms[member]], event)
            self._steps[key] = None if outcome is None else (self._form_number(member, outcome.form), outcome)
        known = self._steps[key]
        if known is None:
            return
        number, outcome = known
        arrived = net is not None
        if number == world.forms[member] and not arrived and not outcome.sent:
            return
        forms = (*world.forms[:member], number, *world.forms[member + 1 :])
        truth, led = world.truth, world.led
        if outcome.promises:
            truth, led = self._check(world, member, forms, outcome)
        if number != world.forms[member]:
            self._check_logs(member, forms)
        crashes = world.crashes
        if event[0] == "crash":
            crashes = (*crashes[:member], crashes[member] - 1, *crashes[member + 1 :])
        turns = world.turns if world.turns < 0 else world.turns - cost
        after = self._on_the_way(world.net if net is None else net, outcome)
        yield self._trying, World(forms, after, truth, led, crashes, turns)

    def _on_the_way(self, net: Net, outcome: Outcome) -> Net:
        if not outcome.sent and not outcome.restarted:
            return net
        sent = [(self._lane_number(lane), self._message_number(message)) for lane, message in outcome.sent]
        taken = {lane for lane, _ in sent}
        kept = [pair for pair in net if pair[0] not in taken]
        if outcome.restarted:  # answers to calls made before the crash are dropped
            kept = [
                (lane, message)
                for lane, message in kept
                if self._lane_list[lane].sender != outcome.member or self._message_list[message][0] == "ask"
            ]
        return (*kept, *sent)

    # invariants

    def _check(
        self, world: World, member: int, forms: tuple[int, ...], outcome: Outcome
    ) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Check each promise of a step against the earlier ones. Returns the new truth and the leaders."""
        truth, led = list(self._truth_list[world.truth]), dict(world.led)
        for promise in outcome.promises:
            if promise[0] == "leads":
                _, term, log = promise
                self._must(led.setdefault(term, member) == member, f"n{led[term]} and n{member} lead term {term}")
                self._must(
                    log[: len(truth)] == tuple(truth), f"n{member} leads term {term} without all committed entries"
                )
                self.found.leaders.add(term)
            elif promise[0] == "commits":
                log = promise[1]
                self.found.committed = max(self.found.committed, len(log) - 1)
                for index, entry in enumerate(log):
                    if index == len(truth):
                        truth.append(entry)
                    self._must(truth[index] == entry, f"n{member} commits another entry at {index}")
            elif promise[0] == "acknowledges":
                index, entry = promise[1], promise[2]
                disks = [self._by_number[at][number].durable for at, number in enumerate(forms)]
                held = sum(len(disk) > index and disk[index] == entry for disk in disks)
                self._must(held * 2 > MEMBERS, f"entry {index} was acknowledged, durable on {held} only")
            elif promise[0] == "cut":
                self.found.cuts += 1
        return self._truth_number(tuple(truth)), tuple(sorted(led.items()))

    def _check_logs(self, member: int, forms: tuple[int, ...]) -> None:
        """Equal index and term imply equal logs up to that index."""
        mine = self._by_number[member][forms[member]].log
        for other in range(MEMBERS):
            theirs = self._by_number[other][forms[other]].log
            if other == member or (mine, theirs) in self._matching:
                continue
            equal = False
            for a, b in zip(reversed(mine[: len(theirs)]), reversed(theirs[: len(mine)]), strict=True):
                equal = equal or a.term == b.term
                self._must(
                    not equal or a == b, f"logs of n{member} and n{other} differ at {a.index} below a common entry"
                )
            self._matching.add((mine, theirs))

    @staticmethod
    def _must(condition: bool, why: str) -> None:
        if not condition:
            raise Violation(why)


def _story(error: BaseException, path: Path | None) -> str:
    """The violation, and the events that lead to it, one per line."""
    events = []
    while path is not None:
        who, what, *rest = path[0]
        lane = next((f"{one.kind} of n{one.sender} to n{one.receiver}" for one in rest if isinstance(one, Lane)), "")
        about = [] if isinstance(rest[-1:], Lane) else rest[-1:]
        events.append(" ".join(filter(None, [who, what, lane, *(repr(one) for one in about)])))
        path = path[1]
    return "\n".join([str(error), "by these events:", *reversed(events)])
