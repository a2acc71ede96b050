"""Check a recorded history: `PYTHONPATH=tests python -m harness.history.checker FILE`.

Prints the result as one JSON object. Exit code 0: no problems; 1: problems found; 2: the file is not a history.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.history.check import check, summary
from harness.history.operations import HistoryError, read_history


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.history.checker", description=__doc__)
    parser.add_argument("file", type=Path, help="a history, one JSON object per line")
    chosen = parser.parse_args(arguments)
    try:
        report = check(read_history(chosen.file))
    except (HistoryError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps(summary(report), indent=2) + "\n")
    return 0 if report.valid else 1


if __name__ == "__main__":
    sys.exit(main())
