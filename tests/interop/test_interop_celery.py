"""Celery over a broker of Apache: a worker with results, control commands, delays that it holds itself, and dead letters."""

from __future__ import annotations

import threading
import time
from typing import Any

import apache
import celery
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Reject

from saturnmq import sync


def test_a_worker_of_celery_runs_tasks_of_an_apache_broker(apache_peer: apache.ApacheCluster) -> None:
    app = celery.Celery(
        "shop", broker=f"rocketmq://{apache_peer.name_servers}/", backend="rpc://", set_as_current=False
    )
    app.conf.update(
        broker_transport="saturnmq.kombu:Transport",
        broker_transport_options={"requeue_delay": 0},
        task_default_queue="celery.apache",
        worker_hijack_root_logger=False,
    )
    rejected = threading.Event()

    @app.task(name="add", shared=False)
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(name="unlucky", shared=False, bind=True, acks_late=True)
    def unlucky(task: Any) -> None:
        if task.request.delivery_info["redelivered"]:
            rejected.set()
            raise Reject("unlucky", requeue=False)
        raise Reject("unlucky", requeue=True)

    with start_worker(app, perform_ping_check=False, pool="solo", loglevel="ERROR", shutdown_timeout=30):
        assert [add.delay(2, number).get(timeout=30) for number in range(5)] == [2, 3, 4, 5, 6]
        (ping,) = app.control.inspect(timeout=10, limit=1).ping().values()
        assert ping == {"ok": "pong"}
        sent = time.time()
        assert add.apply_async((1, 1), countdown=1.5).get(timeout=30) == 2
        assert time.time() - sent >= 1.5
        unlucky.delay()
        assert rejected.wait(30)
        with (
            sync.Client.from_url(f"rmq://{apache_peer.name_servers}", route_poll_ms=500) as client,
            client.consumer("support-celery", start="first", route_timeout=None) as inbox,
        ):
            inbox.subscribe("%DLQ%celery|2Eapache")
            assert inbox.recv(timeout=30).properties["DEAD_LETTER_REASON"] == "rejected"
    app.close()
