"""Address rules: which peers a white list, or any other list of addresses, names.

    form                                            matches
    empty                                           nothing
    *   *.*.*.*   *:*:*:*:*:*:*:*                   everything
    a.b.c.{x,y}   a:b:c:d:e:f:g:{x,y}               the listed addresses
    ip1,ip2                                         the listed addresses
    a.b.*.*   a.b.10-20.*   a.b.c.10-20             the first of the parts 2 to 4 that holds * or x-y decides
    a:b:*   a:b:10-20   a:b:10-20:*                 the same for IPv6, in hexadecimal
    single address                                  that address, in any spelling

Any text either becomes a rule or raises ConfigError; the time is linear in its length. A rule matches any text in constant time;
an IPv4 address in IPv6 form (::ffff:a.b.c.d) counts as IPv4.

Requirements: ACL-06, ACL-07, FUZ-09.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from saturnmq.protocol.addresses import Address, parse_address
from saturnmq.protocol.errors import ConfigError

_EVERYTHING: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_RANGE_LENGTH_MAX: Final = 128  # of a rule with a range of IPv6 addresses
_SHOWN_LENGTH_MAX: Final = 200
_GROUPS: Final = 8  # of an IPv6 address


def _parts(address: Address) -> tuple[int, ...]:
    packed = address.packed
    if isinstance(address, IPv4Address):
        return tuple(packed)
    return tuple(int.from_bytes(packed[at : at + 2], "big") for at in range(0, 2 * _GROUPS, 2))


@dataclass(frozen=True, slots=True)
class AddressRule:
    """One parsed rule. everything: it matches any peer. range: (size of the address in parts, leading parts, low, high)."""

    text: str
    everything: bool = False
    addresses: frozenset[Address] = frozenset()
    range: tuple[int, tuple[int, ...], int, int] | None = None

    def matches(self, host: str) -> bool:
        """Whether the rule matches a peer's address, which is text without a port."""
        if self.everything:
            return True
        if not self.addresses and self.range is None:
            return False
        address = parse_address(host)
        if address is None:
            return False
        if self.range is None:
            return address in self.addresses
        size, head, low, high = self.range
        parts = _parts(address)
        return len(parts) == size and parts[: len(head)] == head and low <= parts[len(head)] <= high


NOTHING: Final = AddressRule("")


class AddressList:
    """Several rules; a peer matches if one of them does."""

    __slots__ = ("_addresses", "_ranges", "everything", "texts")

    def __init__(self, rules: Iterable[AddressRule] = ()) -> None:
        rule_list = tuple(rules)
        self.texts = tuple(rule.text for rule in rule_list)
        self.everything = any(rule.everything for rule in rule_list)
        self._addresses = frozenset(address for rule in rule_list for address in rule.addresses)
        self._ranges = tuple(rule for rule in rule_list if rule.range is not None)

    def __bool__(self) -> bool:
        """Whether the list matches any address at all."""
        return self.everything or bool(self._addresses or self._ranges)

    def matches(self, host: str) -> bool:
        """Whether a rule matches a peer's address, which is text without a port."""
        if self.everything:
            return True
        address = parse_address(host)
        return address is not None and (address in self._addresses or any(rule.matches(host) for rule in self._ranges))


def parse_rule(text: str) -> AddressRule:
    """Parse one rule. Raises ConfigError."""
    if not text.strip():
        return AddressRule(text)
    if text in _EVERYTHING:
        return AddressRule(text, everything=True)
    if text.endswith("}"):
        return AddressRule(text, addresses=_listed(text, _braces(text)))
    if "," in text:
        return AddressRule(text, addresses=_listed(text, [part for part in text.split(",") if part]))
    if "*" in text or "-" in text:
        return AddressRule(text, range=_range_v6(text) if ":" in text else _range_v4(text))
    return AddressRule(text, addresses=_listed(text, [text]))


def parse_list(text: str) -> AddressList:
    """Parse rules that are separated by commas; commas inside braces belong to their rule. Raises ConfigError."""
    rules: list[str] = []
    start = depth = 0
    for at, char in enumerate(text):
        if char == "," and not depth:
            rules.append(text[start:at])
            start = at + 1
        elif char in "{}":
            depth = 1 if char == "{" else 0
    rules.append(text[start:])
    return AddressList(parse_rule(rule.strip()) for rule in rules)


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH_MAX else text[:_SHOWN_LENGTH_MAX] + "..."


def _bad_address(text: str) -> ConfigError:
    return ConfigError(f"Netaddress examine Exception netaddress is {_shown(text)}")


def _bad_scope(text: str) -> ConfigError:
    return ConfigError(f"Netaddress examine scope Exception netaddress is {_shown(text)}")


def _braces(text: str) -> list[str]:
    """The addresses of `a.b.c.{x,y}`; braces are allowed in the last part only."""
    head, brace, last = text.partition("{")
    separator = ":" if ":" in text else "."
    if not brace or not head.endswith(separator) or "{" in last or "}" in last[:-1]:
        raise _bad_scope(text)
    return [head + part for part in last[:-1].split(",") if part]


def _listed(text: str, spelled: list[str]) -> frozenset[Address]:
    addresses = set()
    for address_text in spelled:
        address = parse_address(address_text)
        if address is None:
            raise _bad_address(address_text)
        addresses.add(address)
    if not addresses:
        raise _bad_address(text)
    return frozenset(addresses)


def _number(text: str, base: int, top: int, rule: str) -> int:
    """A part of an address as a number in 0..top. Leading zeros are allowed in IPv6 only."""
    digits = "0123456789" if base == 10 else "0123456789abcdefABCDEF"
    if not 1 <= len(text) <= 4 or text.strip(digits) or (base == 10 and len(text) > 1 and text[0] == "0"):
        raise _bad_scope(rule)
    number = int(text, base)
    if number > top:
        raise _bad_scope(rule)
    return number


def _bounds(part: str, base: int, top: int, rule: str) -> tuple[int, int]:
    """Low and high of `*` or `x-y`."""
    if part == "*":
        return 0, top
    low_text, _, high_text = part.partition("-")
    low, high = _number(low_text.strip(), base, top, rule), _number(high_text.strip(), base, top, rule)
    if low > high:
        raise _bad_scope(rule)
    return low, high


def _range_v4(text: str) -> tuple[int, tuple[int, ...], int, int]:
    parts = [part.strip() for part in text.split(".", 4)]
    if len(parts) != 4:
        raise _bad_scope(text)
    at = next((i for i in (1, 2, 3) if parts[i] == "*" or "-" in parts[i]), None)
    if at is None:
        raise _bad_scope(text)
    head = tuple(_number(part, 10, 255, text) for part in parts[:at])
    low, high = _bounds(parts[at], 10, 255, text)
    for part in parts[at + 1 :]:  # they decide nothing, but nonsense there is a mistake
        if part == "*" or "-" in part:
            _bounds(part, 10, 255, text)
        else:
            _number(part, 10, 255, text)
    return 4, head, low, high


def _range_v6(text: str) -> tuple[int, tuple[int, ...], int, int]:
    top = 0xFFFF
    if len(text) > _RANGE_LENGTH_MAX:
        raise _bad_scope(text)
    head_text, _, last = text.rpartition(":")
    groups_max = 7
    if last == "*":
        low, high = 0, top
        before, _, previous = head_text.rpartition(":")
        if "-" in previous:
            low, high = _bounds(previous.strip(), 16, top, text)
            head_text, groups_max = before, 6
    elif "-" in last:
        low, high = _bounds(last.strip(), 16, top, text)
    else:
        raise _bad_scope(text)
    return _GROUPS, _expanded(head_text, groups_max, text), low, high


def _expanded(text: str, groups: int, rule: str) -> tuple[int, ...]:
    """The leading groups of an IPv6 rule; `::` stands for as many zero groups as complete the given number."""
    if text.endswith(":"):
        text += ":"  # the rule has `::` before its last part, and one colon was the separator
    head_text, gap, tail_text = text.partition("::")
    head = [_number(part, 16, 0xFFFF, rule) for part in head_text.split(":")] if head_text else []
    tail = [_number(part, 16, 0xFFFF, rule) for part in tail_text.split(":")] if tail_text else []
    if gap:
        if len(head) + len(tail) >= groups:
            raise _bad_scope(rule)
        head += [0] * (groups - len(head) - len(tail)) + tail
    if not 1 <= len(head) <= groups:
        raise _bad_scope(rule)
    return tuple(head)
