"""Checks of a node's configuration file: unknown keys, keys without effect, its ports, its certificates.

Requirements: CLI-06, CLI-10.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from saturnmq.cli.everyday.checks import open_ports
from saturnmq.cli.everyday.checks.certificates import certificate_end
from saturnmq.cli.everyday.checks.finding import Finding, note, ok, problem
from saturnmq.cli.settings import broker_classes, read_properties
from saturnmq.config.settings import Loaded, keys_of, load, without_effect
from saturnmq.net import TlsSettings
from saturnmq.net.port_holder import is_listened_on, port_holder
from saturnmq.protocol.errors import ConfigError
from saturnmq.store.settings import StoreSettings


class NodeFile:
    """A configuration file of a broker. Raises ConfigError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pairs = read_properties(path)
        self._parts: dict[str, Any] = {}
        self._problems: list[str] = []
        for name, cls in broker_classes().items():
            try:
                self._parts[name] = load(cls, (str(path), self._pairs)).settings
            except ConfigError as error:
                self._problems += error.problems

    @property
    def name_servers(self) -> str:
        """The key namesrvAddr."""
        return self._pairs.get("namesrvAddr", "").strip()

    @property
    def store(self) -> Path | None:
        """The folder of the store; None if the settings of the store are not valid."""
        settings: StoreSettings | None = self._parts.get("store")
        return None if settings is None else Path(settings.store_path_root_dir)

    def findings(self, now: datetime) -> Iterator[Finding]:
        """All checks."""
        key_names = {name for cls in broker_classes().values() for name in keys_of(cls)}
        unknown_keys = {name: text for name, text in self._pairs.items() if name not in key_names}
        subject = str(self._path)
        for hint in Loaded(None, {}, unknown_keys).unknown_hints(key_names):
            yield problem("configuration", subject, hint, "correct or remove it: it is ignored")
        for text in self._problems:
            yield problem("configuration", subject, text, "correct it: the broker does not start")
        for settings in self._parts.values():
            for text in without_effect(settings):
                yield note("configuration", subject, text, "remove it")
        if not unknown_keys and not self._problems:
            yield ok("configuration", subject, f"{len(self._pairs)} keys, all known and valid")
        yield from self._port()
        yield from open_ports.findings(self._parts)
        if (tls := self._parts.get("tls")) is not None:
            yield from _certificates(tls, now)

    def _port(self) -> Iterator[Finding]:
        broker = self._parts.get("broker")
        if broker is None or not broker.listen_port:
            return
        port = broker.listen_port
        if is_listened_on(port):
            yield ok(
                "ports",
                f"listenPort {port}",
                f"held by {port_holder(port)}; a broker that is to start here needs it free",
            )
        else:
            yield ok("ports", f"listenPort {port}", "free")


def _certificates(tls: TlsSettings, now: datetime) -> Iterator[Finding]:
    for key, path in (
        ("tls.server.certPath", tls.server_cert_path),
        ("tls.client.certPath", tls.client_cert_path),
    ):
        if not path:
            continue
        subject = f"{key}={path}"
        try:
            text = Path(path).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not PEM"
            yield problem("certificate", subject, f"cannot be read: {reason}", "name a readable file in PEM form")
            continue
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
        first = begin + text.partition(begin)[2].partition(end)[0] + end
        try:
            der = ssl.PEM_cert_to_DER_cert(first)
        except ValueError:
            der = b""
        yield certificate_end(subject, der, now)
