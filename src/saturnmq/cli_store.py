"""The commands of `saturnmq store`: verify, rebuild, dump, repair. Parses and prints; `saturnmq.store.tools` does the work.

stdout carries results, stderr everything else. Exit codes as for all commands; 3: verify found damage.

Requirements: CLI-01..CLI-08, UX-09.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from saturnmq.protocol.errors import ConfigError

if TYPE_CHECKING:  # every command builds this parser: the store packages are imported only on use (CLI-01)
    from rich.table import Table

    from saturnmq.spark.progress import Report as Bar
    from saturnmq.store.settings import StoreSettings
    from saturnmq.store.tools.dump import Dumped
    from saturnmq.store.tools.repair import Loss, Rebuilt
    from saturnmq.store.tools.scan import Problem, Progress
    from saturnmq.store.tools.verify import FileReport, Report

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_PROBLEMS: Final = 3
_PIPE_COLUMNS: Final = 200
_FILES_SHOWN_MAX: Final = 40
_OF_A_GROUP: Final = (
    "this command knows plain stores only, and would take the queues of what lies there for damaged. Queues or index damaged: "
    "remove consumequeue, index and checkpoint of the store and start the broker. To check the ledger: "
    "saturnmq admin ledgerVerify {folder}. To repair it: empty the store, the group fills it again"
)


# ---- options


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the four commands and their options."""
    every = argparse.ArgumentParser(add_help=False)
    every.add_argument("--data", type=Path, metavar="DIR", help="the store's folder (storePathRootDir)")
    every.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="the broker's file, for folders and file sizes"
    )
    every.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one key; stands above the file")
    every.add_argument("--strict-config", action="store_true", help="an unknown key is an error, not a warning")
    for name, text in (("json", "one JSON document on stdout"), ("quiet", "no progress"), ("debug", "show tracebacks")):
        every.add_argument(f"--{name}", action="store_true", default=argparse.SUPPRESS, help=text)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, text: str, example: str) -> argparse.ArgumentParser:
        return actions.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".", epilog=f"example: {example}", parents=[every]
        )

    checks = action(
        "verify", "read a whole store and say what is wrong; changes nothing", "saturnmq store verify --data ./data"
    )
    checks.add_argument(
        "--force", action="store_true", help="also while a broker uses it: what it writes meanwhile may look damaged"
    )
    action("rebuild", "make consume queues and index anew from the commit log", "saturnmq store rebuild --data ./data")
    shows = action("dump", "show one record", "saturnmq store dump 4096 --data ./data")
    shows.add_argument("offset", type=int, nargs="?", metavar="OFFSET", help="where it lies in the commit log, bytes")
    shows.add_argument("--topic", metavar="T", help="with --queue and --queue-offset: the record of a queue offset")
    shows.add_argument("--queue", type=int, metavar="Q", help="queue id")
    shows.add_argument("--queue-offset", type=int, metavar="N", help="offset in the queue")
    shows.add_argument("--file", type=Path, metavar="F", help="with --at: the record in a commit log file")
    shows.add_argument("--at", type=int, metavar="BYTE", help="where in the file, bytes")
    forms = shows.add_mutually_exclusive_group()
    forms.add_argument("--hex", action="store_true", help="the body in hex, though it is text")
    forms.add_argument("--raw", action="store_true", help="only the body's bytes as stored, on stdout")
    cuts = action(
        "repair",
        "cut the commit log at its first bad record; what is cut off is kept in a folder",
        "saturnmq store repair --data ./data --yes",
    )
    cuts.add_argument(
        "--at", type=int, metavar="OFFSET", help="cut here, where a good record begins, not at the first bad one"
    )
    cuts.add_argument("--yes", action="store_true", help="do it; without it only the loss is shown")


def run(args: argparse.Namespace, settings: StoreSettings, given: Set[str]) -> int:
    """Run one command. given: the keys set by the file or by options. Raises StoreError, ConfigError."""
    from saturnmq.broker.dledger import refuse_unread_ledger
    from saturnmq.store.files.lock_file import LockFile
    from saturnmq.store.tools.scan import shaped

    if args.action == "dump":
        return run_dump(args, shaped(settings, given))
    refuse_unread_ledger(settings.root, _OF_A_GROUP)
    lock = LockFile(settings.root / "lock").held()
    if lock is not None and not (args.action == "verify" and args.force):
        if args.action == "verify":
            lock.hint = "Stop the broker first; --force reads all the same: what it writes meanwhile may look damaged."
        raise lock
    settings = shaped(settings, given)
    if args.action == "verify":
        return run_verify(args, settings, given)
    return run_rebuild(args, settings) if args.action == "rebuild" else run_repair(args, settings)


# ---- output


def write(text: str) -> None:
    """Print a line on stdout."""
    sys.stdout.write(text + "\n")


def complain(text: str) -> None:
    """Print a line on stderr."""
    sys.stderr.write(f"saturnmq: {text}\n")
    sys.stderr.flush()


def emit(args: argparse.Namespace, rows: list[dict[str, Any]], **more: Any) -> None:
    """Print one JSON document on stdout (CLI-02)."""
    write(json.dumps({"schema": 1, "command": f"store {args.action}", "rows": rows, **more}))


def show(table: Table) -> None:
    """Print a table on stdout; wide unless stdout is a terminal, so that lines are not broken."""
    from rich.console import Console

    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=_PIPE_COLUMNS)
    console.print(table)


class Watched:
    """Progress in bytes, reported on stderr."""

    def __init__(self, args: argparse.Namespace, title: str) -> None:
        self._title = title
        self._quiet = args.quiet or args.json
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        return self._tell

    def _tell(self, done: int, total: int) -> None:
        if self._bar is None:
            from saturnmq.spark.progress import Report as Bar

            self._bar = Bar(self._title, total, quiet=self._quiet).__enter__()
        self._bar.at(done)

    def __exit__(self, *error: Any) -> None:
        if self._bar is not None:
            self._bar.__exit__(*error)


# ---- verify


def run_verify(args: argparse.Namespace, settings: StoreSettings, given: Set[str]) -> int:
    from saturnmq.store.files.lock_file import LockFile
    from saturnmq.store.tools.verify import verify

    with Watched(args, "verify, bytes") as progress:
        report = verify(settings, given, progress)
    in_use = LockFile(settings.root / "lock").held()
    if in_use is not None:
        complain(f"warning: {in_use.message} What it wrote meanwhile may look damaged here.")
    if args.json:
        emit(args, [_problem_row(problem) for problem in report.problems], **_summary(report))
    else:
        _show_report(report)
    return EXIT_DONE if report.sound else EXIT_PROBLEMS


def _problem_row(problem: Problem) -> dict[str, Any]:
    return {
        "weight": problem.weight.value,
        "file": str(problem.path),
        "byte": problem.at if problem.at >= 0 else None,
        "offset": problem.offset if problem.offset >= 0 else None,
        "what": problem.what,
        "next": problem.next,
    }


def _summary(report: Report) -> dict[str, Any]:
    return {
        "store": str(report.root),
        "sound": report.sound,
        "clean_stop": report.clean_stop,
        "log_start": report.log_start,
        "log_end": report.log_end,
        "records": report.records,
        "queue_units": report.queue_units,
        "index_entries": report.index_entries,
        "problems": report.problems_total,
        "damage": report.damage_total,
        "files": [dataclasses.asdict(row) | {"path": str(row.path)} for row in report.files],
    }


def _show_report(report: Report) -> None:
    from rich.table import Table

    table = Table("file", "bytes", "count", "first", "last", box=None)
    for row in _rows_shown(report.files):
        ends = (str(row.first), str(row.last)) if row.count else ("", "")
        table.add_row(str(_inside(report.root, row.path)), str(row.bytes), str(row.count), *ends)
    show(table)
    if len(report.files) > _FILES_SHOWN_MAX:
        write(f"... and {len(report.files) - _FILES_SHOWN_MAX} more files; --json lists all of them")
    for problem in report.problems:
        place = f" byte {problem.at}" if problem.at >= 0 else ""
        place += f" (offset {problem.offset})" if problem.offset >= 0 else ""
        write(f"{problem.weight.value}: {problem.path}{place}: {problem.what}")
        if problem.next:
            write(f"    next: {problem.next}")
    if report.problems_total > len(report.problems):
        write(f"... and {report.problems_total - len(report.problems)} more problems")
    counts = f"{report.records} records, {report.queue_units} queue units, {report.index_entries} index entries"
    stop = "clean stop" if report.clean_stop else "no clean stop"
    verdict = "sound" if report.sound else f"DAMAGED, {report.damage_total} problems"
    write(f"{report.root}: {verdict}; offsets {max(report.log_start, 0)} to {report.log_end}, {counts}, {stop}")


def _rows_shown(rows: list[FileReport]) -> list[FileReport]:
    half = _FILES_SHOWN_MAX // 2
    return rows if len(rows) <= _FILES_SHOWN_MAX else rows[:half] + rows[-half:]


def _inside(root: Path, path: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else path


# ---- rebuild and repair


def run_rebuild(args: argparse.Namespace, settings: StoreSettings) -> int:
    from saturnmq.store.tools import repair

    with Watched(args, "rebuild, bytes") as progress:
        done = repair.rebuild(settings, progress)
    if args.json:
        emit(args, [dataclasses.asdict(done)])
    else:
        write(_made(done))
    return EXIT_DONE


def _made(done: Rebuilt) -> str:
    return (
        f"made anew from the log, which ends at offset {done.log_end}: {done.queues} consume queues with {done.units} units, "
        f"{done.index_files} index files"
    )


def run_repair(args: argparse.Namespace, settings: StoreSettings) -> int:
    from saturnmq.store.tools import repair

    with Watched(args, "read, bytes") as progress:
        if args.at is not None:
            loss: Loss | None = repair.loss_at(settings, args.at, progress)
        else:
            loss = repair.find_loss(settings, progress)
    if loss is None:
        if args.json:
            emit(args, [], whole=True)
        else:
            write("the commit log is whole: nothing to cut. Queues or index damaged? saturnmq store rebuild")
        return EXIT_DONE
    row = dataclasses.asdict(loss) | {"path": str(loss.path), "kept_in": None, "done": False}
    if not args.json:
        write(f"{loss.path} at byte {loss.byte} (offset {loss.offset}): {loss.what}")
        write(_loss(loss))
    if not (args.yes or _asked()):
        if args.json:
            emit(args, [row], whole=False)
        complain("error: nothing was changed: a cut needs a yes")
        complain("next: restore the file from a copy, or run it again with --yes.")
        return EXIT_FAILED
    with Watched(args, "rebuild, bytes") as progress:
        kept, done = repair.cut(settings, loss, progress)
    if args.json:
        emit(
            args,
            [row | {"kept_in": str(kept) if kept else None, "done": True}],
            whole=False,
            rebuilt=dataclasses.asdict(done),
        )
        return EXIT_DONE
    write(
        f"cut at offset {loss.offset}; " + (f"what was cut off is in {kept}" if kept else "there was nothing to keep")
    )
    write(_made(done))
    return EXIT_DONE


def _loss(loss: Loss) -> str:
    if loss.nothing:
        return "a cut here loses no message: only the length of the file is put right"
    text = f"a cut at offset {loss.offset} takes away {loss.cut_bytes} bytes, in which {loss.records} records can still be read"
    if loss.gone_bytes:
        text += f"; {loss.gone_bytes} bytes are gone already"
    return text


def _asked() -> bool:
    """Ask for confirmation if stdin and stderr are terminals, otherwise False (CLI-08)."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write("cut the log there? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# ---- dump


def run_dump(args: argparse.Namespace, settings: StoreSettings) -> int:
    from rich.table import Table

    from saturnmq.store.tools import dump

    found = _found(args, settings)
    if args.raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(bytes(found.message.body))
        sys.stdout.buffer.flush()
        return EXIT_DONE
    text = None if args.hex else dump.body_text(found.message)
    if args.json:
        row = dict(dump.fields(found)) | {"properties": found.message.properties, "body_text": text}
        emit(args, [row | {"body_hex": bytes(found.message.body).hex()}])
        return EXIT_DONE
    table = Table("field", "value", box=None, show_header=False)
    for name, value in dump.fields(found):
        table.add_row(name, str(value))
    for name, value in found.message.properties.items():
        table.add_row(f"property {name}", value)
    show(table)
    write("body:")
    for line in [text] if text is not None else dump.body_hex(found.message):
        write(line)
    return EXIT_DONE


def _found(args: argparse.Namespace, settings: StoreSettings) -> Dumped:
    """Read the record that the options select. Raises ConfigError unless they select one in exactly one way."""
    from saturnmq.store.tools import dump

    by_queue = [args.topic, args.queue, args.queue_offset]
    by_place = [args.file, args.at]
    ways = [args.offset is not None, any(v is not None for v in by_queue), any(v is not None for v in by_place)]
    if sum(ways) != 1 or (ways[1] and None in by_queue) or (ways[2] and None in by_place):
        raise ConfigError(
            "name one record: OFFSET, or --topic T --queue Q --queue-offset N, or --file F --at BYTE (all of one way)"
        )
    if ways[0]:
        return dump.by_offset(settings, args.offset)
    if ways[1]:
        return dump.by_queue(settings, args.topic, args.queue, args.queue_offset)
    return dump.by_place(settings, args.file, args.at)
