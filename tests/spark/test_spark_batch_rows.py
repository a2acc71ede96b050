"""Requests that compiled code encodes from Arrow's buffers equal those of the reference implementation, byte for byte."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotways import hot_module
from saturnmq.protocol.ids import UniqueIds
from saturnmq.spark import encode
from saturnmq.spark.encode import BadRowError, Encoder, SendTarget
from saturnmq.spark.sink_options import SinkOptions

TEXTS = st.one_of(st.none(), st.sampled_from(["", "t", "a b", "ä€😀", "a\x01b", "\x02", "x" * 33_000]))
ROWS = st.lists(
    st.tuples(
        st.one_of(st.binary(max_size=40), st.just(None), st.just(b"y" * 300)),
        TEXTS,
        TEXTS,
        st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
    ),
    max_size=30,
)
PLAIN = {"body": [b"a", b"bc"], "tags": ["t", None], "keys": [None, "k"], "flag": [None, -7]}


@pytest.fixture(scope="module", params=["compiled", "interpreted"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return hot_module("batch_rows", request.param)


def requests_of(module: ModuleType | None, batches: list[pa.RecordBatch], options: dict[str, Any]) -> Any:
    """All that an encoder yields, or its error; module: None for the reference implementation."""
    ids = UniqueIds("10.0.0.1", 7, 8, 0)
    ids.take(0, 65_530)  # the counter wraps
    encoder = Encoder(
        SinkOptions(**{"topic": "T"} | options),
        lambda count: ids.take(99, count),
        "q/1/0",
        lambda t, _key: SendTarget(t),
    )
    requests = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "COMPILED", module)
        try:
            for batch in batches:
                requests += encoder.add_batch(batch)
        except BadRowError as error:
            requests.append(str(error))  # type: ignore[arg-type]
        requests += encoder.remaining()
    return requests, encoder.rows, encoder.skipped, encoder.last_id


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(ROWS, max_size=3),
    cut=st.integers(0, 3),
    columns=st.sets(st.sampled_from(["tags", "keys", "flag"])),
    as_text=st.booleans(),
    options=st.fixed_dictionaries(
        {
            "batch_messages": st.sampled_from([1, 3, 10_000]),
            "batch_bytes": st.sampled_from([1, 400, 1_000_000]),
            "bad_rows": st.sampled_from(["fail", "skip"]),
            "compress": st.sampled_from(["none", "zlib"]),
            "compress_above": st.sampled_from([20, 4096]),
            "ack": st.sampled_from(["stored", "none"]),
        }
    ),
)
def test_compiled_requests_equal_those_of_the_reference(
    module: ModuleType,
    parts: list[list[tuple[Any, ...]]],
    cut: int,
    columns: set[str],
    as_text: bool,
    options: dict[str, Any],
) -> None:
    batches = []
    for rows in parts:
        body, tags, keys, flag = zip(*rows, strict=True) if rows else ((), (), (), ())
        if as_text:
            body = tuple(value and value.hex() for value in body)
        arrays = {
            "body": pa.array(body, pa.string() if as_text else pa.binary()),
            "tags": pa.array(tags, pa.string()),
            "keys": pa.array(keys, pa.string()),
            "flag": pa.array(flag, pa.int32()),
        }
        chosen = {name: array for name, array in arrays.items() if name == "body" or name in columns}
        batches.append(pa.RecordBatch.from_pydict(chosen).slice(cut))
    assert requests_of(module, batches, options) == requests_of(None, batches, options)


def test_plain_rows_are_encoded_by_compiled_code(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.RecordBatch.from_pydict(PLAIN | {"flag": pa.array(PLAIN["flag"], pa.int32())})
    expected = requests_of(None, [batch], {})
    monkeypatch.setattr(Encoder, "add", None)
    assert requests_of(module, [batch], {}) == expected


def test_rows_with_other_columns_are_left_to_the_reference(module: ModuleType) -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"a"], "properties": ["p\x011"], "topic": ["U"]})
    for options in ({}, {"topic": None}, {"dedupe": True}, {"delivery": "transactional"}):
        assert requests_of(module, [batch], options) == requests_of(None, [batch], options)


def test_offsets_outside_the_data_are_left_to_the_reference(module: ModuleType) -> None:
    offsets = memoryview(b"".join(value.to_bytes(4, "little", signed=True) for value in (0, 2, 9, 1, -1))).cast("i")
    values = module.Values(None, offsets, memoryview(b"abc"), 0)
    rows = module.BatchRows(4, values, None, None, None, b"", 1000)
    assert [(rows.measure(row, 1, 0, 1000, 32), rows.is_odd) for row in range(4)] == [
        (1, False),
        (0, True),
        (0, True),
        (0, True),
    ]
    with pytest.raises(IndexError):
        rows.write(bytearray(rows.size + 10), 0, 1, b"", 0)
