"""The client's settings and their sources: arguments, a URL, the environment. Pure.

Requirements: API-01..API-03, API-06, PR-03.
"""

# rmq://[access:secret@]host:port[,host:port]?key=value
#   rmqs://       TLS
#   rocketmq://   the same as rmq://
#   ;             also separates hosts
#   [v6]:port     an IPv6 address
#   port          9876 by default

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any, Final, Self, TypedDict, Unpack
from urllib.parse import parse_qsl, unquote

from saturnmq.client.checks import option_problems, range_problems
from saturnmq.client.compression import COMPRESSION_FLAGS, ZLIB_LEVEL_MAX, ZSTD_LEVEL_MAX
from saturnmq.client.connection.access import ClusterAccess
from saturnmq.client.tracing import trace_topic_problem
from saturnmq.config.settings import parse_duration_ms, parse_size, without_credentials
from saturnmq.protocol.errors import ConfigError

DEFAULT_PORT: Final = 9876
_SECRETS: Final = ("secret_key", "security_token", "tls_key_password")
SCHEMES: Final = ("rmq", "rmqs", "rocketmq")
ENV_URL: Final = "SATURNMQ_URL"
ENV_NAME_SERVERS: Final = "NAMESRV_ADDR"
_ENV_KEYS: Final = {
    "SATURNMQ_ACCESS_KEY": "access_key",
    "SATURNMQ_SECRET_KEY": "secret_key",
    "SATURNMQ_KEY_FILE": "key_file",
    "SATURNMQ_SIGNATURE": "signature",
    "SATURNMQ_NAMESPACE": "namespace",
    "SATURNMQ_TIMEOUT": "timeout",
}
_AUTHORITY: Final = re.compile(r"^(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>[^?#/]*)/?(?:\?(?P<query>[^#]*))?$")


class ClientOptions(TypedDict, total=False):
    """The keyword options of `Client`, `from_url` and `from_env`; ClientSettings documents them."""

    name_servers: str | Sequence[str]
    timeout: float
    attempts: int
    address_server: str | None
    namespace: str | None
    instance: str | None
    unit: str | None
    vip_channel: bool
    latency_fault: bool
    avoid_ms_max: int
    retry_not_stored: bool
    create_topic_key: str
    default_queues: int
    smart_send: bool
    body_bytes_max: int
    compress_from_bytes: int
    compress_type: str
    compress_level: int
    route_poll_ms: int
    heartbeat_ms: int
    persist_offsets_ms: int
    rebalance_ms: int
    api_timeout_ms: int
    offsets_dir: str
    trace: bool | str
    access_channel: str
    access_key: str | None
    secret_key: str | None
    security_token: str | None
    signature: str
    key_file: str | None
    tls: bool
    tls_verify: bool
    tls_check_host: bool
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_key_password: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings(ClusterAccess):
    """The settings of a Client, with those of ClusterAccess: keywords of its constructor, keys of a URL.

    name_servers: addresses `host:port` of the NameServers.
    timeout: total time of one call, its retries included.
    attempts: how often a send is tried if its failures do not pass on their own, and into how many parts its time is divided among
    brokers that do not answer; what passes is retried until the timeout; 1: no retry at all.
    address_server: http(s) URL that returns the list of NameServers.
    namespace: prefix of all topics and groups, which the application does not see.
    instance: second half of the client id; None: random.
    unit: third part of the client id, and name of the unit towards address servers.
    vip_channel: use the port 2 below a broker's own.
    latency_fault: avoid brokers that failed or were slow.
    avoid_ms_max: how long a failed broker is avoided at most.
    retry_not_stored: send again, to another broker, what was stored but not flushed or replicated in time.
    create_topic_key: topic whose queues a new topic is created like.
    default_queues: queues per broker of a topic that a send creates.
    smart_send: send with short field names and in automatic batches.
    body_bytes_max: longest body, before compression.
    compress_from_bytes: bodies of this length and longer ones are compressed.
    compress_type: "zlib", or "lz4" or "zstd", which not all clients can read.
    compress_level: 0..9, of zstd 0..22; without effect with lz4.
    route_poll_ms: time between polls of the routes.
    heartbeat_ms: time between heartbeats to brokers.
    persist_offsets_ms: time between stores of the committed offsets.
    rebalance_ms: time between checks of the assignment.
    api_timeout_ms: time of one request other than a send or pull.
    offsets_dir: folder of the offsets of broadcast consumers.
    trace: whether, or to which topic, message trace records are sent; producers and consumers may override it.
    access_channel: "local", or "cloud" with one trace topic per region.
    """

    name_servers: tuple[str, ...]
    timeout: float = 3.0  # PR-03, API-28
    attempts: int = 3  # API-28
    address_server: str | None = None  # PR-08
    namespace: str | None = None  # PR-32
    instance: str | None = None  # API-06
    unit: str | None = None  # PR-06
    vip_channel: bool = False  # PR-31
    latency_fault: bool = True  # PR-30, on by API-29
    avoid_ms_max: int = 30_000  # API-29; Java: 600000
    retry_not_stored: bool = False  # PR-17
    create_topic_key: str = "TBW102"  # PR-03
    default_queues: int = 4  # PR-03
    smart_send: bool = True  # PR-28: code 310, not 10
    body_bytes_max: int = 4_194_304  # PR-03
    compress_from_bytes: int = 4096  # PR-24
    compress_type: str = "zlib"  # PR-24
    compress_level: int = 5  # PR-24
    route_poll_ms: int = 30_000  # PR-11
    heartbeat_ms: int = 30_000  # HB-01
    persist_offsets_ms: int = 5_000  # PR-03
    rebalance_ms: int = 20_000  # RB-01
    api_timeout_ms: int = 3_000  # PR-03
    offsets_dir: str = "~/.rocketmq_offsets"  # OF-02
    trace: bool | str = False  # TR-02
    access_channel: str = "local"  # TR-10

    def validate(self) -> list[str]:
        """All problems, each one sentence with the allowed range."""
        problems: list[str] = []
        if not self.name_servers and not self.address_server:
            problems.append("name_servers is empty, must name at least one host:port")
        if self.address_server and not re.match(r"https?://[^\s/]+", self.address_server):
            shown = without_credentials(self.address_server)
            problems.append(f"address_server is {shown!r:.100}, must be an http:// or https:// URL")
        for address in self.name_servers:
            try:
                parse_address(address)
            except ConfigError as error:
                problems += error.problems
        problems += range_problems(self, RANGES)
        problems += self.access_problems()
        for name in ("namespace", "instance", "unit"):
            value = getattr(self, name)
            if value is not None and not re.fullmatch(r"[%|a-zA-Z0-9_.#-]{1,127}", value):
                problems.append(f"{name} is {value!r:.60}, must be 1..127 characters of %|a-zA-Z0-9_.#-")
        if problem := trace_topic_problem(self.trace):
            problems.append(problem)
        if self.compress_type not in COMPRESSION_FLAGS:
            problems.append(f"compress_type is {self.compress_type!r:.40}, must be {' or '.join(COMPRESSION_FLAGS)}")
        elif self.compress_type == "zlib" and self.compress_level in range(ZLIB_LEVEL_MAX + 1, ZSTD_LEVEL_MAX + 1):
            problems.append(
                f"compress_level is {self.compress_level}, must be 0..{ZLIB_LEVEL_MAX} with compress_type zlib"
            )
        if self.access_channel not in ("local", "cloud"):
            problems.append(f"access_channel is {self.access_channel!r:.40}, must be 'local' or 'cloud'")
        return problems


RANGES: Final[dict[str, tuple[float, float]]] = {
    "timeout": (0.001, 3600.0),
    "attempts": (1, 100),
    "avoid_ms_max": (0, 600_000),
    "default_queues": (1, 65_535),
    "body_bytes_max": (1, 2_147_483_647),
    "compress_from_bytes": (1, 2_147_483_647),
    "compress_level": (0, ZSTD_LEVEL_MAX),
    "route_poll_ms": (10, 3_600_000),
    "heartbeat_ms": (10, 110_000),
    "persist_offsets_ms": (10, 3_600_000),
    "rebalance_ms": (10, 3_600_000),
    "api_timeout_ms": (1, 600_000),
}


def parse_address(text: str) -> str:
    """Normalize to `host:port`, with port 9876 by default; `[v6]:port` keeps its brackets. Raises ConfigError."""
    text = text.strip()
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:\s/@]+)(?::(\d{1,5}))?", text)
    port = int(match.group(2)) if match and match.group(2) else DEFAULT_PORT
    if not match or not 1 <= port <= 65_535:
        raise ConfigError(f"NameServer address {without_credentials(text)!r:.80} must be host:port, port 1..65535")
    return f"{match.group(1)}:{port}"


def parse_addresses(text: str | Sequence[str]) -> tuple[str, ...]:
    """Addresses of a list, or of text separated by `;` or `,`; without duplicates, in order. Raises ConfigError."""
    if isinstance(text, str) and ("@" in text or "://" in text):  # not split: a part of a secret would be shown
        raise ConfigError(
            f"NameServer addresses are host:port;host:port, not a URL ({without_credentials(text):.80}); "
            f"a URL, which may hold credentials, is for {ENV_URL} and Client.from_url"
        )
    parts = re.split(r"[;,]", text) if isinstance(text, str) else list(text)
    problems: list[str] = []
    addresses: dict[str, None] = {}
    for part in parts:
        if not part.strip():
            continue
        try:
            addresses[parse_address(part)] = None
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return tuple(addresses)


def parse_url(url: str) -> dict[str, Any]:
    """Settings by name from a URL. Raises ConfigError, whose text never contains the secret (API-02)."""
    match = _AUTHORITY.match(url)
    if not match or match["scheme"].lower() not in SCHEMES:
        raise ConfigError(
            f"a SaturnMQ URL is rmq://host:port[,host:port]?key=value, such as rmq://127.0.0.1:9876; "
            f"schemes: {', '.join(SCHEMES)}"
        )
    credentials, at, hosts = match["rest"].rpartition("@")
    # The @ comes after a character that ends the authority.
    if not at and "@" in url:
        raise ConfigError("the URL has its @ after a slash or question mark: percent-encode /, ? and # in credentials")
    settings: dict[str, Any] = {"name_servers": parse_addresses(hosts)}
    problems = [] if settings["name_servers"] else ["the URL names no NameServer"]
    if match["scheme"].lower() == "rmqs":
        settings["tls"] = True
    if at:
        access, colon, secret = credentials.partition(":")
        if not (access and colon and secret):
            problems.append("credentials in a URL are access:secret@")
        settings["access_key"], settings["secret_key"] = unquote(access), unquote(secret)
    for key, text in parse_qsl(match["query"] or "", keep_blank_values=True):
        try:
            settings[key] = _parse_value(key, text)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return settings


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Settings by name from environment variables: SATURNMQ_URL, or else NAMESRV_ADDR, then those of _ENV_KEYS.

    A setting of the URL overrides its variable. Raises ConfigError (API-03).
    """
    settings: dict[str, Any] = {}
    if environment.get(ENV_URL):
        settings = parse_url(environment[ENV_URL])
    elif environment.get(ENV_NAME_SERVERS):
        settings["name_servers"] = parse_addresses(environment[ENV_NAME_SERVERS])
    else:
        raise ConfigError(f"no NameServer is configured: set {ENV_URL} (rmq://host:9876) or {ENV_NAME_SERVERS}")
    for variable, key in _ENV_KEYS.items():
        # The URL overrides the variable.
        if environment.get(variable) and key not in settings:
            settings[key] = _parse_value(key, environment[variable])
    return settings


def make_settings(values: Mapping[str, Any]) -> ClientSettings:
    """Validated settings. Raises ConfigError for unknown names and bad values."""
    problems, merged = option_problems(values, ClientOptions.__annotations__, "setting")
    try:
        merged["name_servers"] = parse_addresses(values.get("name_servers", ()))
    except ConfigError as error:
        problems += error.problems
        merged["name_servers"] = ("unknown:1",)  # valid placeholder: the problem is already reported
    settings = ClientSettings(**merged)
    problems += settings.validate()
    if problems:
        raise ConfigError(problems)
    return settings


def _parse_value(key: str, text: str) -> Any:
    parser = _PARSERS.get(key)
    if parser is None:
        raise ConfigError(option_problems({key: text}, _PARSERS, "setting")[0])
    try:
        return parser(text)
    except ValueError as error:
        shown = "the value" if key in _SECRETS else repr(text[:60])
        raise ConfigError(f"{key}: {shown} is not {_KINDS.get(parser, 'valid')}") from error


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("true", "1", "yes", "on"):
        return True
    if lowered in ("false", "0", "no", "off"):
        return False
    raise ValueError(text)


def _switch_or_name(text: str) -> bool | str:
    try:
        return _boolean(text)
    except ValueError:
        return text.strip()


def _seconds(text: str) -> float:
    """Seconds of a number, or of a duration with its unit."""
    try:
        return float(text)
    except ValueError:
        return parse_duration_ms(text) / 1000


_KINDS: Final[dict[Callable[[str], Any], str]] = {
    _seconds: "a number of seconds or a duration such as 500ms or 90s",
    parse_duration_ms: "a duration such as 90000, 500ms, 90s or 2h",
    parse_size: "a size such as 67108864, 64MiB or 1GiB",
    int: "a whole number",
    _boolean: "true or false",
}
_BY_TYPE: Final[dict[str, Callable[[str], Any]]] = {
    "int": int,
    "bool": _boolean,
    "str": str,
    "str | None": str,
    "bool | str": _switch_or_name,
}
_BY_NAME: Final[dict[str, Callable[[str], Any]]] = {
    "timeout": _seconds,
    "avoid_ms_max": parse_duration_ms,
    "body_bytes_max": parse_size,
    "compress_from_bytes": parse_size,
    "route_poll_ms": parse_duration_ms,
    "heartbeat_ms": parse_duration_ms,
    "persist_offsets_ms": parse_duration_ms,
    "rebalance_ms": parse_duration_ms,
    "api_timeout_ms": parse_duration_ms,
}
_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    item.name: _BY_NAME.get(item.name) or _BY_TYPE[str(item.type)]
    for item in dataclass_fields(ClientSettings)
    if item.name != "name_servers"
}


class FromSettings:
    """Constructors of a client whose `__init__` takes the fields of ClientSettings."""

    @classmethod
    def from_url(cls, url: str, **settings: Unpack[ClientOptions]) -> Self:
        """A client for `rmq://[access:secret@]host:port[,host:port]?key=value`; arguments override the URL.

        `rmqs://` turns TLS on, the port defaults to 9876, the keys are fields of ClientSettings. Raises ConfigError.

        Example:
            client = Client.from_url("rmq://ns-a:9876,ns-b:9876?namespace=shop", timeout=5.0)
        """
        return cls(**{**parse_url(url), **settings})

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None, **settings: Unpack[ClientOptions]) -> Self:
        """A client configured by environment variables, of this process unless another mapping is given.

        NameServers come from SATURNMQ_URL, or else from NAMESRV_ADDR; then SATURNMQ_ACCESS_KEY, _SECRET_KEY, _KEY_FILE,
        _NAMESPACE and _TIMEOUT apply. Arguments override the URL, the URL overrides the other variables. Raises ConfigError.

        Example:
            client = Client.from_env({"SATURNMQ_URL": "rmq://127.0.0.1:9876"})
        """
        return cls(**{**from_environment(os.environ if environment is None else environment), **settings})
