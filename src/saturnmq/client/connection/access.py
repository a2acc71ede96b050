"""`ClusterAccess`: the credentials and certificates with which a process reaches the servers of a cluster.

Clients, administration and the Spark source extend it: a setting has one name, one default and one meaning everywhere.

Requirements: ACL-18, ACL-20, API-03, SEC-10, SEC-15.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from saturnmq.config.settings import parse_properties
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.signatures import SIGNATURES

if TYPE_CHECKING:
    from saturnmq.net import TlsSettings
    from saturnmq.net.signer import Signer

A = TypeVar("A", bound="ClusterAccess")

# The properties of a key file: AccessKey, SecretKey, SecurityToken.
_KEY_FILE: Final = {"AccessKey": "access_key", "SecretKey": "secret_key", "SecurityToken": "security_token"}
# Fields of ClusterAccess and those of TlsSettings, where "" stands for None.
_TLS: Final = {
    "tls": "enable",
    "tls_verify": "client_auth_server",
    "tls_check_host": "client_check_host",
    "tls_ca": "client_trust_path",
    "tls_cert": "client_cert_path",
    "tls_key": "client_key_path",
    "tls_key_password": "client_key_password",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """Credentials and certificates; by default requests are not signed, and connections are plain.

    access_key: name of the account that signs requests.
    secret_key: its secret key.
    security_token: of a temporary account.
    signature: "v1", or "v2", which only servers of SaturnMQ accept.
    key_file: file of the credentials, read by `start`; access_key overrides it.
    tls: use TLS.
    tls_verify: the server's certificate must be signed by a trusted CA and match its host name.
    tls_check_host: False: the certificate may name another host; with a CA that signs for this cluster only.
    tls_ca: file of trusted CA certificates; None: the system's.
    tls_cert: file of the client certificate, for servers that require one.
    tls_key: file of its private key, if not in the same file.
    tls_key_password: password of the private key.
    """

    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)  # ACL-18
    signature: str = "v1"  # SEC-10
    key_file: str | None = None  # ACL-18
    tls: bool = False
    tls_verify: bool = True
    tls_check_host: bool = True
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_key_password: str | None = field(default=None, repr=False)

    @property
    def signer(self) -> Signer | None:
        """Signs requests; None without credentials."""
        from saturnmq.net.signer import Signer  # not at import: planners of Spark open no connection

        if not self.access_key or not self.secret_key:
            return None
        return Signer(self.access_key, self.secret_key, self.security_token or "", self.signature)

    @property
    def tls_settings(self) -> TlsSettings:
        """The same TLS as `saturnmq.net` takes it."""
        from saturnmq.net.tls import TlsSettings

        values: dict[str, Any] = {of_tls: getattr(self, name) for name, of_tls in _TLS.items()}
        return TlsSettings(**{name: value for name, value in values.items() if value is not None})

    @property
    def access_settings(self) -> dict[str, Any]:
        """The fields of this class, without those of extensions, that are not the default: keywords of `saturnmq.Client`."""
        return {name: value for name, default in _DEFAULTS.items() if (value := getattr(self, name)) != default}

    def access_problems(self) -> list[str]:
        """Fields that do not go together, one sentence each."""
        problems = []
        if bool(self.access_key) != bool(self.secret_key):
            problems.append("access_key and secret_key belong together, one of them is missing")
        if self.security_token and not self.access_key:
            problems.append("security_token is of no use without access_key and secret_key")
        if self.signature not in SIGNATURES:
            problems.append(f"signature is {self.signature!r:.40}, must be {' or '.join(SIGNATURES)}")
        if self.tls_key and not self.tls_cert:
            problems.append("tls_key is of no use without tls_cert")
        return problems


_DEFAULTS: Final = {item.name: item.default for item in fields(ClusterAccess)}


def access_of_tls(tls: TlsSettings) -> dict[str, Any]:
    """Fields of a ClusterAccess with the same TLS."""
    values = {name: getattr(tls, of_tls) for name, of_tls in _TLS.items()}
    return {name: None if value == "" else value for name, value in values.items()}


async def with_key_file(access: A) -> A:
    """The access with the credentials of its key file; unchanged without a key file, or if access_key is set.

    The file is read in a thread. Raises ConfigError, whose text contains no value of the file.
    """
    # An explicit access_key overrides the file.
    if access.key_file is None or access.access_key:
        return access
    return replace(access, **await asyncio.to_thread(_read_key_file, Path(access.key_file)))


def _read_key_file(path: Path) -> dict[str, Any]:
    try:
        pairs = parse_properties(path.expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        # Not the error's own text, which may quote the file.
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"key_file {path} cannot be read: {reason}") from error
    credentials = {key: pairs[name].strip() for name, key in _KEY_FILE.items() if pairs.get(name, "").strip()}
    missing = [name for name in ("AccessKey", "SecretKey") if _KEY_FILE[name] not in credentials]
    if missing:
        raise ConfigError(f"key_file {path} must hold AccessKey and SecretKey, missing: {', '.join(missing)}")
    return credentials
