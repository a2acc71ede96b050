"""Heartbeats: their body, and the brokers that receive them. Pure.

Requirements: HB-01, HB-02 (body: spec 00, section 3.7).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from saturnmq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData
from saturnmq.protocol.codes import INNER_PRODUCER_GROUP, MASTER_ID


def heartbeat_body(client_id: str, producer_groups: Iterable[str], consumers: Iterable[ConsumerData]) -> bytes:
    """The body of HEART_BEAT (34). Every client also reports the inner producer group."""
    groups = dict.fromkeys([INNER_PRODUCER_GROUP, *producer_groups])
    return HeartbeatData(
        client_id=client_id,
        producer_data_set=[ProducerData(group_name=group) for group in groups],
        consumer_data_set=list(consumers),
    ).encode()


def heartbeat_addresses(
    brokers: Mapping[str, Mapping[int, str]], *, has_producers: bool, has_consumers: bool
) -> list[str]:
    """Addresses of all brokers if there is a consumer, of the masters if there are only producers, else none (HB-02).

    brokers: addresses by broker name and id.
    """
    if not has_producers and not has_consumers:
        return []
    chosen: dict[str, None] = {}
    for name in sorted(brokers):
        for broker_id, address in sorted(brokers[name].items()):
            if has_consumers or broker_id == MASTER_ID:
                chosen[address] = None
    return list(chosen)
