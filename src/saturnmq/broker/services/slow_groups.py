"""Disables consumer groups that read so far behind the log's end that they would slow down others; off by default.

The key is disableConsumeIfConsumerReadSlowly. A group is judged by its pulls: GROUP_GET_FALL_SIZE, the distance of the last pulled
message of each queue from the end of the commit log. Lines go to the logger `saturnmq.protection`.

Requirements: BP-09, MON-15.
"""

from __future__ import annotations

import logging
from typing import Final

from saturnmq.broker.services.statistics import Stats
from saturnmq.broker.settings import BrokerSettings
from saturnmq.broker.state.groups import Groups
from saturnmq.broker.state.identity import BrokerRole

protection_log: Final = logging.getLogger("saturnmq.protection")

CHECK_SECONDS: Final = 180


def disable_slow(settings: BrokerSettings, role: BrokerRole, stats: Stats, groups: Groups) -> list[str]:
    """Set consumeEnable=false for groups with a queue more than consumerFallbehindThreshold behind; returns their names.

    None if the key is off, or on a slave, whose groups are its master's.
    The setting is saved with the next change of a group. Only an administrator (code 200) can enable a group again; it is then
    judged by its next pulls.
    """
    # A slave copies the settings of its master.
    if not settings.disable_slow_groups or role.slave:
        return []
    behind: dict[str, int] = {}
    for key, size in stats.fall_size.items():
        if size > settings.slow_group_bytes:
            group = key.rpartition("@")[2]
            behind[group] = max(size, behind.get(group, 0))
    slow = [group for group in behind if groups.disable(group)]
    for group in slow:
        protection_log.warning(
            "[PROTECT_BROKER] the consumer[%s] consume slowly, %s bytes, disable it", group, behind[group]
        )
        # Judged again by its next pulls if it is enabled again.
        stats.forget_falls(group)
    return slow
