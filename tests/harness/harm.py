"""Damaged copies of a file's bytes, for tests of files that must be readable whatever a disk made of them."""

from __future__ import annotations

import random
from typing import Final

CHANGED: Final = 40


def harmed(data: bytes, rng: random.Random) -> list[bytes]:
    """Every shorter prefix of the data, then 40 copies of it with up to nine random bytes changed."""
    found = [data[:length] for length in range(len(data))]
    for _ in range(CHANGED):
        changed = bytearray(data)
        for at in rng.sample(range(len(data)), rng.randint(1, 9)):
            changed[at] ^= rng.randint(1, 255)
        found.append(bytes(changed))
    return found
