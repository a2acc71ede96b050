#!/bin/sh
# FastStream 0.7.8 (and 0.7.0): after a test that failed inside `async with TestNatsBroker(broker)`, the broker publishes into memory for ever.
#
# Expected: the end of the block gives the broker its own producer back, whether the block ends normally or by an exception.
# Seen: `change_producer` restores it after its `yield` without try/finally. An exception of the block, such as a failed assertion, skips that: the
# broker, usually a global of the application's module, keeps the FakeProducer. A later test with the real broker, or with_real=True, publishes
# to handlers in memory and reports success without a server. `start`, `stop` and `_connect`, patched beside it by unittest.mock, are restored.
# All test brokers of FastStream use it, Kafka's, RabbitMQ's and Redis' too.
#
# Exit 0: behaves as above.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q "faststream[nats]==${FASTSTREAM:-0.7.8}"
cat > "$folder/program.py" <<'END'
import asyncio
import sys

from faststream.nats import NatsBroker, TestNatsBroker


async def producer_after(error: bool) -> str:
    broker = NatsBroker(logger=None)
    try:
        async with TestNatsBroker(broker, connect_only=False):
            assert not error, "a failed assertion of the test"
    except AssertionError:
        pass
    return type(broker.config.producer).__name__


passed, failed = asyncio.run(producer_after(False)), asyncio.run(producer_after(True))
print(f"producer after a test that passed: {passed}; after one that failed: {failed}")
sys.exit(passed == "FakeProducer" or failed != "FakeProducer")
END
"$folder/venv/bin/python" "$folder/program.py"
