"""Follows the runbooks of docs/runbooks.md, command by command, on a NameServer and brokers of one cluster in this process."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Final

import saturnmq.sync
from saturnmq.broker import Broker, BrokerSettings
from saturnmq.cli.settings import read_properties
from saturnmq.config.settings import load
from saturnmq.errors import ClientError
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings
from saturnmq.store import StoreProfile, StoreSettings
from saturnmq.testing.loop_thread import FixtureLoopThread

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "runbooks.md"
HOST: Final = "127.0.0.1"
SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.02
COPIED: Final = ("topics.json", "subscriptionGroup.json")
# A client that follows routes and commits offsets at once, so that no test waits for its periods.
FAST: Final = {"route_poll_ms": 50, "persist_offsets_ms": 50, "rebalance_ms": 200, "heartbeat_ms": 200}


def until(condition: Callable[[], Any], why: Callable[[], object]) -> Any:
    """Poll until a condition holds, for 30 s at most; returns its value. The servers have threads of their own."""
    deadline = time.monotonic() + SECONDS_MAX
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {SECONDS_MAX:.0f} s: {why()}"
        time.sleep(POLL_SECONDS)  # poll
    return value


class Servers:
    """A NameServer and brokers `broker-a`, `broker-b`, ... of DefaultCluster on a thread; each broker has a file `broker.conf`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.thread = FixtureLoopThread("runbooks")
        self.brokers: dict[str, Broker] = {}
        self._ports: dict[str, int] = {}
        self._namesrv = NameServer(
            NameServerSettings(
                kv_config_path=str(folder / "kvConfig.json"), config_store_path=str(folder / "namesrv.properties")
            ),
            NetSettings(),
        )
        self.name_servers = ""

    @property
    def url(self) -> str:
        return f"rmq://{self.name_servers}"

    def __enter__(self) -> Servers:
        self.thread.start()
        host, port = self.thread.call(self._namesrv.start(HOST, 0))
        self.name_servers = f"{host}:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for name in list(self.brokers):
                self.stop(name)
            self.thread.call(self._namesrv.stop())
        finally:
            self.thread.stop()

    def store(self, name: str) -> Path:
        """The folder of a broker's store."""
        return self.folder / name / "store"

    def start(self, name: str) -> None:
        """Start a broker with its file; after `stop` it has the same port and store."""
        path = self.folder / name / "broker.conf"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                f"brokerName={name}\nnamesrvAddr={self.name_servers}\nautoCreateTopicEnable=false\nfastPortEnable=false\n"
                "haPortEnable=false\n"
            )
        settings = load(BrokerSettings, (str(path), read_properties(path))).settings
        settings = dataclasses.replace(settings, bind_address=HOST, listen_port=self._ports.get(name, 0))
        store = StoreSettings(store_path_root_dir=str(self.store(name)), profile=StoreProfile.SMALL)
        broker = self.thread.call(self._started(settings, store, path))
        self.brokers[name] = broker
        self._ports[name] = int(broker.address.rpartition(":")[2])

    async def _started(self, settings: BrokerSettings, store: StoreSettings, path: Path) -> Broker:
        broker = Broker(settings, store, NetSettings(), config_file=path)
        await broker.start()
        return broker

    def stop(self, name: str) -> None:
        """Stop a broker as SIGTERM does."""
        self.thread.call(self.brokers.pop(name).stop())

    def copy_metadata(self, source: str, target: str) -> None:
        """Copy topics and groups of a running broker into the store of one that has not been started."""
        config = self.store(target) / "config"
        config.mkdir(parents=True)
        for file in COPIED:
            shutil.copy(self.store(source) / "config" / file, config / file)


class Live:
    """A producer that sends and a consumer that acknowledges, until `stop`; errors of sends are kept."""

    def __init__(self, url: str, topic: str, group: str) -> None:
        self.topic = topic
        self.sent: dict[str, str] = {}  # broker by message body
        self.consumed: dict[str, int] = {}  # count by message body
        self.errors: list[ClientError] = []
        self.client = saturnmq.sync.Client.from_url(url, **FAST)
        self.client.start()
        self.producer = self.client.producer(f"{group}-p")
        self.producer.start()
        self.inbox = self.client.consumer(group, start="first")
        self.inbox.subscribe(topic)
        self.inbox.start()
        self._stopping = threading.Event()
        self._sender = threading.Thread(target=self._send)
        self._reader = threading.Thread(target=self._read)
        self._sender.start()
        self._reader.start()

    def _send(self) -> None:
        number = 0
        while not self._stopping.wait(POLL_SECONDS):
            body = str(number)
            number += 1
            try:
                self.sent[body] = self.producer.send(self.topic, body.encode()).queue.broker_name
            except ClientError as error:
                self.errors.append(error)

    def _read(self) -> None:
        for message in self.inbox:
            body = message.body.decode()
            self.consumed[body] = self.consumed.get(body, 0) + 1
            message.ack()

    def sent_to(self, broker: str) -> int:
        """How many messages a broker has acknowledged."""
        return list(self.sent.values()).count(broker)

    def grows(self, broker: str) -> None:
        """Wait until the broker has acknowledged three more messages."""
        before = self.sent_to(broker)
        until(lambda: self.sent_to(broker) >= before + 3, lambda: (broker, before, self.errors[-1:]))

    def spared(self, broker: str, other: str) -> None:
        """Wait until nothing is sent to a broker any longer: ten messages in a row went to the other one."""

        def last_ten() -> set[str]:
            return set(list(self.sent.values())[-10:])

        until(lambda: last_ten() == {other}, lambda: (broker, last_ten()))

    def refused(self) -> None:
        """Wait until a send fails."""
        until(lambda: self.errors, lambda: "no send failed")

    def stop_sending(self) -> None:
        """End the producer."""
        self._stopping.set()
        self._sender.join(SECONDS_MAX)

    def stop(self) -> None:
        """End both. Every message that was acknowledged has been consumed by then."""
        self.stop_sending()
        try:
            missing = lambda: set(self.sent) - set(self.consumed)  # noqa: E731
            until(lambda: not missing(), missing)
        finally:
            self.close()

    def close(self) -> None:
        """Stop the clients."""
        self.stop_sending()
        self.inbox.stop()
        self._reader.join(SECONDS_MAX)
        self.producer.stop()
        self.client.stop()


Cli = Callable[..., CompletedProcess[str]]


class Runbook:
    """The steps of one runbook of the page: command lines in code blocks, which have to be taken in their order.

    values: what replaces the examples of addresses, and the words in upper case, of the page.
    """

    def __init__(self, heading: str, cli: Cli, values: dict[str, str]) -> None:
        page = PAGE.read_text(encoding="utf-8")
        sections = [text for text in re.split(r"^## ", page, flags=re.MULTILINE) if text.splitlines()[0] == heading]
        assert len(sections) == 1, heading
        self.text = sections[0]
        self.steps = re.findall(r"^    +(saturnmq .*|systemctl .*|scp .*)$", sections[0], re.MULTILINE)
        self._cli, self.values = cli, values

    def use(self, cli: Cli, **values: str) -> None:
        """Run the next steps with another function, and with these values for the words in upper case."""
        self._cli = cli
        self.values |= values

    def take(self, start: str) -> str:
        """The next step, which must begin with these words; it is done by the caller."""
        assert self.steps and self.steps[0].startswith(start), (start, self.steps)
        line = self.steps.pop(0)
        for example, value in self.values.items():
            line = line.replace(example, value)
        return line

    def run(self, start: str, *, code: int = 0) -> str:
        """Run the next step; returns what it prints on stdout."""
        return self._execute(self.take(start), code)

    def rows(self, start: str) -> list[dict[str, Any]]:
        """Run the next step; returns the rows of its JSON documents."""
        return self._rows(self.take(start))

    def repeat(self, start: str, condition: Callable[[list[dict[str, Any]]], Any]) -> Any:
        """Repeat the next step until a condition on its rows holds; returns its value."""
        line, last = self.take(start), []

        def holds() -> Any:
            nonlocal last
            last = self._rows(line)
            return condition(last)

        return until(holds, lambda: (line, last))

    def until(self, start: str, condition: Callable[[str], Any]) -> Any:
        """Repeat the next step until a condition on what it prints holds; returns its value."""
        line, last = self.take(start), ""

        def holds() -> Any:
            nonlocal last
            last = self._execute(line, 0)
            return condition(last)

        return until(holds, lambda: (line, last))

    def _rows(self, line: str) -> list[dict[str, Any]]:
        printed = self._execute(f"{line} --json", 0)
        return [row for text in printed.splitlines() for row in json.loads(text)["rows"]]

    def _execute(self, line: str, code: int) -> str:
        given = ""
        for part in line.split(" | "):
            done = self._cli(*shlex.split(part)[1:], env=self.environment, stdin=given.encode())
            assert done.returncode == code, (part, done)
            given = done.stdout
        return given

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the shell in which the commands are typed."""
        return {"NAMESRV_ADDR": self.values["10.0.0.1:9876"], "SATURNMQ_URL": "", "ROCKETMQ_HOME": ""}

    def finish(self) -> None:
        """Every step of the page has been done."""
        assert not self.steps, self.steps
