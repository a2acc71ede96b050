"""The same Java load against SaturnMQ and Apache RocketMQ 4.9.7, in the same minutes on the same machine.

    python bench/run.py [--quick] [--write] [--rounds N] [--seconds S] [--only WORDS]

Both servers run side by side; each row is measured in rounds that alternate between them. A figure alone means little: compare the
ratio. The load generator (Apache's Java client) shares the processors with the server under test.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / "tests" / "interop"), str(REPOSITORY / "tests"), str(Path(__file__).resolve().parent)]

from rich.console import Console  # noqa: E402

import report  # noqa: E402
from measure import Bench, Plan, may_run  # noqa: E402


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round of a few rows; says little")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--rounds", type=int, help="rounds per row (default 3)")
    parser.add_argument("--seconds", type=float, help="seconds per measurement (default 3)")
    parser.add_argument("--only", default="", metavar="WORD", help="only rows whose name contains it, e.g. sync")
    parser.add_argument("--peers", default="saturnmq,apache", help="servers, separated by commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single measurement")
    return parser.parse_args()


def main() -> int:
    args = options()
    console = Console()
    if not may_run("make bench", console):
        return 0
    plan = Plan.of(quick=args.quick, rounds=args.rounds, seconds=args.seconds, only=args.only)
    names = [name for name in args.peers.split(",") if name]
    with tempfile.TemporaryDirectory(prefix="saturnmq-bench-") as folder:
        results = Bench(plan, names, Path(folder), console).run()
    facts = report.machine()
    console.print(report.table(results))
    for line in facts:
        console.print(line, style="dim")
    if args.json:
        args.json.write_text(report.as_json(results, facts))
    if args.write:
        target = REPOSITORY / "docs" / "benchmarks.md"
        target.write_text(report.markdown(results, facts, plan))
        console.print(f"written: {target.relative_to(REPOSITORY)}")
    return 1 if any(row.failures for row in results.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
