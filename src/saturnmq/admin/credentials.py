"""Credentials and certificates of administrative calls: `tools.yml` of the Java tools, and some keys of a node's file.

Secrets are read from files and the environment only, because arguments of a process are visible to every user of its machine.

Requirements: ACL-20, ADM-06, SEC-10, SEC-13, SEC-15, SEC-18.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from saturnmq.net import NetSettings, RemotingClient, TlsSettings
from saturnmq.net.signer import Signer
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.cluster_secret import SECRET_VARIABLE

_HOME_VARIABLE: Final = "ROCKETMQ_HOME"
DEFAULT_FILE: Final = "conf/tools.yml"  # below the folder of ROCKETMQ_HOME
_CLUSTER_SECRET: Final = "dledger.clusterSecret"  # noqa: S105 - the name of a key
_BYTES_MAX: Final = 65_536


class _Signing:
    """A hook that signs every request of a client."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def before(self, remote_address: str, request: Command) -> None:
        self._signer.sign(request)

    def after(self, remote_address: str, request: Command, response: Command) -> None:
        """Nothing to do."""


@dataclass(frozen=True)
class AdminAccess:
    """TLS and signature of administrative calls; by default plain and unsigned. cluster_secret: for DLedger ports."""

    tls: TlsSettings | None = None
    signer: Signer | None = None
    cluster_secret: str = field(default="", repr=False)

    def client_settings(self) -> dict[str, Any]:
        """The same access as keywords of `saturnmq.Client`."""
        settings: dict[str, Any] = {} if self.signer is None else dict(self.signer.settings)
        if self.tls is not None and self.tls.enable:
            settings |= {
                "tls": True,
                "tls_verify": self.tls.client_auth_server,
                "tls_ca": self.tls.client_trust_path or None,
            }
            settings |= {"tls_cert": self.tls.client_cert_path or None, "tls_key": self.tls.client_key_path or None}
        return settings

    def client(self) -> RemotingClient:
        """A client whose requests are signed if there are credentials."""
        client = RemotingClient(settings=NetSettings(), tls=self.tls)
        if self.signer is not None:
            client.add_hook(_Signing(self.signer))
        return client


def read_access(*, tools: Path | None = None, config: Path | None = None, signature: str = "v1") -> AdminAccess:
    """Credentials of a tools.yml, and the `tls.*` keys and cluster secret of a configuration file. Raises ConfigError.

    tools: by default conf/tools.yml below ROCKETMQ_HOME if it exists; an empty accessKey or secretKey there means unsigned.
    Without the cluster secret in the file, that of the environment variable SATURNMQ_CLUSTER_SECRET is used.
    """
    tls, secret = None, ""
    if config is not None:
        from saturnmq.config.settings import parse_properties

        tls = _tls(config)
        secret = parse_properties(_text(config)).get(_CLUSTER_SECRET, "").strip()
    account = _account(tools)
    signer = None if account is None else Signer(*account, version=signature)
    return AdminAccess(tls, signer, secret or os.environ.get(SECRET_VARIABLE, ""))


def _tls(config: Path) -> TlsSettings:
    """The `tls.*` keys of a configuration file. Raises ConfigError."""
    from saturnmq.config.settings import load, parse_properties

    pairs = {name: text for name, text in parse_properties(_text(config)).items() if name.startswith("tls.")}
    return load(TlsSettings, (str(config), pairs)).settings


def _account(tools: Path | None) -> tuple[str, str] | None:
    """Access key and secret of a tools.yml, by default that of ROCKETMQ_HOME; None without one. Raises ConfigError."""
    path = tools
    if path is None:
        home = os.environ.get(_HOME_VARIABLE)
        path = Path(home, DEFAULT_FILE) if home else None
        if path is None or not path.is_file():
            return None
    from saturnmq.acl.documents import read_document
    from saturnmq.acl.files import resolve_secret

    try:
        document = read_document(_text(path).encode())
        access, secret = (document.get(name, "") for name in ("accessKey", "secretKey"))
        if not isinstance(access, str) or not isinstance(secret, str):
            raise ConfigError("accessKey and secretKey must be texts")
        secret = resolve_secret(secret)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not access.strip() or not secret.strip():
        if tools is None:
            return None
        raise ConfigError(f"{path} must hold accessKey and secretKey")
    return access, secret


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_BYTES_MAX).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
