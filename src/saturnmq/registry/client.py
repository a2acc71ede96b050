"""The client of a schema registry over its HTTP interface, with a bounded cache. Used by codecs and by Spark's workers.

A request that finds a schema is also its key in the cache. Schemas never change, so entries do not expire; a failure is
remembered for `retry_after` seconds, so that a registry that is down costs one attempt per that time and not one per message.
Nothing here waits on an event loop: there, `schema` answers from the cache, and starts the request in a thread if it must.

Requirements: API-08, SEC-15.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import http.client
import json
import logging
import random
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from uuid import UUID

from saturnmq.config.settings import without_credentials
from saturnmq.errors import RegistryError
from saturnmq.net.tls import TlsSettings, client_context
from saturnmq.protocol.errors import ConfigError

logger = logging.getLogger(__name__)

ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_BACK_OFF_S: Final = 0.1
_TRANSIENT: Final = frozenset({408, 429, 500, 502, 503, 504})
_HINTS: Final = {
    401: "Give SchemaRegistry(username=, password=) or SchemaRegistry(token=) valid ones.",
    403: "Give SchemaRegistry credentials that may do this.",
    404: "Register the schema first, or create the codec with register=True.",
    409: "Make it compatible, such as by a default for each new field, or choose another subject.",
    422: "Correct the schema.",
}


class RegisteredSchema(NamedTuple):
    """A schema of the registry. kind: AVRO, JSON or PROTOBUF. has_references: it needs other schemas of the registry."""

    kind: str
    text: str
    id: int | None = None
    guid: UUID | None = None
    has_references: bool = False

    def is_same(self, peer: RegisteredSchema) -> bool:
        if self.guid and peer.guid:
            return self.guid == peer.guid
        return (self.kind, self.text) == (peer.kind, peer.text)


class SchemaRequest(NamedTuple):
    """A request that finds one schema. body: JSON of a POST; it is the schema that the answer leaves out."""

    path: str
    body: str = ""

    @classmethod
    def by_key(cls, key: int | UUID, *, serialized: bool) -> SchemaRequest:
        """serialized: Protobuf as a descriptor, not as the text of a .proto file."""
        path = f"schemas/ids/{key}" if isinstance(key, int) else f"schemas/guids/{key}"
        return cls(path + "?format=serialized" * serialized)

    @classmethod
    def latest(cls, subject: str, *, serialized: bool) -> SchemaRequest:
        return cls(f"{_subject(subject)}/versions/latest" + "?format=serialized" * serialized)

    @classmethod
    def of_text(cls, subject: str, kind: str, text: str, *, register: bool) -> SchemaRequest:
        """register: add the schema to the subject if it is new there; else only find it."""
        document = {"schema": text} if kind == "AVRO" else {"schema": text, "schemaType": kind}
        return cls(_subject(subject) + "/versions" * register, json.dumps(document))


def _subject(name: str) -> str:
    return f"subjects/{urllib.parse.quote(name, safe='')}"


class _Failure(NamedTuple):
    error: RegistryError
    until: float


class SchemaRegistry:
    """A schema registry with Confluent's HTTP interface, as Apicurio, Karapace and Redpanda have it, too.

    url: one address, or several of the same registry with commas between them. username, password: basic authentication; token:
    bearer authentication. tls_ca: file of trusted CA certificates, by default the system's; tls_cert, tls_key: the client's
    certificate. timeout: seconds that a request may take with all its attempts. retry_after: seconds for which a failure is
    remembered. cache_size: schemas in memory.

    Example:
        registry = SchemaRegistry("https://registry.example.com", username="app", password=os.environ["REGISTRY_PASSWORD"])
        codec = avro_codec(registry, "orders-value", schema=ORDER)
    """

    def __init__(
        self,
        url: str,
        *,
        username: str | None = None,
        password: str | None = None,
        token: str | None = None,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        tls_key_password: str | None = None,
        timeout: float = 5.0,
        attempts: int = 3,
        retry_after: float = 10.0,
        cache_size: int = 1000,
    ) -> None:
        self._settings = {name: value for name, value in locals().items() if name not in ("self", "url")}
        self._url, self._timeout, self._attempts = url, timeout, attempts
        self._retry_after, self._cache_size = retry_after, cache_size
        self._urls, problems = [], []
        for address in filter(None, map(str.strip, url.split(","))):
            parts = urllib.parse.urlsplit(address)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                problems.append(
                    f"url of the schema registry is {without_credentials(address)!r:.200}, must begin with http:// or https://"
                )
            if parts.username and not username:
                username, password = urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or "")
            self._urls.append(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/"))
        if not self._urls:
            problems.append("url of the schema registry is empty")
        if (username is None) != (password is None):
            problems.append("username and password of the schema registry belong together, one of them is missing")
        if username and token:
            problems.append("the schema registry takes username and password, or a token, not both")
        for name, value, least in (("timeout", timeout, 0.1), ("attempts", attempts, 1), ("cache_size", cache_size, 1)):
            if not value >= least:
                problems.append(f"{name} of the schema registry is {value!r}, must be at least {least}")
        if problems:
            raise ConfigError(problems)
        self._headers = {"Accept": _MEDIA_TYPE, "Content-Type": _MEDIA_TYPE}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        elif username:
            self._headers["Authorization"] = "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
        tls: dict[str, Any] = {"client_trust_path": tls_ca, "client_cert_path": tls_cert, "client_key_path": tls_key}
        tls["client_key_password"] = tls_key_password
        handlers: list[Any] = [_NoRedirects]
        if any(address.startswith("https:") for address in self._urls):
            settings = TlsSettings(**{name: value for name, value in tls.items() if value})
            handlers.append(urllib.request.HTTPSHandler(context=client_context(settings)))
        self._opener = urllib.request.build_opener(*handlers)
        self._cache: OrderedDict[SchemaRequest, RegisteredSchema | _Failure] = OrderedDict()
        self._lock = threading.Lock()  # of the cache
        self._requesting = threading.Lock()  # one request at a time: others then find its schema or its failure
        self._pending: set[SchemaRequest] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        """One registry, so one cache, per process and settings: each task of Spark would begin with an empty one."""
        return _of_process, (self._url, tuple(self._settings.items()))

    def __repr__(self) -> str:
        return f"<schema registry {','.join(self._urls)}>"

    def schema(self, request: SchemaRequest) -> RegisteredSchema:
        """Return the schema from the cache, else from the registry. Raises RegistryError.

        On an event loop an unknown schema is an error at once; it is requested in a thread for the next time.
        """
        cached = self._cached(request)
        if cached is not None:
            return cached
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self.fetch(request)
        if request not in self._pending:
            self._pending.add(request)
            loop.run_in_executor(None, self._find_quietly, request)
        raise RegistryError(f"{self!r}: {request.path} is not in the cache yet, it is being requested", retryable=True)

    async def prepare(self, requests: Iterable[SchemaRequest]) -> None:
        """Bring schemas into the cache without blocking the event loop. Raises the first RegistryError, after all requests."""
        errors = []
        for request in requests:
            try:
                if self._cached(request) is None:
                    await asyncio.to_thread(self.fetch, request)
            except RegistryError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _cached(self, request: SchemaRequest) -> RegisteredSchema | None:
        """Raises RegistryError while a failure is remembered."""
        with self._lock:
            entry = self._cache.get(request)
            if isinstance(entry, _Failure):
                if time.monotonic() < entry.until:
                    raise RegistryError(entry.error.message, hint=entry.error.hint, retryable=entry.error.retryable)
                return None
            if entry is not None:
                self._cache.move_to_end(request)
            return entry

    def fetch(self, request: SchemaRequest, *, refresh: bool = False) -> RegisteredSchema:
        """As `schema`, but it waits also on an event loop, such as a notebook's. refresh: ask the registry in any case."""
        with self._requesting:
            cached = None if refresh else self._cached(request)
            if cached is not None:
                return cached
            try:
                schema = self._request(request)
            except RegistryError as error:
                self._put(request, _Failure(error, time.monotonic() + self._retry_after))
                raise
            self._put(request, schema)
            return schema

    def _put(self, request: SchemaRequest, entry: RegisteredSchema | _Failure) -> None:
        with self._lock:
            self._cache[request] = entry
            self._cache.move_to_end(request)
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)

    def _find_quietly(self, request: SchemaRequest) -> None:
        try:
            self.fetch(request)
        except RegistryError as error:
            logger.warning("schema was not found path=%s error=%s", request.path, error)
        finally:
            self._pending.discard(request)

    def _request(self, request: SchemaRequest) -> RegisteredSchema:
        """Send a request, with all attempts within `timeout`. Raises RegistryError."""
        deadline = time.monotonic() + self._timeout
        for attempt in range(self._attempts):
            url = f"{self._urls[attempt % len(self._urls)]}/{request.path}"
            message = urllib.request.Request(url, request.body.encode() or None, self._headers)  # noqa: S310 - __init__ checks it
            try:
                return _schema(request, _answer(self._opener, message, deadline))
            except urllib.error.HTTPError as error:
                with error:
                    problem, hint = (
                        f"{error.code} {_reason(error)}",
                        _HINTS.get(error.code, "Look into the log of the registry."),
                    )
                is_transient = error.code in _TRANSIENT
            except (OSError, ValueError, http.client.HTTPException) as error:
                problem = str(getattr(error, "reason", error)) or type(error).__name__
                hint = f"Check url, tls_ca and timeout={self._timeout:g} of SchemaRegistry."
                is_transient = True
            delay_s = _BACK_OFF_S * 2**attempt * random.uniform(0.5, 1)
            if not is_transient or time.monotonic() + delay_s >= deadline:
                break
            if attempt + 1 < self._attempts:
                time.sleep(delay_s)
        method = "POST" if request.body else "GET"
        raise RegistryError(f"{self!r}: {method} {request.path}: {problem}", hint=hint, retryable=is_transient)


@functools.lru_cache(maxsize=16)
def _of_process(url: str, settings: tuple[tuple[str, Any], ...]) -> SchemaRegistry:
    return SchemaRegistry(url, **dict(settings))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: it would take the credentials to an address that was never configured."""

    def redirect_request(self, *args: object) -> None:
        return None


def _answer(opener: urllib.request.OpenerDirector, message: urllib.request.Request, deadline: float) -> dict[str, Any]:
    """The JSON object of an answer. Raises OSError, ValueError and HTTPException."""
    with opener.open(message, timeout=max(deadline - time.monotonic(), 0.001)) as answer:
        data = bytearray()
        while part := answer.read1(65536):
            data += part
            if len(data) > ANSWER_BYTES_MAX:
                raise ValueError(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError("timed out")
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError(f"the answer is JSON of type {type(document).__name__}, must be an object")
    return document


def _reason(error: urllib.error.HTTPError) -> str:
    """The registry's own text and number of an error, else the status line's text."""
    try:
        document = json.loads(error.read(65536))
        return f"{document['message']!s:.300} ({document['error_code']})"
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return str(error.reason)


def _schema(request: SchemaRequest, answer: dict[str, Any]) -> RegisteredSchema:
    """The schema of an answer; what the answer leaves out is in the request. Raises ValueError."""
    sent = json.loads(request.body) if request.body else {}
    text, number, guid = answer.get("schema", sent.get("schema")), answer.get("id"), answer.get("guid")
    if not isinstance(text, str) or not isinstance(number, int | None):
        raise ValueError("the answer has no text of a schema, or no number as id")
    kind = str(answer.get("schemaType") or sent.get("schemaType") or "AVRO")
    return RegisteredSchema(kind, text, number, UUID(guid) if guid else None, bool(answer.get("references")))
