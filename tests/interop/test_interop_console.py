"""The console's pages and changes over HTTP, against Apache's NameServer and broker and against ours."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import saturn
from peers import Peer

import saturnmq.sync
from saturnmq.admin.sync import Admin

pytestmark = [pytest.mark.interop_full, pytest.mark.timeout(300)]

CLUSTER = "DefaultCluster"
WITHIN_S = 30.0
GROUP = {
    "cluster": CLUSTER, "retry_queue_nums": "1", "retry_max_times": "16", "broker_id": "0",
    "which_broker_when_consume_slowly": "1", "consume_enable": "1", "consume_from_min_enable": "1",
}  # fmt: skip
_numbers = itertools.count()


@dataclass
class Site:
    """A console that an operator is logged in to."""

    browser: httpx.Client

    def page(self, path: str, status: int = 200, **query: str) -> str:
        answer = self.browser.get(path, params=query or None)
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return answer.text

    def until(self, path: str, pattern: str, **query: str) -> re.Match[str]:
        """The first match in a page, asked for again until it has one: surveys and indexes follow the broker."""
        deadline = time.monotonic() + WITHIN_S
        while (found := re.search(pattern, text := self.page(path, **query), re.S)) is None:
            assert time.monotonic() < deadline, f"{path} has no {pattern!r} after {WITHIN_S} s:\n{text}"
        return found

    def change(self, path: str, status: int = 303, **fields: Any) -> httpx.Response:
        token = re.search(r'name="csrf" value="([^"]+)"', self.page("/topics"))
        assert token is not None
        answer = self.browser.post(path, data={"csrf": token[1], **fields})
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return answer


@pytest.fixture
def site(peer: Peer, tmp_path: Path) -> Iterator[Site]:
    words = ["console", "-n", peer.name_servers, "--port", "0", "--folder", str(tmp_path / "console")]
    server = saturn.start_process("console", words)
    try:
        url = server.wait_for_line(r" url=(\S+)", WITHIN_S)[1]
        password = server.wait_for_line(r"password (\S+) ", WITHIN_S)[1]
        with httpx.Client(base_url=url, timeout=WITHIN_S) as browser:
            browser.post("/login", data={"user": "admin", "password": password})
            found = Site(browser)
            found.until("/brokers", r"broker-a|<td>\S+</td>")
            yield found
    finally:
        server.stop()


@pytest.fixture
def client(peer: Peer) -> Iterator[saturnmq.sync.Client]:
    with saturnmq.sync.Client.from_url(f"rmq://{peer.name_servers}") as client:
        yield client


@pytest.fixture
def admin(peer: Peer) -> Iterator[Admin]:
    with Admin(peer.name_servers) as admin:
        yield admin


@pytest.fixture
def name() -> str:
    return f"console-{next(_numbers)}"


@pytest.mark.spec("CON-02", "CON-04")
def test_overview_and_brokers(site: Site, peer: Peer) -> None:
    assert "No problems." in site.until("/", "No problems.").string
    # Apache's broker has no rates in its first seconds
    row = site.until("/brokers", rf"<tr>\s*<td[^>]*>{CLUSTER}</td>.*?%</td>\s*<td class=\"n\">[\d.,]+</td>.*?</tr>")[0]
    assert peer.broker_address in row and "online" in row and "V4_9_7" in row
    cells = re.findall(r'<td class="n">(.*?)</td>', row)
    assert re.fullmatch(r"\d+\.\d %", cells[0]), cells
    assert all(re.fullmatch(r"[\d.,]+", cell.strip()) for cell in cells[1:]), cells
    assert "commitLogMaxOffset" in site.page(f"/brokers/{peer.broker_address}")
    settings = site.page(f"/brokers/{peer.broker_address}/settings", q="flushDiskType")
    assert "flushDiskType" in settings and "ASYNC_FLUSH" in settings
    assert peer.name_servers in site.page("/name-servers")


@pytest.mark.spec("CON-05", "UX-16")
def test_topic_is_created_changed_and_deleted(site: Site, admin: Admin, name: str, peer: Peer) -> None:
    form = {"cluster": CLUSTER, "name": name, "read": "3", "write": "3", "perm": "6"}
    made = site.change("/do/topic", **form).headers["location"]
    assert made == f"/topics/{CLUSTER}/{name}" and "Queues: 3" in site.page(made)
    site.change("/do/topic", **form | {"write": "2", "perm": "4"})
    config = admin.topics.configuration(peer.broker_address, name)
    assert config is not None and (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 2, 4)
    assert name in site.page("/topics", q=name)
    site.change("/do/topic/delete", cluster=CLUSTER, name=name, confirm=name)
    assert f">{name}<" not in site.page("/topics", q=name)
    site.page(made, 404)


@pytest.mark.spec("CON-06")
def test_group_is_created_changed_and_deleted(site: Site, admin: Admin, name: str, peer: Peer) -> None:
    path = site.change("/do/group", name=name, **GROUP).headers["location"]
    site.change("/do/group", name=name, **GROUP | {"retry_max_times": "5", "consume_enable": ""})
    config = admin.groups.all_on(peer.broker_address)[name]
    assert (config.retry_max_times, config.consume_enable) == (5, False)
    page = site.page(path)
    assert 'name="retry_max_times" type="number" min="0" max="10000" value="5"' in page
    brokers = re.findall(r'name="broker" value="([^"]+)"', page)
    site.change("/do/group/delete", cluster=CLUSTER, name=name, confirm=name, broker=brokers)
    assert f">{name}<" not in site.page("/groups", q=name)
    site.page(path, 404)


@pytest.mark.spec("CON-09")
def test_message_is_sent_and_found_by_id_key_and_time(site: Site, name: str) -> None:
    site.change("/do/topic", cluster=CLUSTER, name=name, read="1", write="1", perm="6")
    body = '{"amount": 7}'
    sent = site.change(
        "/do/message", topic=name, tag="paid", keys="k-1 k-2", body=body, properties="level = gold", level="0"
    ).headers["location"]
    shown = site.page(sent)
    assert "&#34;amount&#34;: 7" in shown and "level" in shown and "gold" in shown and "paid" in shown
    message_id = re.fullmatch(rf"/messages/{name}/([0-9A-F]{{32}})\?.*", sent)
    assert message_id is not None
    by_id = site.page("/messages", 303, topic=name, id=message_id[1])
    assert not by_id
    site.until(f"/messages/{name}/{message_id[1]}", "&#34;amount&#34;: 7")
    found = site.until(
        "/messages", rf'href="(/messages/{name}/[^"]+)".*?<td>paid</td><td>k-1 k-2</td>', topic=name, key="k-2"
    )
    assert message_id[1] in found[1]
    assert "No message was found." in site.page("/messages", topic=name, key="other")
    for condition, count in (
        ({"tag": "paid"}, 1),
        ({"tag": "x"}, 0),
        ({"json": "amount=7"}, 1),
        ({"property": "level=x"}, 0),
    ):
        job = site.change("/do/search", topic=name, **{"from": "1h", "to": "end"}, **condition).headers["location"]
        page = site.until(job, "complete, [01] messages read").string
        assert page.count('class="begin"') == count, (condition, page)
    assert site.browser.get(sent.replace("?", "/download?"), params={"form": "body"}).status_code == 200


@pytest.mark.spec("CON-09")
def test_delayed_message_arrives_after_its_level(site: Site, client: saturnmq.sync.Client, name: str) -> None:
    site.change("/do/topic", cluster=CLUSTER, name=name, read="1", write="1", perm="6")
    site.change("/do/message", topic=name, body="later", level="1")
    with client.consumer(f"{name}-g", start="first") as inbox:
        inbox.subscribe(name)
        message = inbox.recv(30)
        assert message.body == b"later" and message.record.store_timestamp_ms - message.record.born_timestamp_ms >= 900
        message.ack()


@pytest.mark.spec("CON-06", "CON-08")
def test_group_shows_its_lag_and_offsets_are_reset(site: Site, client: saturnmq.sync.Client, name: str) -> None:
    group = f"{name}-g"
    site.change("/do/topic", cluster=CLUSTER, name=name, read="1", write="1", perm="6")
    with client.producer("p") as out, client.consumer(group, start="first") as inbox:
        inbox.subscribe(name)
        out.send_many(name, [b"x"] * 9)
        for _ in range(9):
            inbox.recv(30).ack()
        row = site.until("/groups", rf">{group}</a>.*?</tr>", q=group)[0]
        assert ">clustering<" in row and ">push<" in row
        connected = site.until(f"/groups/{CLUSTER}/{group}", r"/clients/[^\"]+")[0]
        assert "PROP_CLIENT_VERSION" in site.page(f"/groups/{CLUSTER}/{group}{connected}")
    path = f"/groups/{CLUSTER}/{group}"
    site.until(path, rf"<td>{name}</td><td[^>]*>\S+</td><td[^>]*>0</td><td[^>]*>9</td><td[^>]*>9</td><td[^>]*>0</td>")
    ((where, at),) = re.findall(r'name="at ([^"]+)" value="(\d+)"', site.page(f"{path}/reset", topic=name, to="-4"))
    assert at == "5"
    site.until(path, "No client is connected")
    fields = {"cluster": CLUSTER, "group": group, "topic": name, f"at {where}": "5", f"was {where}": "5"}
    site.change("/do/group/reset", to="-4", **fields)
    site.until(path, rf"<td>{name}</td><td[^>]*>\S+</td><td[^>]*>0</td><td[^>]*>9</td><td[^>]*>5</td><td[^>]*>4</td>")
    assert re.search(rf">{group}</a>.*?<td class=\"n\">4</td>", site.page("/groups", q=group), re.S)
    site.change("/do/group/reset", cluster=CLUSTER, group=group, topic=name, to="start")
    site.until(path, rf"<td>{name}</td><td[^>]*>\S+</td><td[^>]*>0</td><td[^>]*>9</td><td[^>]*>0</td><td[^>]*>9</td>")


@pytest.mark.spec("CON-11")
def test_dead_letters_are_listed_exported_and_resent(site: Site, client: saturnmq.sync.Client, name: str) -> None:
    group = f"{name}-g"
    site.change("/do/topic", cluster=CLUSTER, name=name, read="1", write="1", perm="6")
    with client.producer("p") as out, client.consumer(group, start="first") as inbox:
        inbox.subscribe(name)
        for number in range(2):
            out.send(name, f"dead {number}".encode(), keys=[f"k-{number}"])
            inbox.recv(30).reject()
        page = site.until(f"/dead-letters/{group}", "2 in all").string
        assert name in page and "k-1" in page
        places = re.findall(r'name="at" value="([^"]+)"', page)
        exported = site.page(f"/dead-letters/{group}/export/csv")
        assert "dead 0" in exported and "dead 1" in exported
        site.until("/dead-letters", rf">{group}</a>")
    done = site.change("/do/dead-letters/resend", 200, group=group, at=places[:1]).text
    assert f"sent to %RETRY%{group}" in done or "CR_SUCCESS" in done, done
    with client.consumer(group) as inbox:
        inbox.subscribe(name)
        message = inbox.recv(30)
        assert message.body.startswith(b"dead ") and message.topic == name
        message.ack()
