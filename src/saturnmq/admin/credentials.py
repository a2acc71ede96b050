"""Credentials and certificates of administrative calls: `tools.yml` of the Java tools, and some keys of a node's file.

Secrets are read from files and the environment only, because arguments of a process are visible to every user of its machine.

Requirements: ACL-20, ADM-06, SEC-10, SEC-13, SEC-15, SEC-18.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from saturnmq.client.connection.access import ClusterAccess, access_of_tls
from saturnmq.config.settings import load, parse_properties
from saturnmq.net.tls import TlsSettings
from saturnmq.protocol.errors import ConfigError
from saturnmq.raft.cluster_secret import SECRET_VARIABLE

_HOME_VARIABLE: Final = "ROCKETMQ_HOME"
DEFAULT_FILE: Final = "conf/tools.yml"  # below the folder of ROCKETMQ_HOME
_CLUSTER_SECRET: Final = "dledger.clusterSecret"  # noqa: S105 - the name of a key
_BYTES_MAX: Final = 65_536


@dataclass(frozen=True, kw_only=True)
class AdminAccess(ClusterAccess):
    """The access of administrative calls. cluster_secret: for DLedger ports."""

    cluster_secret: str = field(default="", repr=False)


def read_access(*, tools: Path | None = None, config: Path | None = None, signature: str = "v1") -> AdminAccess:
    """Credentials of a tools.yml, and the `tls.*` keys and cluster secret of a configuration file. Raises ConfigError.

    tools: by default conf/tools.yml below ROCKETMQ_HOME if it exists; an empty accessKey or secretKey there means unsigned.
    Without the cluster secret in the file, that of the environment variable SATURNMQ_CLUSTER_SECRET is used.

    Example:
        async with Admin("10.0.0.1:9876", access=read_access(config=Path("broker.conf"))) as admin:
            ...
    """
    settings: dict[str, Any] = {"signature": signature, "cluster_secret": os.environ.get(SECRET_VARIABLE, "")}
    if config is not None:
        pairs = parse_properties(_text(config))
        tls_pairs = {name: text for name, text in pairs.items() if name.startswith("tls.")}
        settings |= access_of_tls(load(TlsSettings, (str(config), tls_pairs)).settings)
        settings["cluster_secret"] = pairs.get(_CLUSTER_SECRET, "").strip() or settings["cluster_secret"]
    return AdminAccess(**settings, **_account(tools))


def _account(tools: Path | None) -> dict[str, Any]:
    """ClusterAccess key and secret of a tools.yml, by default that of ROCKETMQ_HOME; none without one. Raises ConfigError."""
    path = tools
    if path is None:
        home = os.environ.get(_HOME_VARIABLE)
        path = Path(home, DEFAULT_FILE) if home else None
        if path is None or not path.is_file():
            return {}
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
            return {}
        raise ConfigError(f"{path} must hold accessKey and secretKey")
    return {"access_key": access, "secret_key": secret}


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_BYTES_MAX).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
