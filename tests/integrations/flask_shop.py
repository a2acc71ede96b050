"""A Flask application of the tests; SATURNMQ_URL in the environment names the cluster."""

from flask import Flask, current_app, g, request

from saturnmq.flask import SaturnMQ
from saturnmq.sync import Message

mq = SaturnMQ()


@mq.listener("orders", group="billing", start="first")
def bill(message: Message[bytes]) -> None:
    g.order = message.body.decode()  # of this message's application context
    print("billed", g.order, current_app.config["CURRENCY"], flush=True)


def create_app(url: str | None = None) -> Flask:
    app = Flask(__name__)
    app.config["CURRENCY"] = "EUR"
    app.config["SATURNMQ_URL"] = url
    mq.init_app(app)

    @app.post("/orders")
    def create() -> str:
        return mq.producer("orders-p").send("orders", request.get_data()).message_id

    return app
