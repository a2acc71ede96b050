"""CloudEvents in messages: the bytes and properties of both modes, and what is no event."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent

from saturnmq import Client, DecodeError, EncodeError, json_codec
from saturnmq.cloudevents import cloudevents_codec
from saturnmq.testing import EmbeddedBroker

ATTRIBUTES = {"id": "1", "source": "/shop", "type": "paid", "specversion": "1.0"}
PROPERTIES = {"CE_id": "1", "CE_source": "/shop", "CE_type": "paid", "CE_specversion": "1.0"}
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class Paid:
    order: int


def event(data: Any = None, **attributes: Any) -> CloudEvent:
    made = CloudEvent({**ATTRIBUTES, **attributes}, data)
    if "time" not in attributes:
        made.get_attributes().pop("time")
    return made


def same(first: CloudEvent, second: CloudEvent) -> bool:
    return (first.get_attributes(), first.get_data()) == (second.get_attributes(), second.get_data())


def test_binary_event_has_its_attributes_as_properties() -> None:
    body, properties = cloudevents_codec().encode_message(
        event({"order": 7}, time=NOON, subject="o/7", count=3, final=True)
    )
    assert json.loads(body) == {"order": 7}
    assert properties == {
        **PROPERTIES,
        "CE_time": "2026-03-01T12:00:00Z",
        "CE_subject": "o/7",
        "CE_count": "3",
        "CE_final": "true",
        "CE_contenttype": "application/json",
    }


def test_structured_event_is_one_json_document() -> None:
    codec = cloudevents_codec(structured=True)
    body, properties = codec.encode_message(event({"order": 7}, time=NOON, count=3))
    assert properties == {"CE_contenttype": "application/cloudevents+json"}
    expected = {**ATTRIBUTES, "time": "2026-03-01T12:00:00Z", "count": 3, "data": {"order": 7}}
    assert json.loads(body) == {**expected, "datacontenttype": "application/json"}
    body, _ = codec.encode_message(event(b"\x00\xff", datacontenttype="image/png"))
    assert json.loads(body)["data_base64"] == "AP8="


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize(
    ("data", "content_type"),
    [
        ({"a": [1]}, "application/json"),
        ([1, 2], "application/vnd.example+json; charset=utf-8"),
        ("größe", "text/plain"),
        ("größe", "application/json"),
        (b"\x00\xff", "image/png"),
        (None, "text/plain"),
    ],
)
def test_events_are_read_as_they_were_written(structured: bool, data: Any, content_type: str) -> None:
    written = event(data, datacontenttype=content_type, time=NOON, subject="s")
    message = cloudevents_codec(structured=structured).encode_message(written)
    assert same(cloudevents_codec().decode_message(*message), written)


def test_event_without_data_has_a_body_of_one_zero() -> None:
    body, properties = cloudevents_codec().encode_message(event())
    assert (body, properties) == (b"\x00", PROPERTIES)
    assert same(cloudevents_codec().decode_message(body, {**PROPERTIES, "UNIQ_KEY": "x", "color": "red"}), event())


@pytest.mark.parametrize("structured", [False, True])
def test_data_has_the_type_of_its_codec(structured: bool) -> None:
    codec = cloudevents_codec(structured=structured, data=json_codec(Paid))
    message = codec.encode_message(event(Paid(7)))
    assert codec.decode_message(*message).get_data() == Paid(7)
    with pytest.raises(DecodeError):
        codec.decode_message(message[0].replace(b"7", b'"x"'), message[1])


@pytest.mark.parametrize(
    ("body", "properties", "problem"),
    [
        (b"{}", {}, "attributes id, source, type are missing, specversion is None"),
        (b"{}", {**PROPERTIES, "CE_id": ""}, "attributes id are missing"),
        (b"{}", {**PROPERTIES, "CE_specversion": "0.3"}, "specversion is '0.3', must be '1.0'"),
        (b"{}", {**PROPERTIES, "CE_time": "noon"}, "noon"),
        (b"{}", {**PROPERTIES, "CE_Wrong": "x"}, "Wrong"),
        (b"{", {**PROPERTIES, "CE_contenttype": "application/json"}, "no CloudEvent: "),
        (b"\xff", {**PROPERTIES, "CE_contenttype": "text/plain"}, "utf-8"),
        (b"[]", {"CE_contenttype": "application/cloudevents+json"}, "JSON of type list, must be an object"),
        (b"{}", {"CE_contenttype": "Application/CloudEvents+JSON; charset=UTF-8"}, "attributes id, source, type"),
        (b"x", {"CE_contenttype": "application/cloudevents+avro"}, "format .*avro.* is not supported"),
        (b"[]", {"CE_contenttype": "application/cloudevents-batch+json"}, "format .*batch.* is not supported"),
        (
            json.dumps({**ATTRIBUTES, "data_base64": "?"}).encode(),
            {"CE_contenttype": "application/cloudevents+json"},
            "base64",
        ),
        (
            json.dumps({**ATTRIBUTES, "data": 1, "data_base64": "AA=="}).encode(),
            {"CE_contenttype": "application/cloudevents+json"},
            "data and data_base64",
        ),
    ],
)
def test_message_that_is_no_event_says_why(body: bytes, properties: dict[str, str], problem: str) -> None:
    with pytest.raises(DecodeError, match=problem):
        cloudevents_codec().decode_message(body, properties)


@pytest.mark.parametrize("value", [{}, "text", None])
def test_value_that_is_no_event_is_refused(value: Any) -> None:
    with pytest.raises(EncodeError, match="this codec takes a CloudEvent of version"):
        cloudevents_codec().encode_message(value)
    with pytest.raises(EncodeError, match="give text or bytes"):
        cloudevents_codec().encode_message(event({}, datacontenttype="image/png"))


async def test_events_pass_a_broker() -> None:
    async with EmbeddedBroker() as broker, Client.from_url(broker.url) as client:
        for structured in (False, True):
            async with client.producer(f"p-{structured}", codec=cloudevents_codec(structured=structured)) as out:
                await out.send("t", event({"order": 7}, time=NOON), properties={"CE_subject": "override"})
        async with client.consumer("readers", codec=cloudevents_codec(), start="first") as inbox:
            await inbox.subscribe("t")
            values = [(await inbox.recv(timeout=20)).value for _ in range(2)]
    assert [value.get_data() for value in values] == [{"order": 7}] * 2
    assert {value.get_subject() for value in values} == {"override", None}
