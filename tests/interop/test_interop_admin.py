"""`saturnmq admin` prints what Apache's `mqadmin` prints, for the command lines of `admin_lines_*.py` and every help text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apache
import pytest
import saturn
from aclaccounts import ADMIN, write_accounts
from admin_compare import Comparison, JavaAdmin, Line, Printed, all_lines, expected, masked, of_kind, run_ours
from javatools import write_home
from peers import Peer
from prepared import SETTINGS, prepare

from saturnmq.cli.mqadmin.table import COMMANDS

LINES = all_lines()
Results = dict[str, tuple[Printed, Printed]]


@pytest.fixture(scope="module")
def mqadmin(home: Path) -> Iterator[JavaAdmin]:
    with JavaAdmin(home) as admin:
        yield admin


@pytest.fixture(scope="module")
def on_saturn(mqadmin: JavaAdmin, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    """All command lines against one broker of ours."""
    with saturn.SaturnCluster(settings=SETTINGS) as cluster:
        words = {"ns": cluster.name_servers, **prepare(cluster, home)}
        comparison = Comparison(mqadmin, words, tmp_path_factory.mktemp("saturn"))
        yield comparison.run_all(of_kind(LINES, "saturn"))


@pytest.fixture(scope="module")
def on_apache(mqadmin: JavaAdmin, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    """All command lines against one broker of Apache's."""
    with apache.ApacheCluster(settings=SETTINGS) as cluster:
        words = {"ns": cluster.name_servers, **prepare(cluster, home)}
        comparison = Comparison(mqadmin, words, tmp_path_factory.mktemp("apache"))
        yield comparison.run_all(of_kind(LINES, "apache"))


@pytest.fixture(scope="module")
def admin_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ROCKETMQ_HOME with the keys of the administrator."""
    home = write_home(tmp_path_factory.mktemp("admin-home"))
    (home / "conf" / "tools.yml").write_text(f"accessKey: {ADMIN[0]}\nsecretKey: {ADMIN[1]}\n")
    return home


@pytest.fixture(scope="module")
def signed(admin_home: Path) -> Iterator[JavaAdmin]:
    with JavaAdmin(admin_home) as admin:
        yield admin


def protected(signed: JavaAdmin, home: Path, cluster: Peer, folder: Path, kind: str, signature: str) -> Results:
    """What the command lines on accounts print at a cluster with access control."""
    file = folder / ("broker-a" if kind == "acl-apache" else "") / "conf" / "plain_acl.yml"
    words = {"ns": cluster.name_servers, "broker": cluster.broker_address, "acl_file": str(file)}
    ours = ("--tools-yml", str(home / "conf" / "tools.yml"), "--signature", signature)
    return Comparison(signed, words, folder, ours).run_all(of_kind(LINES, kind))


@pytest.fixture(scope="module")
def with_accounts(signed: JavaAdmin, admin_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    """The command lines on accounts against a protected broker of ours; our requests have signatures of version 2."""
    folder = tmp_path_factory.mktemp("saturn-acl")
    write_accounts(folder)
    settings = {"aclEnable": "true", "rocketmqHome": str(folder)}
    with saturn.SaturnCluster(folder, settings=settings) as cluster:
        yield protected(signed, admin_home, cluster, folder, "acl", "v2")


@pytest.fixture(scope="module")
def with_apache_accounts(
    signed: JavaAdmin, admin_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Results]:
    """The command lines on accounts against a protected broker of Apache's."""
    folder = tmp_path_factory.mktemp("apache-acl")
    write_accounts(folder / "broker-a")
    with apache.ApacheCluster(folder, settings={"aclEnable": "true"}) as cluster:
        yield protected(signed, admin_home, cluster, folder, "acl-apache", "v1")


def check(results: Results, line: Line) -> None:
    theirs, ours = results[line.id]
    for their_file, our_file in zip(theirs.files, ours.files, strict=True):
        assert masked(our_file, line) == masked(their_file, line)
    assert masked(ours.out, line) == expected(theirs, line), (theirs.err[-2000:], ours.err[-2000:])
    assert ours.code == line.code, ours.err


@pytest.mark.parametrize("line", of_kind(LINES, "saturn"), ids=lambda line: line.id)
def test_command_prints_the_same_on_our_broker(on_saturn: Results, line: Line) -> None:
    check(on_saturn, line)


@pytest.mark.interop_full
@pytest.mark.parametrize("line", of_kind(LINES, "apache"), ids=lambda line: line.id)
def test_command_prints_the_same_on_apaches_broker(on_apache: Results, line: Line) -> None:
    check(on_apache, line)


@pytest.mark.parametrize("line", of_kind(LINES, "acl"), ids=lambda line: line.id)
def test_command_on_accounts_prints_the_same_on_our_broker(with_accounts: Results, line: Line) -> None:
    check(with_accounts, line)


@pytest.mark.interop_full
@pytest.mark.parametrize("line", of_kind(LINES, "acl-apache"), ids=lambda line: line.id)
def test_command_on_accounts_prints_the_same_on_apaches_broker(with_apache_accounts: Results, line: Line) -> None:
    check(with_apache_accounts, line)


@pytest.mark.spec("ADM-01")
def test_help_of_every_command_is_equal(mqadmin: JavaAdmin) -> None:
    names = [command.name for command in COMMANDS if not command.is_extension]
    for name, theirs in zip(names, mqadmin.run_all([("help", name) for name in names]), strict=True):
        assert run_ours(["help", name]).out == theirs.out, name


@pytest.mark.spec("ADM-01")
def test_list_of_commands_is_that_of_mqadmin_and_ours(mqadmin: JavaAdmin) -> None:
    theirs = mqadmin.run().out.splitlines()
    ours = run_ours([]).out.splitlines()
    known = [line for line in theirs[1:-2] if line.split()[0] in {command.name for command in COMMANDS}]
    assert ours[: 1 + len(known)] == [theirs[0], *known]
    assert ours[-2:] == theirs[-2:]


@pytest.mark.spec("ADM-01")
def test_missing_option_prints_the_same_help(mqadmin: JavaAdmin) -> None:
    for words in (["topicRoute"], ["updateTopic", "-t", "x"], ["topicList", "-x"], ["nothing"], ["help", "nothing"]):
        theirs, ours = mqadmin.run(*words), run_ours(words)
        assert ours.out == theirs.out, words
        assert ours.code == 1
