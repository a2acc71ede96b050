"""Transcripts of Raft groups, as in etcd-io/raft: scripts/*.txt are run on the real core and compared line by line.

The commands, and how to rewrite the expected output, are described in transcript.py. One test per script, so that each
requirement names the transcript that proves it.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest
from transcript import play

SCRIPTS = Path(__file__).parent / "scripts"
REWRITE = os.environ.get("SATURNMQ_REWRITE_SCRIPTS") is not None


def check_script(name: str) -> None:
    path = SCRIPTS / f"{name}.txt"
    expected, actual = path.read_text(encoding="utf-8"), play(path)
    if REWRITE:
        path.write_text(actual, encoding="utf-8")
        return
    difference = difflib.unified_diff(expected.splitlines(), actual.splitlines(), path.name, "actual", lineterm="")
    assert actual == expected, "\n".join(difference)


@pytest.mark.spec("DL-X05", "DL-X07", "DL-E16", "DL-E21")
def test_script_election() -> None:
    check_script("election")


@pytest.mark.spec("DL-E07", "DL-E15", "DL-X05")
def test_script_election_split_vote() -> None:
    check_script("election_split_vote")


@pytest.mark.spec("DL-E16", "DL-E19")
def test_script_election_log_comparison() -> None:
    check_script("election_log_comparison")


@pytest.mark.spec("DL-X06")
def test_script_election_higher_term() -> None:
    check_script("election_higher_term")


@pytest.mark.spec("DL-E19", "DL-H05", "DL-H06")
def test_script_election_stale_term() -> None:
    check_script("election_stale_term")


@pytest.mark.spec("DL-X01", "DUR-11")
def test_script_election_restart() -> None:
    check_script("election_restart")


@pytest.mark.spec("DL-X01")
def test_script_term_file_older_than_log() -> None:
    check_script("term_file_older_than_log")


@pytest.mark.spec("DUR-10")
def test_script_barred_member() -> None:
    check_script("barred_member")


@pytest.mark.spec("DUR-10", "DL-L04", "DL-L09")
def test_script_barred_preferred_leader() -> None:
    check_script("barred_preferred_leader")


@pytest.mark.spec("DL-P01", "DL-P03", "DL-F07", "DL-F08", "DL-X13")
def test_script_divergence() -> None:
    check_script("divergence")


@pytest.mark.spec("DL-P01", "DL-F08")
def test_script_divergence_lost_answer() -> None:
    check_script("divergence_lost_answer")


@pytest.mark.spec("DL-X10")
def test_script_truncate_committed() -> None:
    check_script("truncate_committed")


@pytest.mark.spec("DL-X11")
def test_script_pushes_of_deposed_leader() -> None:
    check_script("pushes_of_deposed_leader")


@pytest.mark.spec("DL-F04", "DL-F10", "DL-X12")
def test_script_append_gap() -> None:
    check_script("append_gap")


@pytest.mark.spec("DL-F01", "DL-F04", "DL-F10")
def test_script_append_out_of_order() -> None:
    check_script("append_out_of_order")


@pytest.mark.spec("DL-X03", "DL-Q01")
def test_script_commit_own_term() -> None:
    check_script("commit_own_term")


@pytest.mark.spec("DL-X03", "DL-X04")
def test_script_commit_with_noop() -> None:
    check_script("commit_with_noop")


@pytest.mark.spec("DL-X04")
def test_script_commit_noop_not_needed() -> None:
    check_script("commit_noop_not_needed")


@pytest.mark.spec("DL-X02", "DUR-12")
def test_script_commit_after_sync() -> None:
    check_script("commit_after_sync")


@pytest.mark.spec("DL-X02")
def test_script_commit_without_sync() -> None:
    check_script("commit_without_sync")


@pytest.mark.spec("DL-X07", "DL-X08", "DL-X09")
def test_script_lease_expires() -> None:
    check_script("lease_expires")


@pytest.mark.spec("DL-A07")
def test_script_proposal_timeout() -> None:
    check_script("proposal_timeout")


@pytest.mark.spec("DL-L03", "DL-L04", "DL-X22")
def test_script_transfer() -> None:
    check_script("transfer")


@pytest.mark.spec("DL-L01", "DL-L03", "DL-X22")
def test_script_transfer_lagging() -> None:
    check_script("transfer_lagging")


@pytest.mark.spec("DL-L04", "DL-L05")
def test_script_transfer_refused() -> None:
    check_script("transfer_refused")


@pytest.mark.spec("DL-L09", "DL-X18")
def test_script_preferred_leader() -> None:
    check_script("preferred_leader")


@pytest.mark.spec("DL-X18")
def test_script_preferred_leader_accepts_operator() -> None:
    check_script("preferred_leader_accepts_operator")


@pytest.mark.spec("DL-X15")
def test_script_disk_failed() -> None:
    check_script("disk_failed")


@pytest.mark.spec("DL-S10")
def test_script_disk_full() -> None:
    check_script("disk_full")


@pytest.mark.spec("DL-X04", "DUR-15")
def test_script_disk_full_new_leader() -> None:
    check_script("disk_full_new_leader")


@pytest.mark.spec("DUR-10")
def test_script_lost_entries() -> None:
    check_script("lost_entries")


@pytest.mark.spec("DL-P15", "DL-X14")
def test_script_batches() -> None:
    check_script("batches")


@pytest.mark.spec("DL-P10")
def test_script_single_pushes() -> None:
    check_script("single_pushes")


@pytest.mark.spec("DL-A10", "DL-M09", "DL-X17")
def test_script_reads() -> None:
    check_script("reads")


@pytest.mark.spec("DL-P13")
def test_script_retention() -> None:
    check_script("retention")


@pytest.mark.spec("DL-Q01")
def test_script_single_member() -> None:
    check_script("single_member")


def test_every_script_has_a_test() -> None:
    tested = {name.removeprefix("test_script_") for name in globals() if name.startswith("test_script_")}
    assert tested == {path.stem for path in SCRIPTS.glob("*.txt")}


def test_changed_behaviour_is_reported_as_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_raft_scripts.REWRITE", False)
    monkeypatch.setattr("saturnmq.raft.core.leader.quorum_index", max)
    with pytest.raises(AssertionError, match=r"\+  n0 commit 1"):
        check_script("commit_after_sync")


@pytest.mark.spec("DL-X21")
def test_script_members_add_promote() -> None:
    check_script("members_add_promote")


@pytest.mark.spec("DL-X21")
def test_script_members_remove_follower() -> None:
    check_script("members_remove_follower")


@pytest.mark.spec("DL-X21")
def test_script_members_new_leader_informs() -> None:
    check_script("members_new_leader_informs")


@pytest.mark.spec("DL-X21")
def test_script_members_remove_leader() -> None:
    check_script("members_remove_leader")


@pytest.mark.spec("DL-X21")
def test_script_members_truncated() -> None:
    check_script("members_truncated")


@pytest.mark.spec("DL-X21")
def test_script_members_refused() -> None:
    check_script("members_refused")


@pytest.mark.spec("DL-X21")
def test_script_members_retention() -> None:
    check_script("members_retention")
