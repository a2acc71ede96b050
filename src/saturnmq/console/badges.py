"""The state of a group in one word, with its colour: what an operator has to look at stands out without reading numbers. Pure.

Requirements: CON-06.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from saturnmq.admin.survey import GroupState
from saturnmq.console.state import View
from saturnmq.console.texts import N_
from saturnmq.protocol.bodies import ConsumerConnection


@dataclass(frozen=True)
class Badge:
    """kind: ok, idle, warn or bad, as in the style sheet; text: in English."""

    kind: str
    text: str


def group_badge(lag: int, clients: int | None, rate: float | None) -> Badge:
    """The state of a group. clients: None if a broker did not answer; rate: consumed messages per second, None if not known yet."""
    if clients is None:
        return Badge("idle", N_("not known"))
    if not clients:
        return Badge("bad", N_("stopped: no client")) if lag else Badge("idle", N_("no client"))
    if lag and rate == 0:
        return Badge("warn", N_("stuck: nothing consumed"))
    return Badge("ok", N_("consuming") if lag else N_("up to date"))


def badge_of(
    view: View, group: GroupState, clients: Mapping[tuple[str, str], ConsumerConnection], silent: Mapping[str, str]
) -> Badge:
    """The state of a group. clients: of groups that have any, by cluster and name; silent: problems of brokers that were asked."""
    key = (group.cluster, group.name)
    count = len(clients[key].connection_set) if key in clients else None if silent else 0
    return group_badge(group.lag, count, view.out_rates.get(key))
