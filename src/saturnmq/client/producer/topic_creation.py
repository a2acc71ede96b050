"""Creation of a topic by a producer: on every master that has the topic from which the settings come.

Requirements: PR-31, PR-33.
"""

from __future__ import annotations

from typing import Final

from saturnmq.client import namespaces
from saturnmq.client.checks import check_topic
from saturnmq.client.connection.core import Core
from saturnmq.protocol.codes import Perm, RequestCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command

CREATE_ATTEMPTS: Final = 5


async def create_topic(core: Core, topic: str, *, queues: int, key: str, sys_flag: int) -> list[str]:
    """Create a topic on every master in the route of topic `key`, up to 5 attempts each. Returns the broker names that succeeded.

    Raises RouteNotFound if `key` does not exist, or the last error when no broker succeeded (PR-33).
    """
    check_topic(topic, sending=False)
    wire = namespaces.wrap(core.settings.namespace, topic)
    route = await core.read_route(namespaces.wrap(core.settings.namespace, key))
    broker_names: list[str] = []
    last: SaturnError | None = None
    for name in sorted(route.addresses):
        address = route.master(name)
        if address is None:
            continue
        ext = {
            "topic": wire,
            # Without the namespace: the broker's own template topic.
            "defaultTopic": key,
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            # Not inherited from the template topic.
            "perm": str(int(Perm.READ | Perm.WRITE)),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": str(sys_flag),
            "order": "false",
        }
        for _ in range(CREATE_ATTEMPTS):
            try:
                command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=dict(ext))
                await core.call_broker(core.channel_address(address), command, core.settings.api_timeout_ms, topic=wire)
            except SaturnError as error:
                last = error
                # A refusal stays one; the other masters are still asked.
                if not error.retryable:
                    break
            else:
                broker_names.append(name)
                break
    # Part of the masters is success, as in Java.
    if not broker_names:
        raise last or core.route_not_found(wire)
    # So that the next send finds it.
    await core.routes.refresh(wire)
    return broker_names
