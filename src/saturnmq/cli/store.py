"""The commands of `saturnmq store`: reads options and prints; `saturnmq.store.tools` does the work.

stdout carries results, stderr everything else.

Requirements: CLI-01..CLI-08, UX-09.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Set
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from saturnmq.broker.settings import refuse_unread_ledger
from saturnmq.cli.output import EXIT_DONE, EXIT_FAILED, EXIT_PROBLEMS, emit, show, warn, write
from saturnmq.cli.settings import broker_classes, configure
from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.progress import ProgressReport
from saturnmq.store.files.lock_file import LockFile
from saturnmq.store.settings import StoreSettings
from saturnmq.store.tools import dump, repair
from saturnmq.store.tools.dump import Dumped
from saturnmq.store.tools.repair import LogLoss, Rebuilt
from saturnmq.store.tools.restore import restore
from saturnmq.store.tools.scan import Problem, Progress, shaped
from saturnmq.store.tools.snapshot import again
from saturnmq.store.tools.snapshot import snapshot as take_snapshot
from saturnmq.store.tools.verify import FileReport, VerifyReport, verify

_FILES_SHOWN_MAX: Final = 40
_LEDGER_ADVICE: Final = (
    "this command supports stand-alone stores only, and would report the queues of a member as damaged. If queues or index are "
    "damaged: remove consumequeue, index and checkpoint of the store and start the broker. To check the ledger: "
    "saturnmq admin ledgerVerify {folder}. To repair it: empty the store, and the group replicates the entries again"
)
_LEDGER_BACKUP: Final = (
    "a snapshot covers stand-alone stores only; the other members of the group hold copies of the messages. To copy the ledger "
    "of {folder}, stop its broker and copy the whole store"
)


def settings_of(args: argparse.Namespace) -> tuple[StoreSettings, Set[str]]:
    """The store's settings and the keys that a file or an option sets. Raises ConfigError."""
    if args.data is None and args.config is None:
        raise ConfigError("name the store: --data DIR, or -c broker.conf")
    loaded = configure(broker_classes(), args, {}).parts["store"]
    return loaded.settings, loaded.origins.keys()


def stopped_store(
    args: argparse.Namespace, *, in_use_hint: str = "", force: bool = False
) -> tuple[StoreSettings, Set[str]]:
    """As `settings_of`, for a stand-alone store that no broker uses. force: even while one does. Raises StoreLocked."""
    settings, given_keys = settings_of(args)
    refuse_unread_ledger(settings.root, _LEDGER_ADVICE)
    lock = LockFile(settings.root / "lock").held()
    if lock is not None and not force:
        lock.hint = in_use_hint or lock.hint
        raise lock
    return shaped(settings, given_keys), given_keys


class Watched:
    """Progress in bytes, reported on stderr."""

    def __init__(self, args: argparse.Namespace, title: str) -> None:
        self._title = title
        self._quiet = args.quiet or args.json
        self._bar: ProgressReport | None = None

    def __enter__(self) -> Progress:
        return self._report

    def _report(self, processed: int, total: int) -> None:
        if self._bar is None:
            self._bar = ProgressReport(self._title, total, quiet=self._quiet).__enter__()
        self._bar.at(processed)

    def __exit__(self, *error: Any) -> None:
        if self._bar is not None:
            self._bar.__exit__(*error)


# ---- verify


def run_verify(args: argparse.Namespace) -> int:
    """Report what is damaged in a store; exit code 3 when something is."""
    hint = "Stop the broker first, or use --force: what the broker writes meanwhile may look damaged."
    settings, given_keys = stopped_store(args, in_use_hint=hint, force=args.force)

    with Watched(args, "verify, bytes") as progress:
        report = verify(settings, given_keys, progress)
    in_use = LockFile(settings.root / "lock").held()
    if in_use is not None:
        warn(f"warning: {in_use.message} What it wrote meanwhile may look damaged here.")
    if args.json:
        emit(args.command.name, [_problem_row(problem) for problem in report.problems], **_summary(report))
    else:
        _show_report(report)
    return EXIT_DONE if report.sound else EXIT_PROBLEMS


def _problem_row(problem: Problem) -> dict[str, Any]:
    return {
        "weight": problem.weight.value,
        "file": str(problem.path),
        "byte": problem.at if problem.at >= 0 else None,
        "offset": problem.offset if problem.offset >= 0 else None,
        "what": problem.description,
        "next": problem.next,
    }


def _summary(report: VerifyReport) -> dict[str, Any]:
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


def _show_report(report: VerifyReport) -> None:

    table = Table("file", "bytes", "count", "first", "last", box=None)
    for row in _rows_shown(report.files):
        ends = (str(row.first), str(row.last)) if row.count else ("", "")
        table.add_row(str(_relative(report.root, row.path)), str(row.bytes), str(row.count), *ends)
    show(table)
    if len(report.files) > _FILES_SHOWN_MAX:
        write(f"... and {len(report.files) - _FILES_SHOWN_MAX} more files; --json lists all of them")
    for problem in report.problems:
        position = f" byte {problem.at}" if problem.at >= 0 else ""
        position += f" (offset {problem.offset})" if problem.offset >= 0 else ""
        write(f"{problem.weight.value}: {problem.path}{position}: {problem.description}")
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


def _relative(root: Path, path: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else path


# ---- rebuild and repair


def run_rebuild(args: argparse.Namespace) -> int:
    """Rebuild consume queues and index from the commit log."""
    settings, _ = stopped_store(args)

    with Watched(args, "rebuild, bytes") as progress:
        rebuilt = repair.rebuild(settings, progress)
    if args.json:
        emit(args.command.name, [dataclasses.asdict(rebuilt)])
    else:
        write(_rebuilt_text(rebuilt))
    return EXIT_DONE


def _rebuilt_text(rebuilt: Rebuilt) -> str:
    return (
        f"rebuilt from the log, which ends at offset {rebuilt.log_end}: {rebuilt.queues} consume queues with "
        f"{rebuilt.units} units, {rebuilt.index_files} index files"
    )


def run_repair(args: argparse.Namespace) -> int:
    """Truncate the commit log at its first damaged record, or at --at."""
    settings, _ = stopped_store(args)

    with Watched(args, "read, bytes") as progress:
        if args.at is not None:
            loss: LogLoss | None = repair.loss_at(settings, args.at, progress)
        else:
            loss = repair.find_loss(settings, progress)
    if loss is None:
        if args.json:
            emit(args.command.name, [], whole=True)
        else:
            write(
                "the commit log is intact: nothing to truncate. If queues or index are damaged: saturnmq store rebuild"
            )
        return EXIT_DONE
    row = dataclasses.asdict(loss) | {"path": str(loss.path), "kept_in": None, "done": False}
    if not args.json:
        write(f"{loss.path} at byte {loss.byte} (offset {loss.offset}): {loss.what}")
        write(_loss_text(loss))
    if not (args.yes or _confirmed()):
        if args.json:
            emit(args.command.name, [row], whole=False)
        warn("error: nothing was changed: a repair that loses messages needs a confirmation")
        warn("next: restore the file from a copy, or run it again with --yes.")
        return EXIT_FAILED
    with Watched(args, "rebuild, bytes") as progress:
        saved_path, rebuilt = repair.cut(settings, loss, progress)
    if args.json:
        emit(
            args.command.name,
            [row | {"kept_in": str(saved_path) if saved_path else None, "done": True}],
            whole=False,
            rebuilt=dataclasses.asdict(rebuilt),
        )
        return EXIT_DONE
    write(
        f"truncated at offset {loss.offset}; "
        + (f"what was cut off is in {saved_path}" if saved_path else "there was nothing to keep")
    )
    write(_rebuilt_text(rebuilt))
    return EXIT_DONE


def _loss_text(loss: LogLoss) -> str:
    if loss.nothing:
        return "truncation here loses no message: only the length of the file is corrected"
    text = f"truncation at offset {loss.offset} removes {loss.cut_bytes} bytes, in which {loss.records} records are still readable"
    if loss.gone_bytes:
        text += f"; {loss.gone_bytes} bytes are missing already"
    return text


def _confirmed() -> bool:
    """Ask for confirmation if stdin and stderr are terminals, otherwise False (CLI-08)."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write("truncate the log there? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# ---- snapshot and restore


def run_snapshot(args: argparse.Namespace) -> int:
    """Save a store to a folder, also while a broker uses it."""
    settings, given_keys = settings_of(args)
    refuse_unread_ledger(settings.root, _LEDGER_BACKUP)
    with Watched(args, "snapshot, bytes") as progress:
        snapshot = take_snapshot(again(lambda: shaped(settings, given_keys)), args.target, progress)
    linked = sum(entry.bytes for entry in snapshot.files if entry.linked)
    row = {
        "snapshot": str(args.target),
        "log_start": snapshot.log_start,
        "log_end": snapshot.log_end,
        "files": len(snapshot.files),
        "bytes": snapshot.total_bytes,
        "linked_bytes": linked,
    }
    if args.json:
        emit(args.command.name, [row])
    else:
        write(
            f"{args.target}: messages from offset {snapshot.log_start} to {snapshot.log_end}; {len(snapshot.files)} files, "
            f"{snapshot.total_bytes} bytes, {linked} of them linked"
        )
    return EXIT_DONE


def run_restore(args: argparse.Namespace) -> int:
    """Make a store from a snapshot and verify it."""
    with Watched(args, "restore, bytes") as progress:
        report = restore(args.source, args.data, progress)
    if args.json:
        emit(args.command.name, [], **_summary(report) | {"store": str(args.data)})
    else:
        write(
            f"{args.data}: sound; offsets {max(report.log_start, 0)} to {report.log_end}, {report.records} records, "
            f"{report.queue_units} queue units, {report.index_entries} index entries"
        )
    return EXIT_DONE


# ---- dump


def run_dump(args: argparse.Namespace) -> int:
    """Show one record; also while a broker uses the store, and of a member of a group."""
    settings, given_keys = settings_of(args)
    settings = shaped(settings, given_keys)

    record = _selected(args, settings)
    if args.raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(bytes(record.message.body))
        sys.stdout.buffer.flush()
        return EXIT_DONE
    text = None if args.hex else dump.body_text(record.message)
    if args.json:
        row = dict(dump.fields(record)) | {"properties": record.message.properties, "body_text": text}
        emit(args.command.name, [row | {"body_hex": bytes(record.message.body).hex()}])
        return EXIT_DONE
    table = Table("field", "value", box=None, show_header=False)
    for name, value in dump.fields(record):
        table.add_row(name, str(value))
    for name, value in record.message.properties.items():
        table.add_row(f"property {name}", value)
    show(table)
    write("body:")
    for line in [text] if text is not None else dump.body_hex(record.message):
        write(line)
    return EXIT_DONE


def _selected(args: argparse.Namespace, settings: StoreSettings) -> Dumped:
    """Read the record that the options select. Raises ConfigError unless they select one in exactly one way."""

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
