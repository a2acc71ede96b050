"""The compiled code for plain sends (`hot/sends.py`), with the services of a broker.

Requirements: SND-01..SND-15.
"""

from __future__ import annotations

from types import ModuleType

from saturnmq.broker.requests.context import SendContext
from saturnmq.broker.requests.send import SMALL_BYTES, UNFLUSHED_BYTES
from saturnmq.broker.requests.send_answer import confirmation_of
from saturnmq.broker.services.admission import Admission
from saturnmq.hot import compiled
from saturnmq.net.plain_reads import PlainSends
from saturnmq.protocol.frames.command import FrameLimits


def plain_sends(
    context: SendContext, admission: Admission, limits: FrameLimits, module: ModuleType | None = None
) -> PlainSends | None:
    """What takes plain sends for a broker without access control that serves its clients alone; None without compiled code."""
    module = module or compiled("sends")
    if module is None:
        return None
    sends: PlainSends = module.Sends(
        context,
        admission,
        limits,
        (SMALL_BYTES, UNFLUSHED_BYTES),
        lambda: confirmation_of(context.store, waits=True),
    )
    return sends
