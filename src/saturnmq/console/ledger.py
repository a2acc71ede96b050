"""Pages about DLedger groups: members with their log indexes, and a leadership transfer with a preview.

The state of the members is that of the latest survey; who the members are is asked of the brokers, in their configuration.

Requirements: UX-14, UX-16, DL-Q06.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from saturnmq.admin.brokers import BrokerState
from saturnmq.admin.connection import answered
from saturnmq.admin.ledger import WATERMARK, transfer_leadership
from saturnmq.console.asking import within
from saturnmq.console.context import Page, paged
from saturnmq.console.pages import collecting, missing
from saturnmq.console.state import View
from saturnmq.protocol.errors import ConfigError, SaturnError

ROLE: Final = "dledgerRole"
LEADER: Final = "LEADER"
MEMBERS_MAX: Final = 100
_SUCCESS: Final = 200


@dataclass(frozen=True)
class LedgerMember:
    """A member of a group. Indexes are None if its broker does not report them; durable: as its leader knows it."""

    name: str
    broker: BrokerState
    role: str
    term: int | None
    begin: int | None
    end: int | None
    committed: int | None
    durable: int | None
    behind: int | None
    failure: str


@dataclass(frozen=True)
class LedgerGroup:
    """A DLedger group. name: of its brokers; group: as it is configured; leader: id of the member that leads, or "".

    peers: id -> address, as configured.
    """

    name: str
    group: str
    leader: str
    members: list[LedgerMember]
    peers: dict[str, str]

    @property
    def peers_text(self) -> str:
        """The peers as dLegerPeers has them."""
        return ";".join(f"{name}-{address}" for name, address in self.peers.items())


async def groups(request: Request, page: Page, view: View) -> Response:
    """All DLedger groups."""
    names = sorted({broker.name for broker in view.survey.brokers if ROLE in broker.runtime})
    ledger_groups = [group_of(name, view.survey.brokers, {}) for name in names]
    rows = paged(ledger_groups, request.query_params.get("page"))
    return page.render("ledger.html", rows=rows, age=page.services.state.age(view))


async def group(request: Request, page: Page, view: View) -> Response:
    """One group: its members, and the form of a transfer."""
    name = request.path_params["name"]
    ledger_group = await _group(page, view, name)
    if ledger_group is None:
        return missing(page, "group", name)
    candidates = {peer: f"{peer} {at}" for peer, at in ledger_group.peers.items() if peer != ledger_group.leader}
    return page.render(
        "ledger_group.html", group=ledger_group, candidates=candidates, age=page.services.state.age(view)
    )


async def preview_transfer(request: Request, page: Page, view: View) -> Response:
    """What a transfer would do; nothing is changed."""
    name, to = request.path_params["name"], request.query_params.get("to", "")
    ledger_group = await _group(page, view, name)
    if ledger_group is None:
        return missing(page, "group", name)
    target = next((member for member in ledger_group.members if member.name == to), None)
    _check(ledger_group, to)
    return page.render("ledger_transfer.html", group=ledger_group, to=to, target=target)


async def transfer(request: Request, page: Page) -> Response:
    """Ask the leader of a group to hand over to a member."""
    form = await request.form()
    name, to = str(form.get("group", "")), str(form.get("to", ""))
    view = await page.services.state.view()
    if view is None:
        return collecting(page)
    ledger_group = await _group(page, view, name)
    if ledger_group is None:
        return missing(page, "group", name)
    _check(ledger_group, to)
    code = await transfer_leadership(
        ledger_group.group, ledger_group.peers_text, to, page.services.admin.connection.access
    )
    if int(code) != _SUCCESS:
        raise SaturnError(f"the leader of {name} answered {int(code)} {code.name}")
    await page.services.state.refresh()
    return RedirectResponse(f"/ledger/{quote(name, safe='')}", 303)


def _check(group: LedgerGroup, to: str) -> None:
    if to not in group.peers or to == group.leader:
        candidates = ", ".join(name for name in group.peers if name != group.leader) or "none"
        raise ConfigError(f"member {to!r:.80} must be one that does not lead: {candidates}")


async def _group(page: Page, view: View, name: str) -> LedgerGroup | None:
    brokers = [broker for broker in view.survey.brokers if broker.name == name][:MEMBERS_MAX]
    if not any(ROLE in broker.runtime for broker in brokers):
        return None
    alive = [broker.address for broker in brokers if not broker.problem]
    configs = answered(await within(alive, page.services.admin.brokers.configuration))
    return group_of(name, brokers, configs)


def group_of(name: str, brokers: list[BrokerState], configs: dict[str, dict[str, str]]) -> LedgerGroup:
    """The group of a name. configs: configurations by address, as far as they are known."""
    brokers = [broker for broker in brokers if broker.name == name]
    leading = next((broker for broker in brokers if broker.runtime.get(ROLE) == LEADER), None)
    leader = leading.runtime.get("dledgerLeaderId", "") if leading is not None else ""
    end = _index(leading, "dledgerEndIndex")  # None without a leader: then no lag is known
    members = []
    for broker in brokers:
        member_id = configs.get(broker.address, {}).get("dLegerSelfId", leader if broker is leading else "")
        last = _index(broker, "dledgerEndIndex")
        member = LedgerMember(
            name=member_id,
            broker=broker,
            role=broker.runtime.get(ROLE, ""),
            term=_index(broker, "dledgerTerm"),
            begin=_index(broker, "dledgerBeginIndex"),
            end=last,
            committed=_index(broker, "dledgerCommittedIndex"),
            durable=_index(leading, WATERMARK + member_id),
            behind=max(end - last, 0) if end is not None and last is not None else None,
            failure=broker.problem or broker.runtime.get("dledgerFailed", ""),
        )
        members.append(member)
    peers = next((addresses for config in configs.values() if (addresses := _peers(config.get("dLegerPeers", "")))), {})
    group = next((group_name for config in configs.values() if (group_name := config.get("dLegerGroup", ""))), name)
    return LedgerGroup(name, group, leader, members, peers)


def _index(broker: BrokerState | None, key: str) -> int | None:
    text = broker.runtime.get(key, "") if broker is not None else ""
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 20 else None


def _peers(text: str) -> dict[str, str]:
    """Addresses by id of `n0-host:port;n1-host:port`."""
    parts = (part.strip().partition("-") for part in text.split(";")[:MEMBERS_MAX])
    return {name: address for name, dash, address in parts if name and dash and address}
