"""Ready-made selectors: which queues they choose, and that a send uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from saturnmq import Client, MessageQueue, random_queue, same_site

Run = Callable[[Callable[[], Any]], Any]
QUEUES = tuple(MessageQueue("T", name, number) for name in ("a@b0", "a@b1", "ab@b2", "b3") for number in range(4))
EAST = QUEUES[:8]


@pytest.mark.parametrize(
    ("selector", "argument", "candidates"),
    [(random_queue, None, QUEUES), (same_site, "a", EAST), (same_site, "ab", QUEUES[8:12]), (same_site, "c", QUEUES)],
)
def test_selector_chooses_every_candidate_and_no_other(
    selector: Callable[..., MessageQueue], argument: Any, candidates: tuple[MessageQueue, ...]
) -> None:
    chosen = [selector(QUEUES, argument) for _ in range(1000)]
    assert set(chosen) == set(candidates)
    assert max(map(chosen.count, candidates)) < 3 * 1000 / len(candidates), "about equally often"


async def test_selectors_choose_the_queues_of_sends(cluster: Any) -> None:
    async with cluster(brokers=2) as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        near, far = c.brokers.values()
        near.name = "east@b0"
        c.brokers = {near.name: near, far.name: far}
        c.add("T")
        for _ in range(20):
            receipt = await out.send("T", b"x", selector=same_site, selector_arg="east")
            assert receipt.queue.broker_name == near.name
        queues = {(await out.send("T", b"x", selector=random_queue)).queue for _ in range(200)}
        assert len(queues) == 8
