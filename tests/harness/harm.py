"""Damaged copies of a file's bytes, for tests of files that must be readable whatever a disk made of them."""

from __future__ import annotations

import random
from pathlib import Path
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


def damaged(folder: Path, chance: random.Random) -> str:
    """Damage a store at a random place; returns what was done."""
    path = chance.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "reserve"))
    raw = bytearray(path.read_bytes())
    name, kind = path.relative_to(folder), chance.choice(("flip", "flip", "flip", "zeros", "cut", "missing", "longer"))
    used = len(raw.rstrip(b"\0")) or 1
    at = chance.randrange(min(used, max(len(raw), 1)))
    if kind == "flip" and raw:
        raw[at] ^= 1 << chance.randrange(8)
    elif kind == "zeros":
        size = chance.choice((4, 20, 512, 4096))
        raw[at : at + size] = bytes(len(raw[at : at + size]))
    elif kind == "cut":
        del raw[at:]
    elif kind == "longer":
        raw += bytes(20)
    path.write_bytes(raw)
    if kind == "missing":
        path.unlink()
    return f"{kind} {name} at {at}"
