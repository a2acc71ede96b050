"""A small run of make bench-spark: every case runs, those with a target on both sides, and both return the same rows.

No time is asserted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "spark.py"
ROWS = 2000
SHOWN = {  # cases without a target, with their number of sides
    "stream, 5 batches": 2,
    "stream to Parquet": 2,
    "stream, windows of 1 minute": 2,
    "1 % by time": 2,
    "one key": 2,
    "sink, transactional": 1,
    **{f"Apache 4.9.7, batch, pullDepth {depth}": 1 for depth in (1, 4, 16)},
}
BARS = {"SPP-02": 1.0, "SPP-03": 1.2, "SPP-04": 1.5, "SPP-05": 0.9, "SPP-07": 0.7, "SPP-08": 10.0, "SPP-09": 2.0}


@pytest.mark.interop_full
@pytest.mark.timeout(540)
@pytest.mark.spec(
    "SPP-01", "SPP-02", "SPP-03", "SPP-04", "SPP-05", "SPP-06", "SPP-07", "SPP-08", "SPP-09", "SPP-10", "SPP-11"
)
def test_spark_bench_sides_read_and_write_the_same_rows(tmp_path: Path) -> None:
    target = tmp_path / "measured.json"
    words = ["--quick", "--rows", str(ROWS), "--only", "SPP,Apache", "--json", str(target)]
    env = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
    done = subprocess.run(
        [sys.executable, str(BENCH), *words], capture_output=True, text=True, timeout=500, env=env, check=False
    )
    if "org.apache.kafka.common.errors.TimeoutException" in done.stderr:
        pytest.skip("Kafka did not keep its own time on this machine")
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    measured = json.loads(target.read_text())
    rows = {(row["spec"], row["bar"]): row for row in measured["rows"] if row["bar"] is not None}
    assert set(rows) == set(BARS.items())
    for (spec, _), row in rows.items():
        assert not row["failures"], row["failures"]
        sides = {"saturnmq"} if row["against"] else {"saturnmq", "kafka"}
        assert {side: found for side, found in row["samples"].items() if found}.keys() == sides
        assert all(s["rows"] == ROWS and s["seconds"] > 0 for found in row["samples"].values() for s in found)
        expected = ROWS // 100 if spec == "SPP-08" else ROWS
        assert {side: tuple(found) for side, found in row["results"].items()} == dict.fromkeys(sides, (expected,)), spec
    shown = {row["name"]: row for row in measured["rows"] if row["name"] in SHOWN}
    assert {name: len(row["samples"]) for name, row in shown.items()} == SHOWN
    assert [name for name, row in shown.items() if row["failures"] or row["bar"] is not None] == []
    streams = [row["results"] for name, row in shown.items() if name.startswith("stream")]
    assert streams == [{"saturnmq": [ROWS], "kafka": [ROWS]}] * 3
    assert [name for name, *_ in measured["figures"]] == ["SPP-11"]
