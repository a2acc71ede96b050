"""Bloom filter of the extended consume queue: one bit map per message, with k bits for every group whose expression is true.

    bit p of a map: byte p // 8, mask 1 << (p % 8)
    positions of a text: h = first 64 bits of murmur3_x64_128(UTF-8, seed 0), low and high its halves as signed 32 bits;
                         for i in 1..k: c = low + i * high (32-bit wrap), if negative ~c; position c % m
    k = ceil(log_½(f / 100)), m = ceil(n * log2(100 / f) * log2(e)) rounded up to 8
                         f: error rate in percent, n: expected number of filtering consumers per broker

Requirements: FIL-07, CQ-14.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from saturnmq.protocol.errors import ConfigError

_U64_MASK: Final = 0xFFFFFFFFFFFFFFFF
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


class BloomFilter:
    """Maps a text to `hash_count` (k) of `bits` (m) bits. Immutable."""

    __slots__ = ("bits", "hash_count")

    def __init__(self, error_percent: int = 20, expected_consumers: int = 32) -> None:
        """Compute k and m from maxErrorRateOfBloomFilter (1..99) and expectConsumerNumUseFilter (1 or more). Raises ConfigError."""
        problems = []
        if not 1 <= error_percent < 100:
            problems.append(f"maxErrorRateOfBloomFilter is {error_percent}, must be 1 to 99 (percent)")
        if expected_consumers < 1:
            problems.append(f"expectConsumerNumUseFilter is {expected_consumers}, must be at least 1")
        if problems:
            raise ConfigError(problems)
        error_rate = error_percent / 100.0
        self.hash_count: int = math.ceil(_log(0.5, error_rate))
        bits_min = math.ceil(expected_consumers * _log(2, 1 / error_rate) * _log(2, math.e))
        self.bits: int = (bits_min + 7) // 8 * 8

    @property
    def map_bytes(self) -> int:
        """Length of a bit map in bytes."""
        return self.bits // 8

    def positions(self, text: str) -> list[int]:
        """The bits of a text: `hash_count` numbers below `bits`, possibly with duplicates."""
        h1, _ = murmur3_128(text.encode("utf-8", "replace"))
        low, high = _signed_32(h1), _signed_32(h1 >> 32)
        hashes = (_signed_32(low + i * high) for i in range(1, self.hash_count + 1))
        return [(~hash_32 if hash_32 < 0 else hash_32) % self.bits for hash_32 in hashes]

    def is_compatible(self, bits: int, positions: list[int]) -> bool:
        """Whether positions read from a file fit a filter of these parameters."""
        return (
            bits == self.bits
            and len(positions) == self.hash_count
            and all(0 <= position < bits for position in positions)
        )


def position_text(group: str, topic: str) -> str:
    """The text that is hashed for a subscription."""
    return f"{group}#{topic}"


def set_bits(bit_map: bytearray, positions: Iterable[int]) -> None:
    """Set the bits in place."""
    for position in positions:
        bit_map[position >> 3] |= 1 << (position & 7)


def has_bits(bit_map: bytes | bytearray | memoryview, positions: Iterable[int]) -> bool:
    """Whether all of the bits are set."""
    return all(bit_map[position >> 3] >> (position & 7) & 1 for position in positions)


def murmur3_128(data: bytes) -> tuple[int, int]:
    """MurmurHash3 128-bit, x64 variant, seed 0: two unsigned 64-bit words. Names as in the reference implementation."""
    h1 = h2 = 0
    blocks_end = len(data) & ~15
    for block_start in range(0, blocks_end, 16):
        h1 ^= _mix_k1(int.from_bytes(data[block_start : block_start + 8], "little"))
        h1 = (_rotate(h1, 27) + h2) * 5 + 0x52DCE729 & _U64_MASK
        h2 ^= _mix_k2(int.from_bytes(data[block_start + 8 : block_start + 16], "little"))
        h2 = (_rotate(h2, 31) + h1) * 5 + 0x38495AB5 & _U64_MASK
    tail = data[blocks_end:]
    h2 ^= _mix_k2(int.from_bytes(tail[8:], "little"))
    h1 ^= _mix_k1(int.from_bytes(tail[:8], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = h1 + h2 & _U64_MASK
    h2 = h2 + h1 & _U64_MASK
    h1, h2 = _fmix64(h1), _fmix64(h2)
    h1 = h1 + h2 & _U64_MASK
    return h1, h2 + h1 & _U64_MASK


def _mix_k1(block: int) -> int:
    return _rotate(block * _C1 & _U64_MASK, 31) * _C2 & _U64_MASK


def _mix_k2(block: int) -> int:
    return _rotate(block * _C2 & _U64_MASK, 33) * _C1 & _U64_MASK


def _fmix64(state: int) -> int:
    state = (state ^ state >> 33) * 0xFF51AFD7ED558CCD & _U64_MASK
    state = (state ^ state >> 33) * 0xC4CEB9FE1A85EC53 & _U64_MASK
    return state ^ state >> 33


def _rotate(u64: int, bits: int) -> int:
    return (u64 << bits | u64 >> (64 - bits)) & _U64_MASK


def _signed_32(value: int) -> int:
    low = value & 0xFFFFFFFF
    return low - 0x100000000 if low >= 0x80000000 else low


def _log(base: float, value: float) -> float:
    return math.log(value) / math.log(base)
