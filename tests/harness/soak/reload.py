"""Certificate, accounts and configuration reloaded again and again under load: each takes effect, nothing grows.

Each minute of the run, or twice in a shorter one: a new certificate, a new account in place of the last one, another value in
the configuration file and SIGHUP.

Requirements: SOK-06.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from cryptography import x509

from certificates import write_certificate
from harness.gate.goals import Goal
from harness.soak.options import Options
from harness.soak.single import Single, pause, queues_of, sampling, single, until
from saturnmq import Client
from saturnmq.protocol.errors import SaturnError

TOPIC: Final = "Reloaded"
SECRET: Final = "a-secret-of-the-soak"
STEADY: Final = "steady-account"
ROUND_SECONDS_MAX: Final = 60.0
ROUNDS_MIN: Final = 2
BOUNDED_SECONDS: Final = 600.0


class Reloads:
    """The files of one broker. effective: reloads that were seen to take effect, by kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.accounts = folder / "home" / "conf" / "plain_acl.yml"
        self.accounts.parent.mkdir(parents=True)
        self.number = 0
        self.effective = {"certificate": 0, "account": 0, "configuration": 0}
        self.account()
        self.certificate()
        self.sent = 0
        self.failed: list[str] = []

    @property
    def settings(self) -> dict[str, str]:
        return {
            "storeProfile": "small",
            "aclEnable": "true",
            "rocketmqHome": str(self.folder / "home"),
            "tls.server.mode": "permissive",
            "tls.server.certPath": str(self.folder / "server.pem"),
            "tls.server.keyPath": str(self.folder / "server.key"),
            "waitTimeMillsInHeartbeatQueue": "30000",
            "mappedFileSizeCommitLog": str(4 * 2**20),
            "fileReservedTime": "0",
            "cleanResourceInterval": "1000",
            "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
        }

    def account(self) -> None:
        """A new account beside the one of the load; the last one is removed."""
        entries = [
            f"  - accessKey: {name}\n    secretKey: {SECRET}\n    defaultTopicPerm: PUB|SUB\n    admin: true\n"
            for name in (STEADY, f"passing-account-{self.number}")
        ]
        written = self.accounts.with_suffix(".new")
        written.write_text("accounts:\n" + "".join(entries))
        written.chmod(0o600)
        os.replace(written, self.accounts)

    def certificate(self) -> int:
        """A new certificate and key; returns the serial number."""
        cert, key = write_certificate(self.folder, f"made{self.number}")
        serial = x509.load_pem_x509_certificate(cert.read_bytes()).serial_number
        os.replace(key, self.folder / "server.key")
        os.replace(cert, self.folder / "server.pem")
        return serial

    async def round(self, broker: Single) -> None:
        """Change all three, and wait until each is in use."""
        self.number += 1
        serial = self.certificate()
        self.account()
        before, value = broker.settings["waitTimeMillsInHeartbeatQueue"], str(30_000 + self.number)
        broker.configure(waitTimeMillsInHeartbeatQueue=value)

        async def served() -> bool:
            with suppress(OSError):
                return await served_serial(broker.port) == serial
            return False

        await until(served, f"certificate {self.number} is served")
        self.effective["certificate"] += 1

        async def accepted() -> bool:
            return await may(broker, f"passing-account-{self.number}") and not await may(
                broker, f"passing-account-{self.number - 1}"
            )

        await until(accepted, f"account {self.number} instead of the last one")
        self.effective["account"] += 1

        async def read() -> bool:
            changed = f"key=waitTimeMillsInHeartbeatQueue from={before} to={value} by=reload"
            return any(line.endswith(changed) for line in broker.server.last_lines)

        await until(read, f"configuration {self.number} is read")
        self.effective["configuration"] += 1

    async def load(self, client: Client) -> None:
        async with client.producer("reload-load") as producer:
            while True:
                try:
                    await producer.send(TOPIC, b"beside reloads")
                    self.sent += 1
                except SaturnError as error:
                    self.failed.append(str(error)[:160])
                await pause(0.01)


async def served_serial(port: int) -> int:
    """The serial number of the certificate that a new TLS connection is shown."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return x509.load_der_x509_certificate(shown).serial_number
    finally:
        writer.transport.abort()


async def may(broker: Single, account: str) -> bool:
    """Whether an account may send."""
    async with Client(
        name_servers=broker.name_servers, access_key=account, secret_key=SECRET, instance=f"asks-{account}"
    ) as client:
        try:
            async with client.producer("asks") as producer:
                await producer.send(TOPIC, b"may I")
        except SaturnError:
            return False
    return True


async def run(options: Options) -> list[Goal]:
    """The part `reload`."""
    reloads = Reloads(options.folder)
    async with (
        single(options.folder, reloads.settings) as broker,
        Client(name_servers=broker.name_servers, access_key=STEADY, secret_key=SECRET, timeout=20) as client,
    ):
        await client.create_topic(TOPIC, queues=4)
        await queues_of(client.puller(), TOPIC)
        watched = broker.watched(bounded=options.seconds >= BOUNDED_SECONDS)
        began = time.monotonic()

        def text() -> str:
            return f"{reloads.sent:,} sent, " + ", ".join(
                f"{count} x {what}" for what, count in reloads.effective.items()
            )

        helpers = [
            asyncio.create_task(sampling(options, [watched], began, text)),
            asyncio.create_task(reloads.load(client)),
        ]
        rounds = max(round(options.seconds / ROUND_SECONDS_MAX), ROUNDS_MIN)
        try:
            for number in range(rounds):
                await pause(began + options.seconds * number / rounds - time.monotonic())
                await reloads.round(broker)
            await pause(began + options.seconds - time.monotonic())
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
    figure = f"{text()}, {len(reloads.failed)} sends failed {reloads.failed[:1] if reloads.failed else ''}".rstrip()
    holds = set(reloads.effective.values()) == {rounds} and not reloads.failed and reloads.sent > 0
    goal = Goal("SOK-06 reloads", figure, f"each {rounds} times in use, no send failed", holds)
    return [goal, *watched.goals("SOK-06 reload", options.seconds / 3)]
