"""Bounds of what a form may carry: what is beyond them is refused beside its field, what is at them is accepted."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.datastructures import FormData
from starlette.requests import Request

from saturnmq.console import accounts, messages
from saturnmq.console.actions import queue_of, reset, whole_offset
from saturnmq.console.context import Page
from saturnmq.console.dead_letters import resend
from saturnmq.console.forms import WrongField
from saturnmq.console.search import range_of, topic_of
from saturnmq.protocol.errors import ConfigError

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
PAGE = cast(Page, None)


def posted(*fields: tuple[str, str]) -> Request:
    async def form() -> FormData:
        return FormData(list(fields))

    return cast(Request, SimpleNamespace(form=form))


def lines_of(text: str) -> list[str]:
    return accounts._lines(FormData({"white": text}), "white")


def test_lists_of_an_account_have_1000_lines_of_one_entry() -> None:
    assert lines_of(" 10.0.0.1 \n\n \r\n10.0.0.2\n") == ["10.0.0.1", "10.0.0.2"]
    assert len(lines_of("a\n" * 1000)) == 1000
    with pytest.raises(WrongField, match="white has 1001 lines, at most 1000 are allowed") as refused:
        lines_of("a\n" * 1001)
    assert refused.value.field == "white"
    with pytest.raises(WrongField, match=r"'10\.0\.0\.1,10\.0\.0\.2' holds a comma; write one a line") as refused:
        lines_of("10.0.0.0\n10.0.0.1,10.0.0.2")
    assert refused.value.field == "white"


def test_texts_of_an_account_have_1000_characters() -> None:
    assert accounts._text(FormData({"secret": f" {'x' * 1000} "}), "secret") == "x" * 1000
    with pytest.raises(WrongField, match="secret has 1001 characters, at most 1000") as refused:
        accounts._text(FormData({"secret": "x" * 1001}), "secret")
    assert refused.value.field == "secret"


@pytest.mark.parametrize(
    ("line", "problem"),
    [("=PUB", "must be such as name=PUB"), ("PUB", "must be such as"), ("t=ALL", "permission 'ALL'")],
)
def test_permission_of_an_account_has_a_name_and_a_right(line: str, problem: str) -> None:
    form = FormData({"topic_permissions": "a=b=PUB\norders = PUB|SUB"})
    assert accounts._permissions(form, "topic_permissions") == ["a=b=PUB", "orders = PUB|SUB"]
    with pytest.raises(ConfigError, match=problem):
        accounts._permissions(FormData({"topic_permissions": f"orders=PUB\n{line}"}), "topic_permissions")


async def test_account_needs_a_name_and_its_deletion_the_same_once_more() -> None:
    with pytest.raises(WrongField, match="the access key is empty") as refused:
        await accounts.put(posted(("access_key", "  ")), PAGE)
    assert refused.value.field == "access_key"
    for typed in (("", ""), ("app", ""), ("app", "App")):
        with pytest.raises(WrongField, match="typed to confirm is not") as refused:
            await accounts.delete(posted(("access_key", typed[0]), ("confirm", typed[1])), PAGE)
        assert refused.value.field == "confirm"


@pytest.mark.parametrize(("body", "size"), [("", 0), ("x" * (256 * 1024 + 1), 262_145), ("\u00e4" * 131_073, 262_146)])
async def test_body_of_a_test_message_has_1_byte_to_256_kib(body: str, size: int) -> None:
    sizes = []

    async def send(topic: str, message: bytes, **options: Any) -> None:
        sizes.append(len(message))

    page = cast(
        Page, SimpleNamespace(services=SimpleNamespace(admin=SimpleNamespace(messages=SimpleNamespace(send=send))))
    )
    with pytest.raises(WrongField, match=f"the body has {size} bytes; it must have 1 to 262144") as refused:
        await messages.send(posted(("topic", "orders"), ("body", body)), page)
    assert refused.value.field == "body" and not sizes
    for accepted in ("x", "x" * 262_144):
        answer = await messages.send(posted(("topic", "orders"), ("body", accepted)), page)
        assert (answer.status_code, answer.headers["location"]) == (303, "/messages"), (
            "no receipt: sent without a reply"
        )
    assert sizes == [1, 262_144]


def test_test_message_has_50_properties() -> None:
    lines = [f"p{number} = a=b " for number in range(50)]
    properties = messages.properties_of("\n\n".join(lines))
    assert properties == {f"p{number}": "a=b" for number in range(50)}
    with pytest.raises(WrongField, match="51 properties are given; at most 50 may be") as refused:
        messages.properties_of("\n".join([*lines, "p50=x"]))
    assert refused.value.field == "properties"
    for line in ("name", "=value", " =value"):
        with pytest.raises(WrongField, match="must be such as name=value"):
            messages.properties_of(line)


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        ("", "", (NOW_MS - HOUR_MS, NOW_MS)),
        ("2h", " end ", (NOW_MS - 2 * HOUR_MS, NOW_MS)),
        ("1h", "1h", (NOW_MS - HOUR_MS, NOW_MS - HOUR_MS)),
        ("start", "30m", (0, NOW_MS - HOUR_MS // 2)),
        ("100000d", "", (0, NOW_MS)),
        ("2023-11-14T00:00", "2023-11-14T01:00+01:00", (1_699_920_000_000, 1_699_920_000_000)),
    ],
)
def test_range_of_a_search_is_given_by_ages_or_times(begin: str, end: str, expected: tuple[int, int]) -> None:
    assert range_of(begin, end, NOW_MS) == expected


@pytest.mark.parametrize(
    ("begin", "end", "field", "problem"),
    [
        ("1h", "2h", "from", "the range begins at '1h', after its end '2h'"),
        ("noon", "", "from", "time 'noon' must be"),
        ("", "noon", "to", "time 'noon' must be"),
    ],
)
def test_wrong_range_of_a_search_names_its_field(begin: str, end: str, field: str, problem: str) -> None:
    with pytest.raises(WrongField, match=problem) as refused:
        range_of(begin, end, NOW_MS)
    assert refused.value.field == field


@pytest.mark.parametrize(("topic", "is_accepted"), [
    (" orders ", True), ("%RETRY%" + "x" * 248, True), ("%RETRY%" + "x" * 249, False), ("a b", False), ("", False),
])  # fmt: skip
def test_search_reads_ordinary_topics_and_those_of_groups(topic: str, is_accepted: bool) -> None:
    if is_accepted:
        assert topic_of(topic) == topic.strip()
    else:
        with pytest.raises(WrongField) as refused:
            topic_of(topic)
        assert refused.value.field == "topic"


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (queue_of, "a/b/3", ("a/b", 3)), (queue_of, "a/999999", ("a", 999_999)), (queue_of, "a/1000000", None),
        (queue_of, "/3", None), (queue_of, "a/-1", None), (queue_of, "a", None),
        (whole_offset, " 7 ", 7), (whole_offset, "9" * 18, 10**18 - 1), (whole_offset, "1" + "0" * 18, None),
        (whole_offset, "-1", None), (whole_offset, "", None),
    ],
)  # fmt: skip
def test_queue_and_offset_of_a_reset(parse: Callable[[str], Any], text: str, expected: Any) -> None:
    if expected is None:
        with pytest.raises(ConfigError):
            parse(text)
    else:
        assert parse(text) == expected


async def test_reset_to_an_offset_needs_the_queues_of_its_preview() -> None:
    with pytest.raises(ConfigError, match="the form has no queues; look at the preview again"):
        await reset(posted(("group", "g"), ("topic", "t"), ("to", "#5")), PAGE)
    with pytest.raises(WrongField, match="offset 'x' must be a whole number") as refused:
        await reset(posted(("to", "#5"), ("at a/0", "x")), PAGE)
    assert refused.value.field == "at a/0"


@pytest.mark.parametrize("count", [0, 51])
async def test_dead_letters_to_resend_are_those_of_a_page(count: int) -> None:
    letters = [("at", f"broker-a/0/{offset}") for offset in range(count)]
    with pytest.raises(ConfigError, match=f"{count} messages are selected; select 1 to 50"):
        await resend(posted(("group", "g"), *letters), PAGE)
