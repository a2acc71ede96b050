"""Remedies for a store that does not open: the hint of every such error names a whole command.

The modules that find a fault name the bare tool, such as `saturnmq store repair`; here it gets the store's folder and sizes,
so that the tool judges the store as the start did.

Requirements: DUR-09, CLI-03.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from saturnmq.protocol.errors import CorruptRecord, DiskFull, OutOfDescriptors, SaturnError, StoreError
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import numbered_files
from saturnmq.store.files.state_file import StateFile
from saturnmq.store.queue.queues import LIST_NAME, Listed, parse_list
from saturnmq.store.settings import PATH_SPLITTER, StoreProfile, StoreSettings

_TOOL: Final = re.compile(r"saturnmq store (?:verify|rebuild|repair)(?: --at \d+)?\b(?! --)")
_CUT: Final = (
    "Restore the file from a copy, or let `saturnmq store repair` correct it; "
    "without --yes that shows only what would be lost."
)


def start_refusal(error: SaturnError | OSError, settings: StoreSettings, *, quorum: bool) -> SaturnError:
    """The error that is raised for a store that does not open, with its hint. quorum: the store belongs to a DLedger group."""
    refusal = (
        error if isinstance(error, SaturnError) else StoreError(f"store {settings.root} cannot be opened: {error}")
    )
    refusal.hint = _hint(refusal, settings, quorum=quorum)
    return refusal


def _hint(error: SaturnError, settings: StoreSettings, *, quorum: bool) -> str:
    # A member can get its log from the group: no need to repair it with a loss.
    if quorum and isinstance(error, CorruptRecord) and (not error.hint or _TOOL.search(error.hint)):
        root = shlex.quote(str(settings.root))
        return (
            "Restore the file from a copy, or move this member's store away, and the group sends it again: "
            f"`mv {root} {root}-damaged`"
        )
    hint = error.hint or ("`saturnmq store verify` reports all damage." if isinstance(error, CorruptRecord) else "")
    if hint:
        return _TOOL.sub(lambda tool: f"{tool[0]} {store_options(settings)}", hint)
    if isinstance(error, DiskFull):
        return f"Free space: df -h {shlex.quote(str(settings.root))}"
    if isinstance(error, OutOfDescriptors):
        return "Raise the limit of open files: ulimit -n 65536"
    return f"Check the disk, and that this user owns the files: ls -lR {shlex.quote(str(settings.root))}"


def store_options(settings: StoreSettings) -> str:
    """The options of `saturnmq store` that name this store and its sizes."""
    keys = {
        "storePathCommitLog": settings.store_path_commit_log,
        "readOnlyCommitLogStorePaths": settings.read_only_commit_log,
        PATH_SPLITTER: "" if settings.path_splitter == "," else settings.path_splitter,
        "storePathConsumeQueue": settings.store_path_consume_queue,
        "storePathIndex": settings.store_path_index,
        "storeCheckpoint": settings.store_checkpoint,
        "abortFile": settings.abort_file,
        "storeProfile": "" if settings.profile is StoreProfile.STANDARD else settings.profile.value,
        "maxHashSlotNum": settings.index_slots_max,
        "maxIndexNum": settings.index_entries_max,
        "mappedFileSizeCommitLog": settings.commit_log_bytes,
        "mappedFileSizeConsumeQueue": settings.consume_queue_bytes,
    }
    sets = [f"--set {key}={shlex.quote(str(value))}" for key, value in keys.items() if value]
    return " ".join([f"--data {shlex.quote(str(settings.root))}", *sets])


def log_files_hint(settings: StoreSettings) -> str:
    """The hint for commit log files of a wrong length or with a gap between them."""
    written_bytes = log_bytes_of(settings, commit_log_paths(settings))
    if written_bytes not in (0, settings.commit_log_bytes):
        return f"The store was written with another file size; start with --set mappedFileSizeCommitLog={written_bytes}"
    return _CUT


def commit_log_paths(settings: StoreSettings) -> list[Path]:
    """The files of the commit log, in no order."""
    return [path for folder in settings.all_commit_log_dirs for path in numbered_files(folder)]


def recorded(settings: StoreSettings) -> Listed | None:
    """Contents of the store's queues.json; None if it has none that can be read."""
    try:
        return StateFile(settings.root / LIST_NAME, Disk()).read(parse_list)
    except SaturnError:
        return None


def log_bytes_of(settings: StoreSettings, paths: Sequence[Path]) -> int:
    """The file size that the commit log was written with; 0 if neither its record nor its files show it.

    It is the length that most files have, if their names are multiples of it apart; else the distance of two names.
    """
    listed = recorded(settings)
    if listed is not None and listed.log_file_bytes:
        return listed.log_file_bytes
    starts = sorted(int(path.name) for path in paths)
    steps = [after - before for before, after in itertools.pairwise(starts)]
    if not steps:
        return 0
    counts = Counter(path.stat().st_size for path in paths)
    # The length of most files; of equally many the longer one.
    common = max(counts, key=lambda length: (counts[length], length))
    # Names must be multiples of the length apart.
    return common if common and not any(step % common for step in steps) else min(steps)
