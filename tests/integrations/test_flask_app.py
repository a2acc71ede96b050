"""Flask: a client per application, and the command that runs listeners."""

from __future__ import annotations

from pathlib import Path

import pytest
from consumerprocess import handled_line
from flask import Flask
from flask_shop import create_app, mq

from saturnmq import ConfigError
from saturnmq.flask import SaturnMQ, _in_context
from saturnmq.testing import SyncEmbeddedBroker

HERE = Path(__file__).resolve().parent


@pytest.mark.realtime
def test_requests_send_and_the_command_runs_listeners() -> None:
    with SyncEmbeddedBroker() as server:
        app = create_app(server.url)
        assert len(app.test_client().post("/orders", data=b"7").text) == 32
        with app.app_context():
            assert mq.client.topic_exists("orders") and mq.producer("orders-p") is mq.producer("orders-p")
        command = ["flask", "--app", "flask_shop:create_app", "saturnmq-consumers"]
        assert handled_line(command, HERE, SATURNMQ_URL=server.url) == "billed 7 EUR"
        with app.app_context():
            client = mq.client
            mq.stop()
            assert client.client_id and mq.client is not client
            mq.stop()


def test_each_message_has_a_context_that_is_torn_down() -> None:
    app, steps = Flask(__name__), list[object]()
    app.teardown_appcontext(lambda error: steps.append(error))
    failure = ValueError("x")

    def handler(argument: object) -> None:
        steps.append(argument)
        raise failure

    with pytest.raises(ValueError):
        _in_context(app, handler)("message")
    assert steps == ["message", failure]


def test_missing_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with Flask(__name__).app_context(), pytest.raises(ConfigError, match="init_app"):
        _ = SaturnMQ().client
    monkeypatch.delenv("SATURNMQ_URL", raising=False)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ConfigError, match="SATURNMQ_URL"):
        SaturnMQ(Flask(__name__))
