"""Identity of a client: the local address towards a peer, client ids, and the month in message ids."""

from __future__ import annotations

import os
import re
import socket
import time
from datetime import datetime

import psutil
import pytest

from saturnmq.client.connection import identity
from saturnmq.client.connection.identity import MessageIds, client_id, local_ip, month_start_ms

OWN_ADDRESSES = sorted(
    {
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    }
)


@pytest.mark.parametrize("address", OWN_ADDRESSES)
def test_local_ip_is_the_one_that_reaches_the_peer(address: str) -> None:
    assert local_ip(f"{address}:9876") == address


def test_local_ip_of_localhost_and_of_ipv6() -> None:
    assert local_ip("localhost:9876") == "127.0.0.1"
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.connect(("::1", 9876))
    except OSError:
        assert local_ip("[::1]:9876") == "127.0.0.1", "no IPv6 here"
    else:
        assert local_ip("[::1]:9876") == "::1"


@pytest.mark.parametrize("peer", ["", "127.0.0.1:", "127.0.0.1:x", "[zz::1]:9876"])
def test_local_ip_of_an_unusable_peer_is_127_0_0_1(peer: str) -> None:
    assert local_ip(peer) == "127.0.0.1"


def test_client_id_is_address_instance_and_unit() -> None:
    assert client_id("10.0.0.1", "orders", None) == "10.0.0.1@orders"
    assert client_id("10.0.0.1", "orders", "u") == "10.0.0.1@orders@u"
    ids = {client_id("10.0.0.1", None, None) for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(rf"10\.0\.0\.1@{os.getpid()}#\d{{1,20}}", text) for text in ids)
    assert max(int(text.partition("#")[2]) for text in ids) > 2**32, "64 random bits"


def test_month_begins_at_local_midnight_of_its_first_day() -> None:
    for moment in (datetime(2026, 11, 27, 13, 5, 9), datetime(2026, 11, 1), datetime(2024, 2, 29, 23, 59, 59)):
        first = datetime(moment.year, moment.month, 1)
        assert month_start_ms(moment.timestamp()) == int(first.timestamp()) * 1000, moment


def milliseconds(message_id: str) -> int:
    """The time in a message id: ms since the start of the month."""
    return int(message_id[-12:-4], 16)


def test_message_ids_count_from_the_month_that_was_checked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a minute of a check the old month counts on; afterwards the time starts again."""
    end_of_month = datetime(2026, 11, 1).timestamp()
    made_at = end_of_month - 30
    monkeypatch.setattr(identity.time, "time", lambda: made_at)
    ids = MessageIds("10.0.0.1")
    october = end_of_month - datetime(2026, 10, 1).timestamp()
    assert milliseconds(ids.next(made_at)) == (october - 30) * 1000
    assert milliseconds(ids.next(made_at + 60)) == (october + 30) * 1000
    assert milliseconds(ids.next(made_at + 61)) == 31_000
    assert milliseconds(ids.next(made_at + 62)) == 32_000


def test_reserved_message_ids_continue_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    end_of_month = datetime(2026, 11, 1).timestamp()
    made_at = end_of_month - 30
    monkeypatch.setattr(identity.time, "time", lambda: made_at)
    ids = MessageIds("10.0.0.1")
    october = end_of_month - datetime(2026, 10, 1).timestamp()
    before = ids.next(made_at + 60)
    shared, first = ids.take(made_at + 60, 5)
    assert shared == before[:-4] and milliseconds(f"{shared}0000") == (october + 30) * 1000
    assert first == int(before[-4:], 16) + 1
    assert int(ids.next(made_at + 60)[-4:], 16) == first + 5
    shared, _ = ids.take(made_at + 61, 1)
    assert milliseconds(f"{shared}0000") == 31_000, "a new month, checked once a minute"


def test_message_ids_hold_the_address_or_127_0_0_1() -> None:
    now_s = time.time()
    for ip, start in (("10.0.0.1", "0A000001"), ("::1", "0" * 31 + "1"), ("fe80::1%eth0", "7F000001")):
        assert MessageIds(ip).next(now_s).startswith(start), ip
    one, other = MessageIds("10.0.0.1"), MessageIds("10.0.0.1")
    assert one.next(now_s)[:-12] != other.next(now_s)[:-12], "two clients of one process"
