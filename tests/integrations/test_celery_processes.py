"""Celery's prefork pool in its own processes, against a server in another one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import celery
import pytest
from serverprocess import Server

from ports import free_port
from waiting import until

TASKS = """
import os
from celery import Celery

app = Celery("counting", broker=os.environ["BROKER"])
app.conf.broker_transport = "saturnmq.kombu:Transport"

@app.task(name="count")
def count(number, again):
    if again:
        count.apply_async((number, False), retry_policy={"max_retries": 100})  # from a forked process; the server may be away
        return
    with open(os.environ["RAN"], "a") as file:
        file.write(f"{number}\\n")
"""


def numbers(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.long
@pytest.mark.realtime
@pytest.mark.timeout(300)
@pytest.mark.loop(real=True, seconds=280)
async def test_a_prefork_worker_counts_exactly_through_a_kill_of_all_servers(tmp_path: Path) -> None:
    count, ran = 1000, tmp_path / "ran"
    namesrv, broker = free_port(), free_port((-2, 0, 1))

    def serve() -> Server:
        ports = ("--namesrv-port", str(namesrv), "--port", str(broker))
        return Server("standalone", "--data", str(tmp_path / "data"), *ports)

    server = serve()
    (tmp_path / "counting.py").write_text(TASKS)
    environment = {"BROKER": f"rocketmq://127.0.0.1:{namesrv}/", "RAN": str(ran), "PYTHONPATH": str(tmp_path)}
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", *["-A", "counting", "worker", "--pool", "prefork", "--concurrency", "2"]],
        cwd=tmp_path,
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    app = celery.Celery("counting", broker=environment["BROKER"], set_as_current=False)
    app.conf.broker_transport = "saturnmq.kombu:Transport"
    try:
        for number in range(count):
            app.send_task("count", (number, number % 100 == 0))
            if number == count // 2:
                await until(lambda: len(numbers(ran)) >= 100, 60)
                server.stop(signal.SIGKILL)
                server = serve()
        remaining = set(range(count))
        await until(lambda: remaining <= set(numbers(ran)), 120, why=lambda: remaining.difference(numbers(ran)))
        worker.terminate()
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()
        server.stop()
        app.close()
    repeated = [number for number, times in Counter(numbers(ran)).items() if times > 1]
    assert all(number % 100 == 0 for number in repeated)  # a send whose answer was lost with the server is repeated
