"""The codec of CloudEvents 1.0 in messages, binary or structured; events are those of the package `cloudevents` (SDK of the CNCF).

Facts from the RocketMQ binding of Apache (rocketmq-externals, a draft) and of CloudEvents' Java SDK: an attribute is a property
with the prefix CE_, the content type is CE_contenttype, which differs by mode, and a body of one zero byte stands for no data.

    from cloudevents.core.v1.event import CloudEvent

    async with client.producer("orders-p", codec=cloudevents_codec()) as out:
        await out.send("orders", CloudEvent({"type": "com.example.paid", "source": "/shop"}, {"id": 1}))

Requirements: API-08.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from saturnmq.client.codecs import Codec, PropertyCodec
from saturnmq.errors import DecodeError, EncodeError
from saturnmq.extras import install_command
from saturnmq.protocol.json_dialect import standard_dumps, standard_loads

try:
    from cloudevents.core.v1.event import CloudEvent
except ImportError as error:
    raise ModuleNotFoundError(
        f"saturnmq.cloudevents needs package cloudevents: {install_command('cloudevents')}"
    ) from error

PREFIX: Final = "CE_"
CONTENT_TYPE: Final = "CE_contenttype"
STRUCTURED: Final = "application/cloudevents"
JSON_FORMAT: Final = "application/cloudevents+json"
NO_DATA: Final = b"\x00"  # RocketMQ allows no empty body
_JSON_TYPE: Final = re.compile(r"(?:application|text)/(?:[\w.-]+\+)?json", re.IGNORECASE)
_REQUIRED: Final = ("id", "source", "type")


class CloudEventsCodec(PropertyCodec[CloudEvent]):
    """Created by `cloudevents_codec`."""

    def __init__(self, *, structured: bool, data: Codec[Any] | None) -> None:
        self._structured = structured
        self._data = data

    def encode_message(self, value: CloudEvent) -> tuple[bytes, Mapping[str, str]]:
        if not isinstance(value, CloudEvent) or value.get_specversion() != "1.0":
            raise EncodeError(f"the value is {type(value).__name__}, this codec takes a CloudEvent of version 1.0")
        attributes = {name: item for name, item in value.get_attributes().items() if item is not None}
        try:
            body = self._data_bytes(value.get_data(), attributes)
            if not self._structured:
                properties = {f"{PREFIX}{name}": _text(item) for name, item in attributes.items()}
                if content_type := properties.pop(f"{PREFIX}datacontenttype", ""):
                    properties[CONTENT_TYPE] = content_type
                return body or NO_DATA, properties
            document = {
                name: item if isinstance(item, bool | int) else _text(item) for name, item in attributes.items()
            }
            if body and _is_json(attributes.get("datacontenttype", "")):
                document["data"] = standard_loads(body)
            elif body and isinstance(value.get_data(), str):
                document["data"] = body.decode()
            elif body:
                document["data_base64"] = base64.b64encode(body).decode()
            return standard_dumps(document), {CONTENT_TYPE: JSON_FORMAT}
        except (ValueError, TypeError) as error:
            raise EncodeError(f"CloudEvent {value.get_id()!r:.80}: {error}") from error

    def decode_message(self, body: bytes, properties: Mapping[str, str]) -> CloudEvent:
        content_type = properties.get(CONTENT_TYPE, "")
        media_type = content_type.partition(";")[0].strip().lower()
        try:
            if media_type == JSON_FORMAT:
                return self._structured_event(body)
            if media_type.startswith(STRUCTURED):
                raise ValueError(f"the format {content_type!r:.80} is not supported, there is {JSON_FORMAT}")
            attributes: dict[str, Any] = {
                name.removeprefix(PREFIX): text
                for name, text in properties.items()
                if name.startswith(PREFIX) and name != CONTENT_TYPE
            }
            if content_type:
                attributes["datacontenttype"] = content_type
            return _event(attributes, None if body == NO_DATA else self._data_value(body, content_type))
        except (ValueError, TypeError) as error:
            raise DecodeError(f"no CloudEvent: {error}") from error

    def _structured_event(self, body: bytes) -> CloudEvent:
        attributes = standard_loads(body)
        if not isinstance(attributes, dict):
            raise ValueError(f"the body is JSON of type {type(attributes).__name__}, must be an object")
        attributes = {name: item for name, item in attributes.items() if item is not None}
        data, encoded = attributes.pop("data", None), attributes.pop("data_base64", None)
        if data is not None and encoded is not None:
            raise ValueError("it has data and data_base64, must have at most one of them")
        if encoded is not None:
            data = self._data_value(
                base64.b64decode(encoded, validate=True), str(attributes.get("datacontenttype", ""))
            )
        elif data is not None and self._data is not None:
            data = self._data.decode(standard_dumps(data))
        return _event(attributes, data)

    def _data_bytes(self, data: Any, attributes: dict[str, Any]) -> bytes:
        """The data in the event's content type, which is JSON by default for what is neither text nor bytes."""
        if data is None:
            return b""
        if self._data is None and isinstance(data, bytes):
            return data
        content_type = attributes.setdefault("datacontenttype", "application/json")
        if self._data is not None:
            return self._data.encode(data)
        if _is_json(content_type):
            return standard_dumps(data)
        if isinstance(data, str):
            return data.encode()
        raise ValueError(
            f"data of type {type(data).__name__} has datacontenttype {content_type!r:.80}: give text or bytes"
        )

    def _data_value(self, data: bytes, content_type: str) -> Any:
        if self._data is not None:
            return self._data.decode(data)
        if _is_json(content_type):
            return standard_loads(data)
        return data.decode() if content_type.lower().startswith("text/") else data


def _is_json(content_type: str) -> bool:
    return _JSON_TYPE.match(content_type) is not None


def _text(value: Any) -> str:
    """An attribute as the specification writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return str(value)


def _event(attributes: dict[str, Any], data: Any) -> CloudEvent:
    """The event. Raises ValueError: the package itself would make up an id and a time that are missing."""
    missing = [name for name in _REQUIRED if not attributes.get(name)]
    if missing or attributes.get("specversion") != "1.0":
        version = attributes.get("specversion")
        raise ValueError(
            f"attributes {', '.join(missing) or 'none'} are missing, specversion is {version!r:.20}, must be '1.0'"
        )
    has_time = "time" in attributes
    if has_time:
        attributes["time"] = datetime.fromisoformat(str(attributes["time"]))
        if attributes["time"].tzinfo is None:
            attributes["time"] = attributes["time"].replace(tzinfo=UTC)
    try:
        event = CloudEvent(attributes, data)
    except Exception as error:  # CloudEventValidationError, which is no ValueError, in several lines
        raise ValueError(" ".join(str(error).split())[:300]) from None
    if not has_time:
        event.get_attributes().pop("time")
    return event


def cloudevents_codec(*, structured: bool = False, data: Codec[Any] | None = None) -> PropertyCodec[CloudEvent]:
    """A codec for events. structured: write the whole event as JSON in the body; otherwise its attributes are properties.

    Messages of both modes are read. data: codec of the events' data; without one bytes are written as they are, and other values by
    `datacontenttype`, by default as JSON; values are read as JSON for a JSON content type, text for text/*, and bytes otherwise.
    Needs the extra `cloudevents`.

    Example:
        codec = cloudevents_codec(data=json_codec(Order))
        async with client.consumer("billing", codec=codec) as inbox:
            await inbox.subscribe("orders")
            async for message in inbox:
                print(message.value.get_type(), message.value.get_data())
    """
    return CloudEventsCodec(structured=structured, data=data)
