"""Pages about producers and NameServers: clients by group and topic, the connection of the console, health checks.

Requirements: CON-01, CON-08.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from saturnmq.admin.connection import answered, failed
from saturnmq.admin.survey import TopicState
from saturnmq.admin.system_names import is_system, is_system_producer
from saturnmq.console.asking import within
from saturnmq.console.context import Page, paged
from saturnmq.console.forms import WrongField
from saturnmq.console.state import View
from saturnmq.protocol.bodies import Connection, ProducerInfo
from saturnmq.protocol.errors import SaturnError

PRODUCER_KINDS: Final = ("normal", "system", "all")
TOPICS_SHOWN_MAX: Final = 100
ADDRESSES_CHARACTERS_MAX: Final = 2000


# ---- producers


async def producers(request: Request, page: Page, view: View) -> Response:
    """Producer groups of all masters, and the clients of one group for a topic."""
    query = request.query_params
    group, topic = query.get("group", "").strip(), query.get("topic", "").strip()
    clients: list[Connection] = []
    problem = ""
    if group and topic:
        try:
            clients = await page.services.admin.clients.producers(group, topic)
        except SaturnError as error:
            problem = error.message
    masters = [master.address for master in view.masters if not master.problem]
    tables = await within(masters, page.services.admin.clients.all_producers)
    search_text = query.get("q", "").lower()
    names = {
        (name, producer.client_id): producer
        for table in answered(tables).values()
        for name, group_producers in table.items()
        for producer in group_producers
    }
    kind = query.get("kind", "") if query.get("kind", "") in PRODUCER_KINDS else "normal"
    matches: list[tuple[str, ProducerInfo]] = [
        (name, producer) for (name, _), producer in sorted(names.items()) if search_text in name.lower()
    ]
    system = [row for row in matches if is_system_producer(row[0])]
    kinds = {"normal": [row for row in matches if row not in system], "system": system, "all": matches}
    return page.render(
        "producers.html",
        rows=paged(kinds[kind], query.get("page")),
        kind=kind,
        kinds={name: len(producers_of_kind) for name, producers_of_kind in kinds.items()},
        search_text=search_text,
        group=group,
        topic=topic,
        clients=clients,
        problem=problem,
        failures=failed(tables),
    )


# ---- NameServers


async def name_servers(request: Request, page: Page) -> Response:
    """The NameServers of the console, and checks of the cluster's health."""
    view, admin = await page.services.state.view(), page.services.admin
    states = await within(admin.connection.name_servers, admin.name_servers.broker_count)
    alone = [] if view is None else on_one_broker(view)
    return page.render(
        "name_servers.html",
        states=states,
        error=SaturnError,
        vip_channel=admin.connection.vip_channel,
        tls=admin.connection.access.tls,
        view=view,
        problem=page.services.state.problem,
        silent=[] if view is None else [broker for broker in view.survey.brokers if broker.problem],
        alone=alone[:TOPICS_SHOWN_MAX],
        alone_count=len(alone),
    )


def on_one_broker(view: View) -> list[TopicState]:
    """Topics of users that one broker serves, in clusters with several masters: they cannot be written while it is down."""
    masters: dict[str, set[str]] = {}
    for master in view.masters:
        masters.setdefault(master.cluster, set()).add(master.name)
    topics = [
        topic
        for topic in view.survey.topics.values()
        if not is_system(topic) and len(topic.configs) < 2 <= len(masters.get(topic.cluster, ()))
    ]
    return sorted(topics, key=lambda topic: (topic.cluster, topic.name))


async def switch(request: Request, page: Page) -> Response:
    """Use other NameServers, VIP channel or TLS from now on. Nothing changes if no new NameServer answers."""
    form = await request.form()
    addresses = str(form.get("addresses", "")).strip()
    if not 0 < len(addresses) <= ADDRESSES_CHARACTERS_MAX:
        raise WrongField(
            "addresses", f"the addresses have {len(addresses)} characters, 1 to {ADDRESSES_CHARACTERS_MAX} are allowed"
        )
    vip_channel, tls = form.get("vip_channel") == "1", form.get("tls") == "1"
    services = page.services
    await services.admin.connection.switch(addresses, vip_channel=vip_channel, tls=tls)
    await services.preview.connection.switch(addresses, vip_channel=vip_channel, tls=tls)
    await services.state.refresh()
    return RedirectResponse("/name-servers", 303)
