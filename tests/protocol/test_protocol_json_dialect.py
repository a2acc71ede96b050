"""The JSON dialect of Apache RocketMQ (docs/spec/00 section 3.5, REM-33)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.protocol.errors import BodyError, LocalProtocolError
from saturnmq.protocol.json_dialect import DEPTH_MAX, ObjectKey, dumps, loads
from tolerantjson import tolerant_loads

QUEUE = {"brokerName": "a", "queueId": 0, "topic": "t"}

DIALECT = {
    "numeric keys": ('{0:"ip:port",1:"x",-1:"y"}', {"0": "ip:port", "1": "x", "-1": "y"}),
    "bare member names": ('{a:1,b_c:"x",$d:2}', {"a": 1, "b_c": "x", "$d": 2}),
    "single quotes": ("""{'a':'it\\'s "x"'}""", {"a": 'it\'s "x"'}),
    "bare words are text": ("[SINGLE_TAG, true, false, null]", ["SINGLE_TAG", True, False, None]),
    "bare address": ("[10.0.0.1]", ["10.0.0.1"]),
    "trailing comma": ('{"a":[1,2,],}', {"a": [1, 2]}),
    "blanks everywhere": (' { 1 : [ 2 , "x" ] , a : { } } \n', {"1": [2, "x"], "a": {}}),
    "tabs as in files": ('{\n\t"offsetTable":{1:2,2:1\n\t}\n}', {"offsetTable": {"1": 2, "2": 1}}),
    "64-bit numbers": (
        "{1:9223372036854775807,2:-9223372036854775808}",
        {"1": 9223372036854775807, "2": -9223372036854775808},
    ),
    "floats": ("{1:1.5,2:-2e3,3:0.0,4:1E-2}", {"1": 1.5, "2": -2000.0, "3": 0.0, "4": 0.01}),
    "escapes": (r"""{1:"\"\\\/\b\f\n\r\t\u0041\x42"}""", {"1": '"\\/\b\f\n\r\tAB'}),
    "escaped pair": (r'{1:"\ud83d\ude00"}', {"1": "\U0001f600"}),
    "marks inside text": ('{1:"{a:[1,2]}"}', {"1": "{a:[1,2]}"}),
    "control characters inside text": ('{1:"a\x01b\nc"}', {"1": "a\x01b\nc"}),
    "non-ASCII": ('{名:"值"}', {"名": "值"}),
    "last of equal names": ("{a:1,a:2}", {"a": 2}),
    "empty": ("{}", {}),
}


@pytest.mark.spec("REM-33")
@pytest.mark.parametrize(("text", "expected"), DIALECT.values(), ids=DIALECT.keys())
def test_dialect_is_accepted(text: str, expected: Any) -> None:
    assert loads(text) == expected
    assert tolerant_loads(text.encode()) == expected
    assert loads(bytearray(text.encode())) == expected
    assert loads(memoryview(text.encode())) == expected


@pytest.mark.spec("REM-33")
def test_object_keys_are_read_and_written() -> None:
    text = b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:{"minOffset":1},{queueId:1}:2}}'
    table = loads(text)["offsetTable"]
    assert table == {ObjectKey(QUEUE): {"minOffset": 1}, ObjectKey({"queueId": 1}): 2}
    assert [key.fields for key in table] == [QUEUE, {"queueId": 1}]
    assert dumps({"offsetTable": {ObjectKey(QUEUE): {"minOffset": 1}}}) == (
        b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:{"minOffset":1}}}'
    )


@pytest.mark.spec("REM-33")
def test_object_keys_compare_equal_in_any_member_order() -> None:
    key, turned = ObjectKey(QUEUE), ObjectKey(dict(reversed(QUEUE.items())))
    assert key == turned
    assert hash(key) == hash(turned)
    assert key != ObjectKey({**QUEUE, "queueId": 1})
    assert key != ObjectKey({**QUEUE, "queueId": "0"})
    assert key != "a"
    assert "queueId" in repr(key)


REFERENCES = {
    "member": ('{"a":{"x":1},"b":{"$ref":"$.a"}}', {"a": {"x": 1}, "b": {"x": 1}}),
    "index": (
        '{"a":[{"x":1},[5]],"b":[{"$ref":"$.a[0]"},{"$ref":"$.a[1]"}]}',
        {"a": [{"x": 1}, [5]], "b": [{"x": 1}, [5]]},
    ),
    "escaped name": (
        r'{"%RETRY%g.x":{"x":1},"b":{"$ref":"$.\\%RETRY\\%g\\.x"}}',
        {"%RETRY%g.x": {"x": 1}, "b": {"x": 1}},
    ),
    "quoted name": ("""{"a b":{"x":1},"b":{"$ref":"$['a b']"}}""", {"a b": {"x": 1}, "b": {"x": 1}}),
    "numeric name": ('{"a":{0:{"x":1}},"b":{"$ref":"$.a.0"}}', {"a": {"0": {"x": 1}}, "b": {"x": 1}}),
    "of a reference": (
        '{"a":{"x":1},"b":{"$ref":"$.a"},"c":{"$ref":"$.b"}}',
        {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1}},
    ),
    "to nothing": (
        '{"b":{"$ref":"$.a"},"c":[{"$ref":"$.b[7]"},{"$ref":"??"},{"$ref":"$["}]}',
        {"b": None, "c": [None] * 3},
    ),
    "forward": ('{"b":{"$ref":"$.c"},"c":{"$ref":"$.b"}}', {"b": None, "c": None}),
    "more than a reference": ('{"b":{"$ref":"$","x":1}}', {"b": {"$ref": "$", "x": 1}}),
    "not a path": ('{"b":{"$ref":1}}', {"b": {"$ref": 1}}),
    "just text": ('{"b":"$ref"}', {"b": "$ref"}),
}


@pytest.mark.spec("REM-33")
@pytest.mark.parametrize(("text", "expected"), REFERENCES.values(), ids=REFERENCES.keys())
def test_back_references_are_resolved(text: str, expected: Any) -> None:
    assert loads(text) == expected
    assert loads(text.encode()) == expected


@pytest.mark.spec("REM-33")
@pytest.mark.parametrize(
    "text",
    [
        '{"a":{"$ref":"$"}}',
        '{"a":{"b":[{"$ref":"$.a"}]}}',
        '{{"$ref":"$"}:1}',
        '{{"a":{"$ref":"$"}}:1}',
    ],
)
def test_cyclic_references_and_references_in_keys_are_rejected(text: str) -> None:
    with pytest.raises(BodyError):
        loads(text)


@pytest.mark.spec("REM-33")
def test_reference_expansion_is_bounded() -> None:
    levels = ['"l0":["x","x"]'] + [f'"l{n}":[' + ",".join([f'{{"$ref":"$.l{n - 1}"}}'] * 10) + "]" for n in range(1, 9)]
    assert len(loads("{" + ",".join(levels[:4]) + "}")["l3"]) == 10
    with pytest.raises(BodyError, match="more than"):
        loads("{" + ",".join(levels) + "}")


BAD = [
    "",
    " ",
    "{",
    "[",
    "}",
    "]",
    ":",
    ",",
    "{1}",
    "{1:}",
    "{1:2",
    "{1:2,3}",
    "[1 2]",
    "[1:2]",
    '["abc',
    "['abc",
    "{:1}",
    "{[1]:2}",
    "{a:1}{",
    "[1]x",
    r'["\q"]',
    r'["\u12"]',
    "{{{1:2}:3}:4}",
    "{{a:[1]}:1}",
    '{"a" 1}',
    b"\xff\xfe",
    b'["\xff"]',
    "[\x00",
]


@pytest.mark.spec("REM-33")
@pytest.mark.parametrize("text", BAD)
def test_invalid_json_raises_body_error(text: str | bytes) -> None:
    with pytest.raises(BodyError):
        loads(text)


@pytest.mark.spec("REM-33")
def test_json_depth_and_size_are_bounded() -> None:
    assert tolerant_loads("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1)) is not None
    for opening in ("[", "{a:", "{{", '{"a":['):
        with pytest.raises(BodyError, match="deeper"):
            loads(opening * 50_000)
    assert loads("[1]", bytes_max=3) == [1]
    with pytest.raises(BodyError, match="at most 2"):
        loads("[1]", bytes_max=2)


@pytest.mark.spec("FUZ-09", "REM-33")
@pytest.mark.parametrize(
    "text",
    [
        '["' + "\\a" * 200_000,
        "['" + "x" * 400_000,
        "[" + "9" * 400_000,
        "[1" + "," * 400_000,
        "{" + "a" * 400_000,
        "[" + "1," * 100_000 + "}",
        "[" + '{"$ref":"$.a"},' * 20_000,
        "[" + "\\" * 400_000,
        " " * 400_000 + "x y",
    ],
    ids=range(9),
)
@pytest.mark.timeout(60)  # a reader with quadratic time takes minutes
def test_hostile_input_takes_linear_time(text: str) -> None:
    with pytest.raises(BodyError):
        loads(text)


@pytest.mark.spec("REM-33")
def test_numbers_beyond_64_bits_become_floats() -> None:
    assert tolerant_loads("[123456789012345678901234567890]") == [1.2345678901234568e29]
    assert loads("[123456789012345678901234567890]") == [1.2345678901234568e29]


@pytest.mark.spec("REM-33")
def test_config_files_of_apache_are_readable(vectors: Path) -> None:
    files = sorted((vectors / "store").glob("*/config/*.json"))
    assert len(files) > 10
    for path in files:
        assert loads(path.read_bytes()), path
    offsets = loads((vectors / "store" / "broker" / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    assert offsets["VecSql@vec_sql_group"] == {"0": 8, "1": 0}
    assert loads((vectors / "store" / "broker" / "config" / "delayOffset.json").read_bytes()) == {
        "offsetTable": {"1": 2, "2": 1}
    }


text = st.text(st.characters(codec="utf-8"), max_size=8)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
object_keys = st.builds(ObjectKey, st.dictionaries(text, st.integers(0, 9), max_size=3))


@pytest.mark.spec("REM-33")
@given(json_values)
def test_tolerant_reader_agrees_with_standard_parser(value: Any) -> None:
    assert "$ref" not in json.dumps(value)
    assert tolerant_loads(json.dumps(value)) == value
    assert tolerant_loads(json.dumps(value, ensure_ascii=False, indent=1)) == value
    assert loads(dumps(value)) == value


@pytest.mark.spec("REM-33")
@given(st.dictionaries(object_keys, json_values, max_size=3))
def test_object_keys_round_trip(table: dict[ObjectKey, Any]) -> None:
    written = dumps({"t": table})
    assert b"$ref" in written or loads(written) == {"t": table}


@pytest.mark.spec("REM-33")
def test_writer_emits_standard_json_except_object_keys() -> None:
    assert dumps({"a": [1, 2.5, True, None, "名"]}) == '{"a":[1,2.5,true,null,"名"]}'.encode()
    assert dumps({1: "x", -2: {}}) == b'{"1":"x","-2":{}}'
    mixed = {ObjectKey({"q": 1}): [float("nan"), float("inf"), (), {}, '"', -(2**63)]}
    assert dumps(mixed) == b'{{"q":1}:[null,null,[],{},"\\"",-9223372036854775808]}'


@pytest.mark.parametrize("value", [object(), {object(): 1}, {True: object()}, [b"x"], {"a": {1, 2}}, ["\ud800"]])
def test_unserializable_values_raise_local_error(value: Any) -> None:
    with pytest.raises(LocalProtocolError):
        dumps(value)


def test_too_deeply_nested_value_raises_local_error() -> None:
    value: Any = {ObjectKey({"a": 1}): 1}
    for _ in range(DEPTH_MAX + 1):
        value = [value]
    with pytest.raises(LocalProtocolError, match="deeper"):
        dumps(value)


@pytest.mark.spec("REM-33")
def test_fallback_without_fast_parser_passes_same_tests() -> None:
    program = """
import sys
sys.modules["orjson"] = None  # as if it were not installed
import pytest
from saturnmq.protocol import json_dialect
from saturnmq.protocol.frames import command
assert "orjson" not in vars(json_dialect) and "orjson" not in vars(command)
chosen = [f"{sys.argv[1]}/test_protocol_{name}.py" for name in ("json_dialect", "bodies", "frames")]
loaded = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # before pytest was
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *loaded, "-k", "not fast_parser", *chosen]))
"""
    here = Path(__file__).parent
    run = subprocess.run(
        [sys.executable, "-c", program, str(here)], cwd=here.parent.parent, capture_output=True, timeout=100
    )
    assert run.returncode == 0, run.stdout.decode()[-3000:] + run.stderr.decode()[-1000:]
