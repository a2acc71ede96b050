"""`saturnmq admin` prints what `mqadmin` prints for a mixed cluster and for a DLedger group, each with a client online.

`make interop` runs the first line of each command, `make interop-full` all of them. Not compared are two commands that run until
they are interrupted: `startMonitoring`, which writes to a log, and `clusterRT`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_compare import Comparison, JavaAdmin, Line, Printed, all_lines, expected, masked, of_kind
from admin_peers import HELD, HELD_GROUP, KINDS, online
from prepared import prepare

from saturnmq.cli.mqadmin.table import COMMANDS, find

TPS = ((r"TPS: [\d.]+", "TPS: n"),)
STATUS = ((r"\d{13}|MS +", "MS"), (r"(?m)^(.*(?:Time|RT|TPS|Timestamp|TIMESTAMP).*?[:=]).*$", r"\1"))
ONLINE = (
    Line(f"consumerConnection -g {HELD_GROUP}"),
    Line(f"consumerConnection -g {HELD_GROUP} -b {{broker}}", kinds=("dledger",)),
    Line(f"consumerProgress -g {HELD_GROUP} -s true", masks=TPS),
    Line(f"consumerStatus -g {HELD_GROUP}", masks=((r"\S+/\S+$", "FILE"),)),
    Line(f"consumerStatus -g {HELD_GROUP} -i {{client}}", masks=STATUS),
    Line("consumerStatus -g unknown", code=1),
    Line(f"queryMsgById -i {{held_id}} -g {HELD_GROUP} -d {{client}}", masks=((r"spentTimeMills=\d+", "spent"),)),
    Line(f"resetOffsetByTime -g {HELD_GROUP} -t {HELD} -s now", writes=True),
    Line(f"skipAccumulatedMessage -g {HELD_GROUP} -t {HELD}", writes=True),
    Line(f"statsAll -t {HELD}", masks=((r" \d+\.\d\d +(\d+\.\d\d)?.*$", " rates"),)),
)
ENDLESS = {"startMonitoring", "clusterRT"}
OF_ACCOUNTS = {"updateAclConfig", "deleteAclConfig", "clusterAclConfigVersion", "updateGlobalWhiteAddr", "getAclConfig"}
# What differs between two runs on clusters of several brokers, for a reason that is not a difference of the tools.
SKIPPED: dict[str, str] = {
    "consumerConnection -g printed-group -b {broker}": "the group is that of another kind of cluster",
}
Results = dict[str, tuple[Printed, Printed]]


def command_of(line: Line) -> str:
    """The name of a line's command, in the table's case."""
    command = find(line.words.split()[0])
    return command.name if command is not None else ""


def lines_of(kind: str) -> list[Line]:
    """The lines that run against a kind of cluster; its client is online during all of them."""
    return [line for line in of_kind((*ONLINE, *all_lines()), kind) if line.id not in SKIPPED]


def parameters() -> list[object]:
    found, seen = [], set()
    for kind in KINDS:
        for line in lines_of(kind):
            first = (kind, command_of(line)) not in seen and line.code == 0
            seen |= {(kind, command_of(line))} if first else set()
            marks = () if first or line in ONLINE else (pytest.mark.interop_full,)
            found.append(pytest.param(kind, line, marks=marks, id=f"{kind}: {line.id}"))
    return found


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    """Results of the selected lines of one kind of cluster."""
    kind = request.param
    selected = {item.name for item in request.session.items}
    lines = [line for line in lines_of(kind) if any(f"[{kind}: {line.id}]" in name for name in selected)]
    folder = tmp_path_factory.mktemp(kind)
    with KINDS[kind](folder) as peer:
        words = {"ns": peer.name_servers, **prepare(peer, home)}
        with online(peer, home) as client, JavaAdmin(home) as java:
            yield Comparison(java, words | client, folder / "files").run_all(lines)


@pytest.mark.parametrize(("results", "line"), parameters(), indirect=["results"])
def test_command_prints_the_same_on_every_kind(results: Results, line: Line) -> None:
    theirs, ours = results[line.id]
    for their_file, our_file in zip(theirs.files, ours.files, strict=True):
        assert masked(our_file, line) == masked(their_file, line)
    assert masked(ours.out, line) == expected(theirs, line), (theirs.err[-2000:], ours.err[-2000:])
    assert ours.code == line.code, ours.err


@pytest.mark.spec("ADM-04")
def test_every_command_of_mqadmin_is_compared() -> None:
    named = {command.name for command in COMMANDS if not command.ours}
    assert len(named) == 57
    for kind in KINDS:
        assert named - {command_of(line) for line in lines_of(kind)} == ENDLESS | OF_ACCOUNTS
    assert {command_of(line) for line in of_kind(all_lines(), "acl")} == OF_ACCOUNTS
