"""`saturnmq admin` prints what `mqadmin` prints for a mixed cluster and for a DLedger group, each with a client online.

`make interop` runs the first line of each command, `make interop-full` all of them. Two commands run until they are interrupted:
`clusterRT` is compared in test_interop_admin_endless.py; `startMonitoring` prints nothing, it writes to a log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from admin_compare import Allowed, Comparison, JavaAdmin, Line, Printed, all_lines, expected, masked, of_kind
from admin_peers import HELD, HELD_GROUP, KINDS, online
from prepared import prepare

from saturnmq.cli.mqadmin.table import COMMANDS, find

TPS = ((r"TPS: [\d.]+", "TPS: n"),)
STATUS = ((r"\d{13}|MS +", "MS"), (r"(?m)^(.*(?:Time|RT|TPS|Timestamp|TIMESTAMP).*?[:=]).*$", r"\1"))
CLIENT_PORT = ((r"127\.0\.0\.1:\d+ *", "CLIENT "),)  # mqadmin asks a random broker: the client's port there
ONLINE = (
    Line(f"consumerConnection -g {HELD_GROUP}", masks=CLIENT_PORT),
    Line(f"consumerConnection -g {HELD_GROUP} -b {{broker}}", kinds=("dledger",)),
    Line(f"consumerProgress -g {HELD_GROUP} -s true", masks=TPS),
    Line(f"consumerStatus -g {HELD_GROUP}", masks=((r"\S+/\S+$", "FILE"),)),
    Line(f"consumerStatus -g {HELD_GROUP} -i {{client}}", masks=STATUS, rows_sorted=True),
    Line("consumerStatus -g unknown", code=1),
    Line(f"queryMsgById -i {{held_id}} -g {HELD_GROUP} -d {{client}}", masks=((r"spentTimeMills=\d+", "spent"),)),
    Line(f"resetOffsetByTime -g {HELD_GROUP} -t {HELD} -s now", writes=True),
    Line(f"skipAccumulatedMessage -g {HELD_GROUP} -t {HELD}", writes=True),
    Line(f"statsAll -t {HELD}", masks=((r" \d+\.\d\d +(\d+\.\d\d)?.*$", " rates"),)),
)
ALLOWED = {
    ("dledger", "cleanUnusedTopic"): Allowed(
        r"\A\Z", "success", "followers of ours refuse, at which 4.9.7 ends with an error; they follow their leader"
    )
}
ENDLESS = {"startMonitoring", "clusterRT"}
OF_ACCOUNTS = {"updateAclConfig", "deleteAclConfig", "clusterAclConfigVersion", "updateGlobalWhiteAddr", "getAclConfig"}
# What differs between two runs on clusters of several brokers, for a reason that is not a difference of the tools.
SKIPPED = {
    ("mixed", "cloneGroupOffset"): "4.9.7 fails at the retry queue of a broker without the topic, ours leaves it out",
}
Results = dict[str, tuple[Printed, Printed]]


def command_of(line: Line) -> str:
    """The name of a line's command, in the table's case."""
    command = find(line.words.split()[0])
    return command.name if command is not None else ""


def lines_of(kind: str) -> list[Line]:
    """The lines that run against a kind of cluster; its client is online during all of them."""
    lines = [line for line in of_kind((*ONLINE, *all_lines()), kind) if (kind, command_of(line)) not in SKIPPED]
    allowed = {name: one for (place, name), one in ALLOWED.items() if place == kind}
    return [replace(line, allowed=(allowed[command_of(line)],)) if _differs(line, allowed) else line for line in lines]


def _differs(line: Line, allowed: dict[str, Allowed]) -> bool:
    return line.code == 0 and command_of(line) in allowed and "-b" not in line.words


def parameters() -> list[object]:
    found, seen = [], set()
    for kind in KINDS:
        for line in lines_of(kind):
            first = (kind, command_of(line)) not in seen and line.code == 0
            seen |= {(kind, command_of(line))} if first else set()
            marks = () if first or line in ONLINE else (pytest.mark.interop_full,)
            found.append(pytest.param(kind, line, marks=marks, id=f"{kind}: {line.id}"))
    return found


def compared(kind: str, request: pytest.FixtureRequest, home: Path, folder: Path) -> Iterator[Results]:
    """Results of the selected lines of one kind of cluster."""
    selected = {item.name for item in request.session.items}
    lines = [line for line in lines_of(kind) if any(f"[{kind}: {line.id}]" in name for name in selected)]
    with KINDS[kind](folder) as peer:
        words = {"ns": peer.name_servers, **prepare(peer, home)}
        with online(peer, home) as client, JavaAdmin(home) as java:
            yield Comparison(java, words | client, folder / "files").run_all(lines)


@pytest.fixture(scope="module")
def on_mixed(request: pytest.FixtureRequest, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    yield from compared("mixed", request, home, tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="module")
def on_dledger(
    request: pytest.FixtureRequest, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Results]:
    yield from compared("dledger", request, home, tmp_path_factory.mktemp("dledger"))


@pytest.mark.parametrize(("kind", "line"), parameters())
def test_command_prints_the_same_on_every_kind(request: pytest.FixtureRequest, kind: str, line: Line) -> None:
    theirs, ours = request.getfixturevalue(f"on_{kind}")[line.id]
    for their_file, our_file in zip(theirs.files, ours.files, strict=True):
        assert masked(our_file, line) == masked(their_file, line)
    assert masked(ours.out, line) == expected(theirs, line), (theirs.err[-2000:], ours.err[-2000:])
    assert ours.code == line.code, ours.err


@pytest.mark.spec("ADM-04")
def test_every_command_of_mqadmin_is_compared() -> None:
    named = {command.name for command in COMMANDS if not command.is_extension}
    assert len(named) == 57
    for kind in KINDS:
        skipped = {name for place, name in SKIPPED if place == kind}
        assert named - {command_of(line) for line in lines_of(kind)} == ENDLESS | OF_ACCOUNTS | skipped
    assert {command_of(line) for line in of_kind(all_lines(), "acl")} == OF_ACCOUNTS
