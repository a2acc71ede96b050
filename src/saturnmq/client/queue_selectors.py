"""Ready-made selectors for sends: a random queue, or a queue at a site.

Requirements: PR-21, PRC-03.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from saturnmq.protocol.bodies import MessageQueue


def random_queue(queues: Sequence[MessageQueue], argument: object = None) -> MessageQueue:
    """Selector: any of the writable queues, chosen at random for each message. The argument has no effect.

    Example:
        await out.send("orders", b"x", selector=random_queue)
    """
    return random.choice(queues)


def same_site(queues: Sequence[MessageQueue], site: str) -> MessageQueue:
    """Selector: a random one of the queues on brokers named `<site>@<name>`, or of all queues if the site has none.

    Example:
        await out.send("orders", b"x", selector=same_site, selector_arg="frankfurt")
    """
    near = [queue for queue in queues if queue.broker_name.startswith(f"{site}@")]
    return random.choice(near or queues)
