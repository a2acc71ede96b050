"""A schema registry on loopback: the requests of Confluent's HTTP interface that its clients use, in memory."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import ssl
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class RegistryServer(ThreadingHTTPServer):
    """schemas: in the order of their ids, from 1. requests: method and path of each. authorization: what a request must have.

    failures: statuses of the next answers. has_guids: as registries before 7.9, if false.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.failures: list[int] = []
        self.authorization = ""
        self.has_guids = True
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    def answer(self, method: str, path: str, document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        match method, [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]:
            case "POST", ["subjects", subject, "versions"]:
                return self._register(subject, document)
            case "POST", ["subjects", subject]:
                if (id_ := self._find(document)) in self.subjects.get(subject, []):
                    return 200, {"subject": subject, **self._shown(id_)}
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case "GET", ["subjects", subject, "versions", "latest"] if subject in self.subjects:
                return 200, {"subject": subject, **self._shown(self.subjects[subject][-1], path)}
            case "GET", ["schemas", "ids", text] if 0 < int(text) <= len(self.schemas):
                shown = self._shown(int(text), path)
                del shown["id"]
                return 200, shown
            case "GET", ["schemas", "guids", text]:
                for id_ in range(1, len(self.schemas) + 1):
                    if self.guid(id_) == text:
                        return 200, self._shown(id_, path)
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def guid(self, id_: int) -> str:
        return str(uuid.UUID(bytes=hashlib.md5(json.dumps(self.schemas[id_ - 1]).encode()).digest()))

    def _register(self, subject: str, document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if document["schema"] == "incompatible":
            return 409, {"error_code": 409, "message": "Schema being registered is incompatible"}
        id_ = self._find(document)
        if not id_:
            self.schemas.append({"schemaType": document.get("schemaType", "AVRO"), "schema": document["schema"]})
            id_ = len(self.schemas)
        versions = self.subjects.setdefault(subject, [])
        if id_ not in versions:
            versions.append(id_)
        return 200, {"id": id_, **({"guid": self.guid(id_)} if self.has_guids else {})}

    def _find(self, document: dict[str, Any]) -> int:
        wanted = {"schemaType": document.get("schemaType", "AVRO"), "schema": document["schema"]}
        return self.schemas.index(wanted) + 1 if wanted in self.schemas else 0

    def _shown(self, id_: int, path: str = "") -> dict[str, Any]:
        """A schema; Protobuf as text, unless its descriptor is asked for. The type AVRO is left out."""
        schema = {**self.schemas[id_ - 1], "id": id_, "version": 1}
        if schema["schemaType"] == "AVRO":
            del schema["schemaType"]
        elif schema["schemaType"] == "PROTOBUF" and "format=serialized" not in path:
            schema["schema"] = 'syntax = "proto3";'
        return {**schema, **({"guid": self.guid(id_)} if self.has_guids else {})}


class _Handler(BaseHTTPRequestHandler):
    server: RegistryServer

    def do_GET(self) -> None:
        server = self.server
        document = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        server.requests.append(f"{self.command} {self.path}")
        if self.headers.get("Authorization", "") != server.authorization:
            status, answer = 401, {"error_code": 40101, "message": "Unauthorized"}
        elif server.failures:
            status, answer = server.failures.pop(0), {"error_code": 50001, "message": "backend is down"}
        else:
            status, answer = server.answer(self.command, self.path, document)
        body = json.dumps(answer).encode()
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://127.0.0.1:1/")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_args: object) -> None:
        pass


@contextlib.contextmanager
def registry_server(context: ssl.SSLContext | None = None) -> Iterator[RegistryServer]:
    """A running server. context: of TLS."""
    with RegistryServer() as server:
        if context is not None:
            server.socket, server.scheme = context.wrap_socket(server.socket, server_side=True), "https"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
