"""Reads the text of a scrape with the parser of prometheus-client."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families


def families(text: str) -> dict[str, Metric]:
    """The families of a scrape by name; a counter's name is without _total. Raises ValueError for text that is none."""
    found: dict[str, Metric] = {}
    for family in text_string_to_metric_families(text):
        assert family.name not in found, f"{family.name} stands twice"
        found[family.name] = family
    return found


def values(text: str, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """The samples of one name by their labels, sorted."""
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in families(text).values()
        for sample in family.samples
        if sample.name == name
    }
