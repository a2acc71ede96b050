"""Differential tests of the filter package against Apache's filter jar: verdicts, bloom filter bits, tag codes."""

from __future__ import annotations

import json
import subprocess
from base64 import b64encode
from collections import Counter
from pathlib import Path
from random import Random

import javatools
import pytest
from filter_expressions import pairs

from saturnmq.filter import BloomFilter, FilterError, PropertyError, compile_sql, parse_tags

FILTER_TESTS = Path(__file__).resolve().parent.parent / "filter"


def ask(lines: list[str]) -> list[str]:
    """The jar's answer to each line; see Verdicts.java."""
    java = javatools._java()
    assert java is not None
    command = [java, "-Xmx512m", "-cp", javatools.classpath(), str(FILTER_TESTS / "java" / "Verdicts.java")]
    text = "".join(line + "\n" for line in lines)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = done.stdout.splitlines()
    assert len(answers) == len(lines)
    return answers


def coded(text: str) -> str:
    return b64encode(text.encode()).decode()


def sql_line(text: str, properties: dict[str, str]) -> str:
    return " ".join(["sql", coded(text), *(coded(part) for pair in properties.items() for part in pair)])


def verdict(text: str, properties: dict[str, str]) -> str:
    try:
        return {True: "T", False: "F", None: "N"}[compile_sql(text).evaluate(properties)]
    except FilterError:
        return "E"
    except PropertyError:
        return "X"


@pytest.mark.spec("FUZ-06", "FIL-09", "FIL-10", "FIL-11", "FIL-12", "FIL-13", "FIL-14", "FIL-15")
def test_sql_verdicts_equal_apache_on_generated_pairs() -> None:
    cases = list(pairs(seed=497, expressions=34_000))
    answers = [answer[0] for answer in ask([sql_line(*case) for case in cases])]
    assert len(answers) >= 100_000
    assert min(Counter(answers).values()) > 5000, Counter(answers)
    wrong = [(case, ours, said) for case, said in zip(cases, answers, strict=True) if (ours := verdict(*case)) != said]
    assert wrong[:5] == []


@pytest.mark.spec("FIL-09", "FIL-10", "FIL-11", "FIL-12", "FIL-13", "FIL-14", "FIL-15")
def test_sql_corpus_equals_apache() -> None:
    corpus = json.loads((FILTER_TESTS / "sql92_corpus.json").read_text(encoding="utf-8"))["cases"]
    answers = ask([sql_line(text, properties) for _, text, properties, _ in corpus])
    assert [answer[0] for answer in answers] == [said for *_, said in corpus]


@pytest.mark.spec("FIL-07")
def test_bloom_positions_equal_apache() -> None:
    random = Random(7)
    cases = [
        (percent, consumers, "".join(random.choice("abcXYZ#%é漢😀_-") for _ in range(random.randint(0, 70))))
        for percent in range(1, 100)
        for consumers in (1, 2, 7, 32, 33, 64, 100, 1000)
    ]
    for (percent, consumers, text), answer in zip(
        cases, ask([f"bloom {percent} {consumers} {coded(text)}" for percent, consumers, text in cases]), strict=True
    ):
        bloom = BloomFilter(percent, consumers)
        assert [bloom.hash_count, bloom.bits, *bloom.positions(text)] == [int(part) for part in answer.split()], (
            percent,
            text,
        )


@pytest.mark.spec("FIL-01")
def test_tag_codes_equal_apache() -> None:
    random = Random(11)
    texts = ["*", "", " * ", "||", "||||", "|||", " || ", "* || a", "\u3000x || y", "\tq\x00||z", "😀 || TagA"]
    texts += ["".join(random.choice("|||ab \t*é") for _ in range(random.randint(1, 12))) for _ in range(2000)]
    for text, answer in zip(texts, ask([f"tags {coded(text)}" for text in texts]), strict=True):
        try:
            expression = parse_tags(text)
        except FilterError:
            assert answer == "E", text
        else:
            assert f"{expression.text} {' '.join(map(str, sorted(expression.codes)))}" == answer, text
