"""Pages about consumer groups: list, one group with its queues and clients, one client, and changes of a group.

Requirements: CON-06, UX-14, UX-16.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from saturnmq.admin.consumption import queue_order
from saturnmq.admin.survey import GroupState
from saturnmq.admin.system_names import is_internal, is_system_group, users_first
from saturnmq.console.actions import whole
from saturnmq.console.asking import clients_of, progress_of, within
from saturnmq.console.context import Page, paged
from saturnmq.console.forms import WrongField
from saturnmq.console.pages import levels_of, missing
from saturnmq.console.state import View, badge_of
from saturnmq.history import Series
from saturnmq.protocol.bodies import ConsumerConnection, ConsumerRunningInfo, MessageQueue, SubscriptionGroupConfig
from saturnmq.protocol.codes import DLQ_PREFIX
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.names import group_problem

QUEUES_SHOWN_MAX: Final = 1000
GROUP_KINDS: Final = ("normal", "system", "all")
TOPICS_CHARTED_MAX: Final = 20
CLIENTS_ASKED_MAX: Final = 20  # for the queues that each has; of larger groups the owners are not shown
CLIENT_SECONDS: Final = 2.0  # for one client, which its broker asks
STACK_MAX: Final = 256 * 1024
NUMBERS: Final = {"retry_queue_nums": 65_536, "retry_max_times": 10_000, "broker_id": 2**31 - 1,
                  "which_broker_when_consume_slowly": 2**31 - 1}  # fmt: skip
FLAGS: Final = (
    "consume_enable", "consume_from_min_enable", "consume_broadcast_enable", "notify_consumer_ids_changed_enable",
)  # fmt: skip


async def groups(request: Request, page: Page, view: View) -> Response:
    """A page of the groups whose name holds the searched text, with their clients."""
    query = request.query_params
    search_text, order = query.get("q", "").lower(), query.get("sort", "")
    kind = query.get("kind", "") if query.get("kind", "") in GROUP_KINDS else "normal"
    matches = [group for group in view.survey.groups.values() if search_text in group.name.lower()]
    system = [group for group in matches if is_system_group(group.name)]
    user_groups = [group for group in matches if not is_system_group(group.name)]
    kinds = {"normal": user_groups, "system": system, "all": matches}
    chosen_groups = list(kinds[kind])
    orders: dict[str, Callable[[GroupState], Any]] = {
        "lag": lambda group: (-group.lag, group.name),
        "name": lambda group: (group.name, group.cluster),
        "rate": lambda group: (-view.out_rates.get((group.cluster, group.name), 0.0), group.name),
    }
    order = order if order in orders else "lag"
    chosen_groups.sort(key=orders[order])
    rows = paged(chosen_groups, query.get("page"))
    clients, problems = await clients_of(page, view, rows.items)
    return page.render(
        "groups.html",
        rows=rows,
        clients=clients,
        problems=problems,
        view=view,
        search_text=search_text,
        order=order,
        kind=kind,
        kinds={name: len(groups_of_kind) for name, groups_of_kind in kinds.items()},
        badges={(group.cluster, group.name): badge_of(view, group, clients, problems) for group in rows.items},
        users_first=users_first,
        clusters=sorted({broker.cluster for broker in view.survey.brokers}),
        empty=SubscriptionGroupConfig(""),
        numbers=NUMBERS,
        flags=FLAGS,
        age=page.services.state.age(view),
    )


async def group(request: Request, page: Page, view: View) -> Response:
    """One group: progress by topic and queue, clients, configuration, history of its lag."""
    group_state = _group_state(request, view)
    if group_state is None:
        return missing(page, "group", request.path_params["name"])
    key = (group_state.cluster, group_state.name)
    (progress, problems), (connected, silent) = await asyncio.gather(
        progress_of(page, view, group_state), clients_of(page, view, [group_state])
    )
    clients = connected.get(key)
    queues = sorted(progress.offset_table, key=lambda queue: (is_internal(queue.topic), queue_order(queue)))
    names = users_first(list(group_state.topics))[:TOPICS_CHARTED_MAX]
    letters = view.survey.topics.get((group_state.cluster, DLQ_PREFIX + group_state.name))
    series = [(name, Series("group", key[0], topic=name, group=key[1])) for name in names]
    charts = [(name, await asyncio.to_thread(levels_of, page, lag_series)) for name, lag_series in series]
    return page.render(
        "group.html",
        group=group_state,
        queues=[(queue, progress.offset_table[queue]) for queue in queues[:QUEUES_SHOWN_MAX]],
        queue_count=len(queues),
        owners=await _owners(page, group_state.name, clients),
        clients=clients,
        problems=silent | problems,
        charts=[(name, points) for name, points in charts if len(points) > 1],
        out_rate=view.out_rates.get(key),
        badge=badge_of(view, group_state, connected, silent),
        dead=letters.kept if letters is not None else 0,
        topics=[name for name in users_first(list(group_state.topics)) if not is_internal(name)],
        internal_topics=[name for name in users_first(list(group_state.topics)) if is_internal(name)],
        numbers=NUMBERS,
        flags=FLAGS,
        masters={master.name: master.address for master in view.masters if master.cluster == key[0]},
        age=page.services.state.age(view),
    )


async def client(request: Request, page: Page, view: View) -> Response:
    """What one client of a group reports of itself; with `stack`, the stacks of its threads."""
    group_state, name = _group_state(request, view), request.path_params["client"]
    if group_state is None:
        return missing(page, "group", request.path_params["name"])
    stack = request.query_params.get("stack") == "1"
    answers = await within(
        [name], partial(page.services.admin.clients.running_info, group_state.name, jstack=stack), CLIENT_SECONDS
    )
    info = answers[name]
    if isinstance(info, SaturnError):
        raise info
    return page.render(
        "group_client.html",
        group=group_state,
        client=name,
        info=info,
        stack=(info.jstack or "")[:STACK_MAX] if stack else None,
        queues=sorted(info.mq_table.items(), key=lambda item: queue_order(item[0]))[:QUEUES_SHOWN_MAX],
        subscriptions=sorted(info.subscription_set, key=lambda subscription: subscription.topic),
    )


async def put(request: Request, page: Page) -> Response:
    """Create a group on all masters of a cluster, or change its configuration there."""
    form = await request.form()
    cluster, name = str(form.get("cluster", "")), str(form.get("name", "")).strip()
    problem = group_problem(name)
    if problem:
        raise WrongField("name", problem)
    config = config_of(name, form)
    for address in (await page.services.admin.connection.masters(cluster)).values():
        await page.services.admin.groups.put(address, config)
    await page.services.state.refresh()
    return RedirectResponse(_path(cluster, name), 303)


def config_of(name: str, form: FormData) -> SubscriptionGroupConfig:
    """The configuration of a form. Raises ConfigError."""
    numbers = {field: whole(str(form.get(field, "")), field, 0, most) for field, most in NUMBERS.items()}
    flags = {field: form.get(field) == "1" for field in FLAGS}
    return replace(SubscriptionGroupConfig(name), **flags, **numbers)  # type: ignore[arg-type]  # by name


async def delete(request: Request, page: Page) -> Response:
    """Delete a group with its offsets, its retry topic and its dead letters, from the brokers that are chosen.

    The name must be typed once more. NameServers forget the topics once no broker of the cluster has the group.
    """
    form = await request.form()
    cluster, name = str(form.get("cluster", "")), str(form.get("name", ""))
    if str(form.get("confirm", "")) != name:
        raise WrongField("confirm", f"the name typed to confirm is not {name}")
    admin, chosen = page.services.admin, {str(broker_name) for broker_name in form.getlist("broker")}
    masters = await admin.connection.masters(cluster)
    foreign_names = chosen - set(masters)
    if not chosen or foreign_names:
        raise WrongField("broker", f"choose brokers of the cluster {cluster}: {', '.join(masters)}")
    # Broker by broker: an attempt that fails half way can be repeated, a broker without the group deletes it again.
    for broker in sorted(chosen):
        await admin.groups.delete(masters[broker], name, remove_offset=True)
        for topic in admin.groups.topics_of(name):
            await admin.topics.delete_from_brokers(topic, cluster, only=masters[broker])
    if chosen == set(masters):
        for topic in admin.groups.topics_of(name):
            await admin.topics.delete_from_name_servers(topic, cluster)
    await page.services.state.refresh()
    return RedirectResponse("/groups", 303)


async def _owners(page: Page, name: str, clients: ConsumerConnection | None) -> dict[MessageQueue, str]:
    """Client id by queue, as far as the clients say so in time."""
    if clients is None or len(clients.connection_set) > CLIENTS_ASKED_MAX:
        return {}
    ids = [connection.client_id for connection in clients.connection_set]
    answers = await within(ids, lambda number: page.services.admin.clients.running_info(name, number), 0.5)
    infos: dict[str, ConsumerRunningInfo] = {
        number: info for number, info in answers.items() if not isinstance(info, SaturnError)
    }
    return {queue: number for number, info in infos.items() for queue in info.mq_table}


def _group_state(request: Request, view: View) -> GroupState | None:
    return view.survey.groups.get((request.path_params["cluster"], request.path_params["name"]))


def _path(cluster: str, name: str) -> str:
    return f"/groups/{quote(cluster, safe='')}/{quote(name, safe='')}"
