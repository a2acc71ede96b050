"""What the console changes, over `saturnmq.admin`; each is a form with the token of the session and a line in the audit log.

Requirements: CON-05, CON-06, UX-16.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from saturnmq.admin.offsets import TO_THE_END, Position, Rollback
from saturnmq.console.context import Page
from saturnmq.console.forms import WrongField
from saturnmq.protocol.bodies import TopicConfig
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.names import topic_problem

QUEUES_MAX: Final = 65_536
ROWS_MAX: Final = 1000


async def put_topic(request: Request, page: Page) -> Response:
    """Create a topic on masters of a cluster, or change its queues and permission there; on all if none is chosen."""
    form = await request.form()
    cluster, name = str(form.get("cluster", "")), str(form.get("name", "")).strip()
    problem = topic_problem(name)
    if problem:
        raise WrongField("name", problem)
    read, write = (whole(str(form.get(field, "")), field, 1, QUEUES_MAX) for field in ("read", "write"))
    perm = whole(str(form.get("perm", "")), "perm", 2, 6)
    admin, chosen = page.services.admin, {str(broker_name) for broker_name in form.getlist("broker")}
    masters = await admin.connection.masters(cluster)
    if chosen - set(masters):
        raise ConfigError(f"choose brokers of the cluster {cluster}: {', '.join(masters)}")
    view = await page.services.state.view()
    topic_state = view.survey.topics.get((cluster, name)) if view is not None else None
    for broker in chosen or masters:
        before = topic_state.configs.get(broker) if topic_state is not None else None
        config = replace(
            before or TopicConfig(topic_name=name), read_queue_nums=read, write_queue_nums=write, perm=perm
        )
        await admin.topics.update(masters[broker], config)
    await page.services.state.refresh()
    return RedirectResponse(f"/topics/{quote(cluster, safe='')}/{quote(name, safe='')}", 303)


async def delete_topic(request: Request, page: Page) -> Response:
    """Delete a topic from a cluster, or from the master whose address is `only`; its name must be typed once more."""
    form = await request.form()
    cluster, name = str(form.get("cluster", "")), str(form.get("name", ""))
    if str(form.get("confirm", "")) != name:
        raise WrongField("confirm", f"the name typed to confirm is not {name}")
    admin = page.services.admin
    only = str(form.get("only", ""))
    await admin.topics.delete_from_brokers(name, cluster, only=only)
    if not only:
        await admin.topics.delete_from_name_servers(name, cluster)
    await page.services.state.refresh()
    return RedirectResponse("/topics", 303)


def whole(text: str, field_name: str, low: int, high: int) -> int:
    """A whole number of a form. Raises ConfigError naming the field and its range."""
    if not text.isdecimal() or len(text) > 18 or not low <= int(text) <= high:
        raise WrongField(field_name, f"{field_name} {text!r:.40} must be a whole number in {low}..{high}")
    return int(text)


@dataclass(frozen=True)
class ResetTarget:
    """Where a group shall go: to a time (Unix ms, TO_THE_END), by a number of messages, or to an offset of each queue."""

    kind: str
    value: int

    def of(self, position: Position) -> int:
        """The offset in a queue, for a kind without time."""
        target = position.committed + self.value if self.kind == "shift" else self.value
        return min(max(target, position.first), position.end)


@dataclass(frozen=True)
class Preview:
    """One queue of a preview."""

    broker: str
    queue: int
    first: int | None
    end: int
    committed: int
    chosen: int


def reset_target_of(text: str) -> ResetTarget:
    """The target of a form: `end`, `start`, a time, `+N` or `-N` messages, or an offset. Raises ConfigError."""
    target = text.strip()
    digits = target.lstrip("+-#")
    if target[:1] in ("+", "-", "#") and digits.isdecimal() and len(digits) <= 18 and len(target) == len(digits) + 1:
        number = int(digits) * (-1 if target[0] == "-" else 1)
        return ResetTarget("offset" if target[0] == "#" else "shift", number)
    return ResetTarget("time", moment(target))


async def preview_reset(request: Request, page: Page) -> Response:
    """What a reset of offsets would do to each queue; nothing is changed."""
    query = request.query_params
    cluster, group = request.path_params["cluster"], request.path_params["name"]
    topic, text = query.get("topic", ""), query.get("to", "")
    try:
        target = reset_target_of(text)
    except ConfigError as error:
        raise WrongField("to", error.message) from None
    rows = await previews(page, group, topic, target)
    if len(rows) > ROWS_MAX and target.kind != "time":
        raise ConfigError(
            f"{topic} has {len(rows)} queues; offsets of at most {ROWS_MAX} can be edited here; reset to a time"
        )
    return page.render(
        "reset.html", cluster=cluster, group=group, topic=topic, to=text, rows=rows[:ROWS_MAX], count=len(rows)
    )


async def previews(page: Page, group: str, topic: str, target: ResetTarget) -> list[Preview]:
    """What would become of each queue."""
    offsets = page.services.preview.offsets
    if target.kind == "time":
        applied = await offsets.reset(group, topic, target.value)
        rows = [rollback for rollback in applied if isinstance(rollback, Rollback)]
        return [
            Preview(
                rollback.queue.broker_name,
                rollback.queue.queue_id,
                None,
                rollback.broker_offset,
                rollback.consumer_offset,
                rollback.chosen,
            )
            for rollback in rows
        ]
    return [
        Preview(
            position.queue.broker_name,
            position.queue.queue_id,
            position.first,
            position.end,
            position.committed,
            target.of(position),
        )
        for position in await offsets.positions(group, topic)
    ]


async def reset(request: Request, page: Page) -> Response:
    """Reset the offsets of a group in a topic: to a time, or to the offset of each queue as the preview was edited."""
    form = await request.form()
    cluster, group, topic = (str(form.get(name, "")) for name in ("cluster", "group", "topic"))
    target = reset_target_of(str(form.get("to", "")))
    chosen: dict[tuple[str, int], int] = {}
    edited = False
    for name, value in form.multi_items():
        kind, _, where = name.partition(" ")
        if kind == "at":
            try:
                chosen[queue_of(where)] = whole_offset(str(value))
            except ConfigError as error:
                raise WrongField(name, error.message) from None
            edited = edited or str(form.get(f"was {where}", "")) != str(value).strip()
    # A time is reset by the brokers, also while clients are connected; offsets of queues only while none is.
    if target.kind == "time" and not edited:
        await page.services.admin.offsets.reset(group, topic, target.value)
    elif not chosen:
        raise ConfigError("the form has no queues; look at the preview again")
    else:
        await page.services.admin.offsets.set(group, topic, chosen)
    await page.services.state.refresh()
    return RedirectResponse(f"/groups/{quote(cluster, safe='')}/{quote(group, safe='')}", 303)


def queue_of(text: str) -> tuple[str, int]:
    """Broker name and id of a field such as broker-a/3. Raises ConfigError."""
    broker, _, number = text.rpartition("/")
    if not broker or not number.isdecimal() or len(number) > 6:
        raise ConfigError(f"queue {text!r:.100} must be such as broker-a/3")
    return broker, int(number)


def whole_offset(text: str) -> int:
    """An offset of a form. Raises ConfigError."""
    if not text.strip().isdecimal() or len(text.strip()) > 18:
        raise ConfigError(f"offset {text!r:.40} must be a whole number, at least 0")
    return int(text)


def moment(text: str) -> int:
    """A time of a form, Unix ms: `end`, `start`, or an ISO time, in UTC if it has no zone. Raises ConfigError."""
    time_text = text.strip()
    if time_text in ("end", "start"):
        return TO_THE_END if time_text == "end" else 0
    try:
        time = datetime.fromisoformat(time_text)
    except ValueError:
        raise ConfigError(f"time {time_text!r:.40} must be end, start, or such as 2026-11-23T08:00") from None
    return max(int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000), 0)
