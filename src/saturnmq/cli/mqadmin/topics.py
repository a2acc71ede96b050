"""Commands on topics.

Requirements: C-07.
"""

from __future__ import annotations

from saturnmq.cli.mqadmin.call import Call


async def topic_list(call: Call) -> None:
    """Print the names of all topics."""
    for name in await call.admin.topics.names():
        call.out.line(name, topic=name)
