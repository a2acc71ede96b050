"""Command line: python -m mutants PACKAGE [--count N] [--seed N] [...]; `make mutants P=PACKAGE` runs it.

Exit status: 0; 1 if the tests notice fewer than --bar percent of the defects; 2 for a package or tests that do not exist.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mutants.covering import Covering, Project, collect
from mutants.defects import Defect, draw, without_effect
from mutants.running import Outcome, Workspace

ROOT: Final = Path(__file__).resolve().parent.parent.parent
MARKS: Final = "not interop and not long and not spark"
# Only a Spark session executes most of the pipelines. Its tests run last: each run that reaches one starts a session, 10 s.
MARKS_OF: Final = {"spark": "not interop and not long"}
# Keys, defaults and ranges equal those of Apache RocketMQ and those of docs/configuration.md.
SETTINGS_TESTS: Final = ("tests/config/test_config_apache_keys.py", "tests/docs/test_docs_configuration.py")
# Tests outside tests/PACKAGE that prove a package.
FURTHER_TESTS: Final = {
    "acl": ("tests/broker/test_broker_acl*.py",),
    "broker": ("tests/config", "tests/docs/test_docs_configuration.py"),
    "filter": ("tests/store/test_store_filter.py",),
    "raft": ("tests/sim", "tests/broker/test_broker_dledger*.py", *SETTINGS_TESTS),
    "replication": (
        "tests/raft",
        "tests/broker/test_broker_dledger*.py",
        "tests/broker/test_broker_masterslave*.py",
        *SETTINGS_TESTS,
    ),
    "store": ("tests/cli/test_cli_store.py", "tests/cli/test_cli_snapshot.py", *SETTINGS_TESTS),
}
WIDTH: Final = 160  # of a table that goes to no terminal


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="mutants", description="Plant small defects in a package and list those no test notices."
    )
    parser.add_argument(
        "package", help="a package of src/saturnmq, or a module of one: acl, store/queue, spark/decode.py"
    )
    parser.add_argument("--count", type=int, default=50, help="how many defects (default: 50)")
    parser.add_argument("--seed", type=int, help="which ones (default: random, printed)")
    parser.add_argument(
        "--tests", nargs="+", help="folders, files or patterns of tests (default: tests/PACKAGE, and more for some)"
    )
    parser.add_argument(
        "--marks", help=f"tests to run, as pytest -m (default: {MARKS}; of spark also those marked spark)"
    )
    parser.add_argument(
        "--near", action="store_true", help="only test files that import a module with a defect: quicker, a lower bound"
    )
    parser.add_argument("--seconds", type=float, default=60, help="tests per defect, at most this long (default: 60)")
    parser.add_argument("--bar", type=float, default=90, help="exit status 1 below this percentage (default: 90)")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--top", default="saturnmq", help=argparse.SUPPRESS)
    parser.add_argument("--verbose", action="store_true", help="print each defect with the test that noticed it")
    return parser.parse_args(argv)


def project(options: argparse.Namespace) -> Project:
    """Raises FileNotFoundError, which names what does not exist."""
    package = options.package.split("/")[0]
    tests = options.tests or [f"tests/{package}", *FURTHER_TESTS.get(package, ())]
    part = f"{options.top}/{options.package}".rstrip("/")
    measured = f"{options.top}/{package}".rstrip("/")
    marks = options.marks or MARKS_OF.get(package, MARKS)
    found = Project(options.root, options.root / "src", measured, part, tuple(tests), marks)
    if not (found.source / part).exists():
        raise FileNotFoundError(found.source / part)
    if missing := [name for name in tests if not any(options.root.glob(name))]:
        raise FileNotFoundError(missing[0])
    return found


def survivors_table(survivors: Sequence[Outcome]) -> Table:
    table = Table("where", "defect", "tests run", title="not noticed", title_justify="left", show_lines=True)
    for outcome in survivors:
        defect = outcome.defect
        table.add_row(f"{defect.path}:{defect.line}", f"{defect.before}\n{defect.after}", outcome.tests, style=None)
    return table


def summary(outcomes: Sequence[Outcome], seed: int, listed: int) -> str:
    """One line: how many were noticed, and of which kinds the others are."""
    noticed = sum(bool(outcome.killer) for outcome in outcomes)
    kinds = Counter(outcome.defect.kind for outcome in outcomes if not outcome.killer)
    missed = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()) or "none"
    return (
        f"noticed {noticed} of {len(outcomes)} ({100 * noticed / max(1, len(outcomes)):.0f} %), seed {seed}; "
        f"not noticed: {missed}; {listed} listed as without effect"
    )


def is_below(outcomes: Sequence[Outcome], bar: float) -> bool:
    """Whether the tests noticed fewer than `bar` percent."""
    return 100 * sum(bool(outcome.killer) for outcome in outcomes) < bar * len(outcomes)


def judged(
    console: Console, found: Project, drawn: Sequence[Defect], options: argparse.Namespace, folder: Path
) -> list[Outcome]:
    """Measure what the tests execute, then judge each defect, with progress."""
    workspace = Workspace(found, folder)
    workspace.check()
    with Progress(console=console) as progress:
        package = options.package.split("/")[0]
        always = (*SETTINGS_TESTS, f"tests/{package}/test_{package}_numbers.py")  # import no module by its name
        test_files = found.near_files(drawn, always) if options.near else found.test_files()
        files = progress.track(test_files, description="tests")
        copied = dataclasses.replace(found, source=folder / "src")
        covering = collect(copied, options.root / ".mutants", workspace.environment, files)
        report_failing(console, covering)
        outcomes = []
        for defect in progress.track(drawn, description="defects"):
            outcome = workspace.judge(defect, covering, options.seconds)
            outcomes.append(outcome)
            if options.verbose or not outcome.killer:
                console.print(
                    f"{defect.path}:{defect.line} {outcome.killer or 'NOT NOTICED'} ({outcome.seconds:.0f} s)\n"
                    f"    {defect.before}\n    {defect.after}",
                    markup=False, highlight=False, soft_wrap=True,
                )  # fmt: skip
    return outcomes


def report_failing(console: Console, covering: Covering) -> None:
    for name in covering.failing():
        console.print(f"left out, fails without a defect: {name}", markup=False, highlight=False)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    try:
        found = project(options)
    except FileNotFoundError as error:
        print(f"mutants: {error} does not exist", file=sys.stderr)
        return 2
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    table = options.root / "tools" / "mutants" / "without_effect.txt"
    listed = without_effect(table) if table.exists() else {}
    drawn = draw(found.drawn_files(), options.count, seed, listed)
    console.print(f"package {options.package}, {len(drawn)} defects, seed {seed}", highlight=False)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        outcomes = judged(console, found, drawn, options, Path(folder))
    survivors = [outcome for outcome in outcomes if not outcome.killer]
    if survivors:
        console.print(survivors_table(survivors))
    own = sum(key.startswith(found.part) for key in listed)
    console.print(summary(outcomes, seed, own), highlight=False, soft_wrap=True)
    return int(is_below(outcomes, options.bar))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that running tests are ended
    sys.exit(main())
