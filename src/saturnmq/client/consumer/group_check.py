"""Detects members of one group that subscribe differently.

Brokers keep one set of subscriptions per group, the newest, so members that differ lose messages without any error from the broker
(CA-03). The client logs the difference.

Requirements: CA-03, UX-10.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from saturnmq.client.connection.core import Core
from saturnmq.client.filters import TAG
from saturnmq.filter.tags import split_tags
from saturnmq.protocol.bodies import ConsumerConnection, SubscriptionData
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command

logger = logging.getLogger(__name__)

_NOT_NAMED: Final = "no such topic"


def same_selection(local: SubscriptionData, remote: SubscriptionData) -> bool:
    """Whether both subscriptions select the same messages, as far as their expressions show."""
    if (local.expression_type or TAG) != (remote.expression_type or TAG):
        return False
    if (local.expression_type or TAG) == TAG:
        return set(split_tags(local.sub_string)) == set(split_tags(remote.sub_string))
    return local.sub_string == remote.sub_string


class GroupCheck:
    """Compares one member's subscriptions with those that a broker holds for the group; logs each difference once."""

    def __init__(self, core: Core, group: str) -> None:
        self._core = core
        self._group = group
        self._logged_differences: dict[str, str] = {}

    async def compare(self, address: str, subscriptions: Mapping[str, SubscriptionData]) -> None:
        """Compare with the broker at this address; a broker that does not answer is skipped.

        subscriptions: by topic, as last sent in a heartbeat.
        """
        command = Command(RequestCode.GET_CONSUMER_CONNECTION_LIST, ext={"consumerGroup": self._group})
        try:
            answer = await self._core.remote.call(address, command, self._core.settings.api_timeout_ms)
            if answer.code != ResponseCode.SUCCESS or not answer.body:
                return
            group = ConsumerConnection.decode(answer.body)
        except SaturnError as error:
            logger.info("subscriptions not compared group=%s broker=%s error=%s", self._group, address, error)
            return
        members = {connection.client_id for connection in group.connection_set}
        other_members = sorted(members - {self._core.client_id})
        if len(other_members) == len(members) or not other_members:
            return  # the only member, or not registered there yet
        for topic, data in subscriptions.items():
            newest = group.subscription_table.get(topic)
            if newest is not None and (newest.sub_version <= data.sub_version or same_selection(data, newest)):
                # Logged again if the difference comes back.
                self._logged_differences.pop(topic, None)
                continue
            text = _NOT_NAMED if newest is None else f"{newest.expression_type or TAG} {newest.sub_string}"
            if self._logged_differences.get(topic) != text:
                self._logged_differences[topic] = text
                logger.warning(
                    "subscriptions of the group differ, messages are lost until all members subscribe the same "
                    "group=%s topic=%s mine=%s %s newest=%s others=%s",
                    self._group, topic, data.expression_type or TAG, data.sub_string, text, ",".join(other_members),
                )  # fmt: skip
