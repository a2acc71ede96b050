"""Names of the versions that clients and brokers state as a number, in the order of Java's MQVersion."""

from __future__ import annotations

from typing import Final


def _version_names() -> tuple[str, ...]:
    names = [f"V3_0_0_{name}" for name in ("SNAPSHOT", "ALPHA1", *(f"BETA{n}" for n in range(1, 6)))]
    names += [f"V3_0_0_BETA{n}{suffix}" for n in range(6, 10) for suffix in ("_SNAPSHOT", "")]
    names.append("V3_0_0_FINAL")
    releases = [(3, 0, n) for n in range(1, 16)]
    releases += [(3, minor, n) for minor in range(1, 10) for n in range(0 if minor < 3 else 1, 10)]
    releases += [(major, minor, n) for major in (4, 5) for minor in range(10) for n in range(10)]
    names += [f"V{a}_{b}_{c}{suffix}" for a, b, c in releases for suffix in ("_SNAPSHOT", "")]
    return (*names, "HIGHER_VERSION")


VERSIONS: Final = _version_names()


def version_name(ordinal: int) -> str:
    """The name of a client's or broker's version, such as V4_9_7 for 407."""
    return VERSIONS[min(max(ordinal, 0), len(VERSIONS) - 1)]
