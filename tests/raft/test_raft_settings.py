"""The settings of a member: how its keys are read, checked, and passed to the core; and small rules of its ledger."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from saturnmq.raft.core.entry import ENTRY_MAGIC
from saturnmq.raft.core.settings import CoreSettings
from saturnmq.raft.ledger.layout import EntryHeader
from saturnmq.raft.ledger.walk import END_OF_FILES, NO_ENTRY, Walk, fault_of
from saturnmq.raft.settings import RaftProfile, RaftSettings, broker_id, parse_peers
from saturnmq.raft.ticker import SyncPause

PEERS = "n0-127.0.0.1:40911;n1-node-1.local:40912;n2-10.0.0.3:40913"


def settings(**more: Any) -> RaftSettings:
    return RaftSettings(**({"enabled": True, "group": "g", "peers_text": PEERS, "self_id": "n1"} | more))


# ---- members


@pytest.mark.spec("DL-M02")
def test_peers_are_ids_and_addresses() -> None:
    assert parse_peers(f" {PEERS} ; ") == {
        "n0": "127.0.0.1:40911",
        "n1": "node-1.local:40912",
        "n2": "10.0.0.3:40913",
    }
    assert parse_peers("n0-h:1;n1-h:65535") == {"n0": "h:1", "n1": "h:65535"}


@pytest.mark.spec("DL-M02")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no members are listed"),
        (" ; ", "no members are listed"),
        ("n0", "'n0' must be id-host:port"),
        ("-h:1", "must be id-host:port"),
        ("n0-:1", "must be id-host:port"),
        ("n0-h", "must be id-host:port"),
        ("n0-h:x", "must be id-host:port"),
        ("n0-h:0", "must be id-host:port"),
        ("n0-h:65536", "must be id-host:port"),
        ("n0-h:1;n0-h:2", "id 'n0' is listed twice"),
        ("n0-h:1;n1-h:1", "address h:1 is listed twice"),
    ],
)
def test_peers_that_make_no_sense_are_named(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_peers(text)


@pytest.mark.spec("DL-M03")
def test_broker_id_is_one_above_the_number_of_the_member() -> None:
    assert [broker_id(name) for name in ("n0", "n1", "a12")] == [1, 2, 13]
    for name in ("ab1", "n", "1", "n1a"):
        known = RaftSettings(enabled=True, group="g", peers_text=f"{name}-h:1", self_id=name)
        assert "one letter and digits" in known.validate()[0], name


def test_places_of_a_member_are_derived_from_its_keys() -> None:
    made = settings(data_folders_text=" /a, ,/b", read_only_text="/b ", preferred_leader_id=" n0 ; n2;")
    assert made.data_folders == (Path("/a"), Path("/b")) and made.read_only_folders == {Path("/b")}
    assert made.preferred_leaders == ("n0", "n2") and made.hosts["n1"] == "node-1.local"
    assert made.listen_address == ("node-1.local", 40912) and made.folder(Path("/s")) == Path("/s/dledger-n1")
    assert settings(bind_address="0.0.0.0").listen_address == ("0.0.0.0", 40912)
    assert settings().data_folders == () and settings().read_only_folders == frozenset()


@pytest.mark.parametrize(
    ("more", "problems"),
    [
        ({}, []),
        ({"enabled": False, "group": "", "peers_text": "x"}, []),
        ({"group": ""}, ["dLegerGroup is missing"]),
        ({"group": "", "peers_text": "x"}, ["dLegerGroup is missing", "dLegerPeers='x': 'x' must be id-host:port"]),
        ({"self_id": "n9"}, ["dLegerSelfId='n9' is not among the ids of dLegerPeers: n0, n1, n2"]),
        ({"self_id": "nx", "peers_text": "nx-h:1"}, ["dLegerSelfId='nx' must be one letter and digits"]),
        ({"learner": True}, []),
        ({"learner": True, "peers_text": "n1-h:1"}, ["dledger.learner=true needs the other members"]),
        ({"preferred_leader_id": "n2;n7"}, ["preferredLeaderId: 'n7' is not among the ids"]),
        ({"allowed_text": "10.0.0.x"}, ["dledger.allowedAddresses=10.0.0.x: "]),
        ({"require_secret": True}, ["dledger.requireClusterSecret=true needs dledger.clusterSecret"]),
        ({"require_secret": True, "cluster_secret": "s" * 16}, []),
        ({"cluster_secret": "s" * 15}, ["dledger.clusterSecret must have at least 16 bytes"]),
        ({"cluster_secret": "ü" * 8}, []),
        ({"vote_interval_min_ms": 1000}, ["vote interval: 0 < minimum < maximum must hold"]),
        ({"take_vote_interval_min_ms": 100}, ["vote interval while taking leadership"]),
        ({"lease_ms": 6000}, ["lease of 6000 ms must be shorter than the election timeout of 6000 ms"]),
        ({"lease_ms": 5999}, []),
    ],
)
def test_settings_that_make_no_sense_are_named(more: dict[str, Any], problems: list[str]) -> None:
    found = settings(**more).validate()
    assert len(found) == len(problems) and all(text in row for text, row in zip(problems, found, strict=True)), found


# ---- timers


@pytest.mark.spec("CHA-07", "DL-M04")
@pytest.mark.parametrize(
    ("profile", "timers"),
    [(RaftProfile.STANDARD, (2000, 300, 1000, 1000, 2000)), (RaftProfile.FAST, (500, 150, 500, 50, 500))],
)
def test_profile_sets_the_timers_that_the_file_does_not(profile: RaftProfile, timers: tuple[int, ...]) -> None:
    core = settings(profile=profile).core(4096, sync_before_ack=False)
    assert (
        core.heartbeat_interval_ms,
        core.vote_interval_min_ms,
        core.vote_interval_max_ms,
        core.commit_idle_ms,
        core.vote_wait_ms,
    ) == timers
    assert (core.file_bytes, core.sync_before_ack, core.fast) == (4096, False, None)
    assert core.announces_interval is (profile is RaftProfile.FAST)
    own = settings(profile=profile, heartbeat_interval_ms=7, vote_interval_min_ms=8, vote_interval_max_ms=9)
    own = dataclasses.replace(own, commit_idle_ms=10, vote_wait_ms=11)
    core = own.core(1, sync_before_ack=True)
    assert (core.heartbeat_interval_ms, core.vote_interval_min_ms, core.vote_interval_max_ms) == (7, 8, 9)
    assert (core.commit_idle_ms, core.vote_wait_ms, core.sync_before_ack) == (10, 11, True)


@pytest.mark.spec("CHA-07")
def test_auto_uses_fast_timers_if_the_file_allows_them() -> None:
    core = settings().core(1, sync_before_ack=True)
    fast = settings(profile=RaftProfile.FAST).core(1, sync_before_ack=True)
    assert core.announces_interval and core.fast == fast and not settings().auto_is_standard
    slow = settings(lease_ms=3000)  # longer than the election timeout of the fast profile
    assert slow.core(1, sync_before_ack=True).fast is None and slow.auto_is_standard and slow.validate() == []
    assert not dataclasses.replace(slow, profile=RaftProfile.STANDARD).auto_is_standard


def test_other_keys_reach_the_core_unchanged() -> None:
    names = [
        "heartbeat_leak_max", "lease_ms", "take_vote_interval_min_ms", "take_vote_interval_max_ms", "rpc_timeout_ms",
        "append_wait_ms", "pending_requests_max", "push_timeout_ms", "batch_push_bytes", "batch_push_auto_bytes",
        "push_throttle_bytes", "push_quota_bytes", "transfer_lag_max", "transfer_wait_ms",
    ]  # fmt: skip
    numbers = {name: 1001 + number for number, name in enumerate(names)}
    core = settings(profile=RaftProfile.STANDARD, **numbers).core(1, sync_before_ack=True)
    assert {name: getattr(core, name) for name in names} == numbers
    for push, java in ((True, False), (False, True), (True, True), (False, False)):
        made = settings(batch_push=push, batch_push_java=java, batch_push_auto=push, preferred_leader_id="n2")
        core = made.core(1, sync_before_ack=True)
        assert (core.batch_push, core.batch_push_auto, core.preferred_leaders) == (push or java, push, ("n2",))


@pytest.mark.spec("DL-F10", "DL-X08")
def test_timeouts_that_are_derived() -> None:
    core = CoreSettings()
    assert (core.election_timeout_ms, core.lease_timeout_ms, core.gap_wait_ms) == (6000, 5000, 1000)
    assert CoreSettings(heartbeat_interval_ms=500, heartbeat_leak_max=4).election_timeout_ms == 2000
    assert (
        CoreSettings(heartbeat_interval_ms=501).lease_timeout_ms == 1252
        and CoreSettings(lease_ms=7).lease_timeout_ms == 7
    )
    assert CoreSettings(push_timeout_ms=2000, rpc_timeout_ms=3001).gap_wait_ms == 1500


@pytest.mark.parametrize(
    ("more", "good"),
    [
        ({}, True),
        ({"vote_interval_min_ms": 0}, False),
        ({"vote_interval_min_ms": 1, "vote_interval_max_ms": 2}, True),
        ({"vote_interval_min_ms": 2, "vote_interval_max_ms": 2}, False),
        ({"take_vote_interval_min_ms": 0}, False),
        ({"take_vote_interval_min_ms": 99}, True),
        ({"take_vote_interval_min_ms": 100}, False),
        ({"heartbeat_interval_ms": 1, "lease_ms": 2}, True),
        ({"heartbeat_interval_ms": 0, "lease_ms": 1}, False),
        ({"heartbeat_leak_max": 2, "lease_ms": 3999}, True),
        ({"heartbeat_leak_max": 2, "lease_ms": 4000}, False),
        ({"heartbeat_leak_max": 1, "lease_ms": 1}, False),
    ],
)
def test_timers_of_the_core_are_checked(more: dict[str, int], good: bool) -> None:
    assert (CoreSettings(**more).validate() == []) is good


# ---- the ledger


@pytest.mark.spec("DL-S04")
@pytest.mark.parametrize(
    ("took_ms", "rest_ms"), [(0, 50), (12, 50), (13, 52), (100, 400), (125, 500), (126, 500), (9000, 500)]
)
def test_pause_between_flushes_is_four_times_the_last_one(took_ms: int, rest_ms: int) -> None:
    pause = SyncPause()
    assert pause.is_over(0)
    pause.sync_ended(1000, took_ms)
    assert pause.until_ms == 1000 + rest_ms
    assert not pause.is_over(1000 + rest_ms - 1) and pause.is_over(1000 + rest_ms)


def entry(index: int = 5, term: int = 2, pos: int = 200, body: int = 52, **more: int) -> EntryHeader:
    made = EntryHeader(ENTRY_MAGIC, 48 + body, index, term, pos, 0, 0, 0, body)
    return dataclasses.replace(made, **more)


@pytest.mark.spec("DL-S02", "DL-S06")
@pytest.mark.parametrize(
    ("header", "before", "fault"),
    [
        (entry(), None, ""),
        (entry(), entry(4, 2, 100), ""),
        (entry(), entry(4, 1, 100), ""),
        (entry(0, 0), None, ""),
        (entry(magic=0), None, NO_ENTRY),
        (entry(magic=7), None, "magic 7"),
        (entry(size=99), None, "size 99 with a body of 52"),
        (entry(body=0), None, "size 48 with a body of 0"),
        (entry(pos=201), None, "its position field is 201"),
        (entry(-1), None, "index -1, term 2"),
        (entry(term=-1), None, "index 5, term -1"),
        (entry(), entry(5, 2, 100), "index 5 follows 5"),
        (entry(), entry(3, 2, 100), "index 5 follows 3"),
        (entry(), entry(4, 3, 100), "term 2 follows 3"),
        (entry(body=1024 - 200 - 48 - 8), None, ""),
        (entry(body=1024 - 200 - 48 - 7), None, "size 817 does not fit its file"),
    ],
)
def test_fault_of_a_header(header: EntryHeader, before: EntryHeader | None, fault: str) -> None:
    assert fault_of(header, 200, before, 1024) == fault


def test_walk_stops_at_the_first_fault() -> None:
    headers = {0: entry(0, 1, 0, 52), 100: entry(1, 1, 100, 52), 200: entry(3, 1, 200, 52)}
    walk = Walk(headers.get, 0, 1024)
    assert [header.index for header in walk] == [0, 1] and (walk.pos, walk.stopped_by) == (200, "index 3 follows 1")
    walk = Walk(headers.get, 0, 1024)
    del headers[200]
    assert [header.index for header in walk] == [0, 1] and (walk.pos, walk.stopped_by) == (200, END_OF_FILES)
