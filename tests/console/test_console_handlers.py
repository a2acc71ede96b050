"""What handlers of forms and pages ask of the administration, call by call, without servers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request

from saturnmq.admin.offsets import TO_THE_END
from saturnmq.console import actions, group_pages, messages, pages, servers
from saturnmq.console.context import Page
from saturnmq.console.forms import WrongField
from saturnmq.console.state import View
from saturnmq.protocol.bodies import MessageQueue, SubscriptionGroupConfig, TopicConfig
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ConfigError, ResponseError

MASTERS = {"a": "h:1", "b": "h:2"}


class Recorded:
    """Stands for Admin: each call of a coroutine is noted by its path; results: path to what it returns or raises."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.results = {"connection.masters": MASTERS, **results}

    def __getattr__(self, name: str) -> Any:
        return Path(self, name)

    def changes(self) -> list[tuple[Any, ...]]:
        """All calls but the question for the masters."""
        return [call for call in self.calls if call[0] != "connection.masters"]


class Path:
    def __init__(self, recorded: Recorded, path: str) -> None:
        self._recorded = recorded
        self._path = path

    def __getattr__(self, name: str) -> Any:
        path = f"{self._path}.{name}"
        result = self._recorded.results.get(path)
        return result if path in self._recorded.results and path != "connection.masters" else Path(self._recorded, path)

    async def __call__(self, *arguments: Any, **options: Any) -> Any:
        self._recorded.calls.append((self._path, *arguments, *([options] if options else ())))
        return self._recorded.results.get(self._path)


class Opened:
    """A page whose templates are not drawn: `render` returns its values."""

    def __init__(self, view: View | None = None, **results: Any) -> None:
        self.admin, self.preview, self.refreshes = Recorded(results), Recorded({}), 0
        self.services = SimpleNamespace(admin=self.admin, preview=self.preview, state=self)
        self._view = view

    async def view(self) -> View | None:
        return self._view

    async def refresh(self) -> None:
        self.refreshes += 1

    def render(self, template: str, **values: Any) -> dict[str, Any]:
        return {"template": template, **values}


def posted(**fields: str | list[str]) -> Request:
    pairs = [(name, text) for name, value in fields.items() for text in ([value] if isinstance(value, str) else value)]

    async def form() -> FormData:
        return FormData(pairs)

    return cast(Request, SimpleNamespace(form=form))


def asked(**query: str) -> Request:
    return cast(Request, SimpleNamespace(query_params=QueryParams(query), path_params={}))


def page_of(opened: Opened) -> Page:
    return cast(Page, opened)


def view_of(**survey: Any) -> View:
    return cast(View, SimpleNamespace(survey=SimpleNamespace(**survey)))


# topics


TOPIC = {"cluster": "C 1", "name": " orders ", "read": "4", "write": "3", "perm": "6"}


@pytest.mark.parametrize(("chosen", "addresses"), [([], ["h:1", "h:2"]), (["b"], ["h:2"])])
async def test_topic_is_put_on_the_chosen_masters_or_all(chosen: list[str], addresses: list[str]) -> None:
    opened = Opened()
    answer = await actions.put_topic(posted(**TOPIC, broker=chosen), page_of(opened))
    assert (answer.status_code, answer.headers["location"]) == (303, "/topics/C%201/orders")
    config = TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=3, perm=6)
    assert opened.admin.changes() == [("topics.update", address, config) for address in addresses]
    assert opened.admin.calls[0] == ("connection.masters", "C 1") and opened.refreshes == 1


async def test_change_of_a_topic_keeps_what_the_form_does_not_have() -> None:
    before = TopicConfig(
        topic_name="orders", read_queue_nums=8, write_queue_nums=8, perm=2, topic_sys_flag=1, order=True
    )
    topics = {("C 1", "orders"): SimpleNamespace(configs={"b": before})}
    opened = Opened(view_of(topics=topics))
    await actions.put_topic(posted(**TOPIC), page_of(opened))
    (_, _, on_a), (_, _, on_b) = opened.admin.changes()
    assert (on_a.topic_sys_flag, on_a.order, on_b.topic_sys_flag, on_b.order) == (0, False, 1, True)
    assert [(config.read_queue_nums, config.write_queue_nums, config.perm) for config in (on_a, on_b)] == [
        (4, 3, 6)
    ] * 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "a b"}, "name"), ({"read": "0"}, "read"), ({"read": "65537"}, "read"), ({"write": "0"}, "write"),
        ({"write": "-1"}, "write"), ({"perm": "1"}, "perm"), ({"perm": "7"}, "perm"), ({"write": "0" * 18 + "1"}, "write"),
    ],
)  # fmt: skip
async def test_topic_out_of_bounds_is_refused(change: dict[str, str], field: str) -> None:
    opened = Opened()
    with pytest.raises(WrongField) as refused:
        await actions.put_topic(posted(**TOPIC | change), page_of(opened))
    assert refused.value.field == field and not opened.admin.changes()


async def test_topic_is_put_on_brokers_of_its_cluster_only() -> None:
    opened = Opened()
    with pytest.raises(ConfigError, match="choose brokers of the cluster C 1: a, b"):
        await actions.put_topic(posted(**TOPIC, broker=["a", "z"]), page_of(opened))
    assert not opened.admin.changes() and not opened.refreshes


async def test_topic_is_forgotten_by_name_servers_if_no_broker_is_chosen() -> None:
    form = {"cluster": "C", "name": "orders", "confirm": "orders"}
    opened = Opened()
    answer = await actions.delete_topic(posted(**form), page_of(opened))
    assert opened.admin.calls == [
        ("topics.delete_from_brokers", "orders", "C", {"only": ""}), ("topics.delete_from_name_servers", "orders", "C"),
    ]  # fmt: skip
    assert (answer.headers["location"], opened.refreshes) == ("/topics", 1)
    one = Opened()
    await actions.delete_topic(posted(**form, only="h:2"), page_of(one))
    assert one.admin.calls == [("topics.delete_from_brokers", "orders", "C", {"only": "h:2"})]
    with pytest.raises(WrongField, match="the name typed to confirm is not orders") as refused:
        await actions.delete_topic(posted(**form | {"confirm": "order"}), page_of(one))
    assert refused.value.field == "confirm" and len(one.admin.calls) == 1


# groups


GROUP = {
    "cluster": "C 1", "name": " g ", "retry_queue_nums": "2", "retry_max_times": "5", "broker_id": "0",
    "which_broker_when_consume_slowly": "1",
}  # fmt: skip


async def test_group_is_put_on_all_masters_with_its_flags() -> None:
    for flag in group_pages.FLAGS:
        opened = Opened()
        answer = await group_pages.put(posted(**GROUP, **{flag: "1"}), page_of(opened))
        assert (answer.headers["location"], opened.refreshes) == ("/groups/C%201/g", 1)
        flags = {name: name == flag for name in group_pages.FLAGS}
        config = SubscriptionGroupConfig("g", retry_queue_nums=2, retry_max_times=5, **flags)  # type: ignore[arg-type]
        assert opened.admin.changes() == [("groups.put", "h:1", config), ("groups.put", "h:2", config)]
    with pytest.raises(WrongField) as refused:
        await group_pages.put(posted(**GROUP | {"name": "a b"}), page_of(opened))
    assert refused.value.field == "name"


@pytest.mark.parametrize("name", group_pages.NUMBERS)
async def test_numbers_of_a_group_are_bounded(name: str) -> None:
    most = group_pages.NUMBERS[name]
    opened = Opened()
    for accepted in (0, most):
        await group_pages.put(posted(**GROUP | {name: str(accepted)}), page_of(opened))
        assert getattr(opened.admin.changes()[-1][2], name) == accepted
    with pytest.raises(WrongField, match=rf"must be a whole number in 0\.\.{most}") as refused:
        await group_pages.put(posted(**GROUP | {name: str(most + 1)}), page_of(opened))
    assert refused.value.field == name


@pytest.mark.spec("CON-06")
async def test_group_leaves_the_chosen_brokers_and_at_last_the_name_servers() -> None:
    def deletion(address: str) -> list[tuple[Any, ...]]:
        topics = [("topics.delete_from_brokers", topic, "C", {"only": address}) for topic in ("%RETRY%g", "%DLQ%g")]
        return [("groups.delete", address, "g", {"remove_offset": True}), *topics]

    names = {"groups.topics_of": lambda name: (f"%RETRY%{name}", f"%DLQ%{name}")}
    form = {"cluster": "C", "name": "g", "confirm": "g"}
    opened = Opened(**names)
    await group_pages.delete(posted(**form, broker=["b"]), page_of(opened))
    assert opened.admin.changes() == deletion("h:2")
    opened = Opened(**names)
    answer = await group_pages.delete(posted(**form, broker=["b", "a"]), page_of(opened))
    forgotten = [("topics.delete_from_name_servers", topic, "C") for topic in ("%RETRY%g", "%DLQ%g")]
    assert opened.admin.changes() == [*deletion("h:1"), *deletion("h:2"), *forgotten]
    assert (answer.headers["location"], opened.refreshes) == ("/groups", 1)


@pytest.mark.parametrize(
    ("confirm", "brokers", "field", "problem"),
    [
        ("x", ["a"], "confirm", "the name typed to confirm is not g"),
        ("g", [], "broker", "choose brokers of the cluster C: a, b"),
        ("g", ["a", "z"], "broker", "choose brokers of the cluster C: a, b"),
    ],
)
async def test_group_is_deleted_only_as_confirmed(confirm: str, brokers: list[str], field: str, problem: str) -> None:
    opened = Opened()
    with pytest.raises(WrongField, match=problem) as refused:
        await group_pages.delete(posted(cluster="C", name="g", confirm=confirm, broker=brokers), page_of(opened))
    assert refused.value.field == field and not opened.admin.changes()


# offsets


@pytest.mark.spec("CON-06")
async def test_brokers_reset_to_a_time_unless_a_queue_was_edited() -> None:
    form = {"cluster": "C 1", "group": "g 1", "topic": "t", "to": "end"}
    opened = Opened()
    answer = await actions.reset(posted(**form, **{"at a/0": " 5", "was a/0": "5"}), page_of(opened))
    assert opened.admin.calls == [("offsets.reset", "g 1", "t", TO_THE_END)], "as it was previewed"
    assert (answer.status_code, answer.headers["location"], opened.refreshes) == (303, "/groups/C%201/g%201", 1)
    queues = {"at a/0": "5", "was a/0": "5", "at b/1": "7", "was b/1": "6"}
    for to in ("end", "+3", "#3"):
        opened = Opened()
        await actions.reset(posted(**form | {"to": to}, **queues), page_of(opened))
        assert opened.admin.calls == [("offsets.set", "g 1", "t", {("a", 0): 5, ("b", 1): 7})]
    opened = Opened()
    await actions.reset(posted(**form | {"to": "-3"}, **{"at a/0": "5", "was a/0": "5"}), page_of(opened))
    assert opened.admin.calls == [("offsets.set", "g 1", "t", {("a", 0): 5})], (
        "a number of messages is set queue by queue"
    )


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (" +3 ", "shift", 3), ("-3", "shift", -3), ("#3", "offset", 3), ("#" + "9" * 18, "offset", 10**18 - 1),
        ("start", "time", 0), ("1969-12-31T23:00", "time", 0), ("2023-11-14T22:13:20Z", "time", 1_700_000_000_000),
    ],
)  # fmt: skip
def test_target_of_a_reset_is_a_time_a_number_of_messages_or_an_offset(text: str, kind: str, value: int) -> None:
    assert actions.reset_target_of(text) == actions.ResetTarget(kind, value)


@pytest.mark.parametrize("text", ["", "+", "#", "++3", "+-3", "#1" + "0" * 18, "3", "+3x"])
def test_other_targets_of_a_reset_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be end, start, or such as"):
        actions.reset_target_of(text)


# NameServers and messages


@pytest.mark.parametrize(
    ("boxes", "options"),
    [
        ({}, {"vip_channel": False, "tls": False}),
        ({"vip_channel": "1"}, {"vip_channel": True, "tls": False}),
        ({"tls": "1"}, {"vip_channel": False, "tls": True}),
    ],
)
async def test_other_name_servers_serve_changes_and_previews(boxes: dict[str, str], options: dict[str, bool]) -> None:
    opened = Opened()
    answer = await servers.switch(posted(addresses=f" {'h' * 2000} ", **boxes), page_of(opened))
    switched = [("connection.switch", "h" * 2000, options)]
    assert opened.admin.calls == opened.preview.calls == switched
    assert (answer.headers["location"], opened.refreshes) == ("/name-servers", 1)


@pytest.mark.parametrize(("addresses", "count"), [(" ", 0), ("h" * 2001, 2001)])
async def test_addresses_of_name_servers_are_bounded(addresses: str, count: int) -> None:
    opened = Opened()
    with pytest.raises(WrongField, match=f"the addresses have {count} characters, 1 to 2000 are allowed") as refused:
        await servers.switch(posted(addresses=addresses), page_of(opened))
    assert refused.value.field == "addresses" and not opened.admin.calls


async def test_page_of_messages_opens_its_form_to_send_on_request() -> None:
    for query, is_sending, is_searched in (
        ({}, False, False),
        ({"send": "1"}, True, False),
        ({"key": "k"}, False, True),
    ):
        values = cast(Any, await messages.search(asked(**query), page_of(Opened())))
        assert (values["sending"], values["searched"], values["names"]) == (is_sending, is_searched, [])
    answer = await messages.search(asked(topic="a b", id="7/F"), page_of(Opened()))
    assert (answer.status_code, answer.headers["location"]) == (303, "/messages/a%20b/7%2FF")


@pytest.mark.parametrize(
    ("queue", "offset", "is_by_offset"),
    [
        ("0", "0", True), ("999999", "9" * 18, True), ("1000000", "5", False), ("3", "1" + "0" * 18, False), ("", "5", False),
        ("3", "", False), ("-1", "5", False),
    ],
)  # fmt: skip
async def test_message_is_read_at_the_offset_of_its_link_else_by_its_id(
    queue: str, offset: str, is_by_offset: bool
) -> None:
    opened = Opened()
    opened.request = asked(broker="a", queue=queue, offset=offset)  # type: ignore[attr-defined]
    if is_by_offset:
        with pytest.raises(ResponseError, match=f"queue {queue} has no message at {offset}") as caught:
            await messages.message_of(page_of(opened), "orders", "7F")
        assert caught.value.code == ResponseCode.NO_MESSAGE
        where = MessageQueue("orders", "a", int(queue))
        assert opened.admin.calls == [("messages.by_queue_offset", where, int(offset))]
    else:
        await messages.message_of(page_of(opened), "orders", "7F")
        assert opened.admin.calls == [("messages.view", "orders", "7F")]


def test_link_of_a_message_has_its_offset_if_the_broker_is_known() -> None:
    assert messages.link("a b", "7/F", MessageQueue("a b", "", 3), 5) == "/messages/a%20b/7%2FF"
    where = "broker=b+0&queue=3&offset=5"
    assert messages.link("t", "7F", MessageQueue("t", "b 0", 3), 5) == f"/messages/t/7F?{where}"


async def test_page_of_a_topic_shows_the_200_groups_that_lag_most() -> None:
    groups = {
        number: SimpleNamespace(
            cluster="C" if number else "D", topics={"orders" if number != 1 else "x": SimpleNamespace(lag=number)}
        )
        for number in range(300)
    }
    topics = {("C", "orders"): SimpleNamespace(name="orders", cluster="C", configs={})}
    view = cast(Any, view_of(topics=topics, groups=groups))
    view.masters, view.in_rates = [], {}
    opened = Opened()
    opened.services.history = None
    opened.age = lambda view: 0  # type: ignore[attr-defined]
    opened.gettext = lambda text: text  # type: ignore[attr-defined]
    request = cast(Request, SimpleNamespace(query_params=QueryParams(), path_params={"cluster": "C", "name": "orders"}))
    values = cast(Any, await pages.topic(request, page_of(opened), view))
    assert [group.topics["orders"].lag for group in values["consumers"]] == list(range(299, 99, -1))
