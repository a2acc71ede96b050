"""Broker settings, under Apache RocketMQ's configuration keys.

Each field names its own requirement.

Requirements: DG-11.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from saturnmq.config.settings import key, without_effect

log = logging.getLogger(__name__)

_NO_QUEUE: Final = (
    "no request waits in a queue here. Sends that wait for their durability are bounded by sendThreadPoolQueueCapacity"
)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Settings of one broker. Store and network have their own: StoreSettings and NetSettings."""

    cluster_name: str = key("brokerClusterName", "DefaultCluster", spec="DG-11")
    broker_name: str = key("brokerName", "broker-a", spec="DG-11")
    broker_id: int = key("brokerId", 0, low=0, spec="DG-11")
    namesrv_addr: str = key("namesrvAddr", "", spec="NS-36")
    fetch_name_servers: bool = key("fetchNamesrvAddrByAddressServer", False, spec="NS-36")
    name_server_domain: str = key("rocketmq.namesrv.domain", "jmenv.tbsite.net", spec="NS-36")
    name_server_subgroup: str = key("rocketmq.namesrv.domain.subgroup", "nsaddr", spec="NS-36")
    bind_address: str = key("bindAddress", "127.0.0.1", spec="UX-12")
    listen_port: int = key("listenPort", 10911, low=0, high=65535, spec="REM-28")
    fast_port_enable: bool = key("fastPortEnable", True, spec="REM-28")
    broker_ip1: str = key("brokerIP1", "", spec="SND-10")
    broker_ip2: str = key("brokerIP2", "", spec="NS-32")
    broker_role: str = key("brokerRole", "ASYNC_MASTER", choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"), spec="DG-04")
    broker_permission: int = key("brokerPermission", 6, low=0, high=15, spec="NS-35")
    auto_create_topic: bool = key("autoCreateTopicEnable", True, spec="SND-06")
    auto_create_group: bool = key("autoCreateSubscriptionGroup", True, spec="BP-10")
    cluster_topic_enable: bool = key("clusterTopicEnable", True, spec="NS-08")
    broker_topic_enable: bool = key("brokerTopicEnable", True, spec="NS-08")
    trace_topic_enable: bool = key("traceTopicEnable", False, spec="NS-08")
    trace_topic: str = key("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC", spec="NS-08")
    default_queues: int = key("defaultTopicQueueNums", 8, low=1, high=65535, spec="SND-06")
    register_period_ms: int = key("registerNameServerPeriod", 30_000, unit="ms", spec="NS-33")
    register_timeout_ms: int = key("registerBrokerTimeoutMills", 6000, unit="ms", low=1, spec="NS-32")
    force_register: bool = key("forceRegister", True, spec="NS-33")
    compressed_register: bool = key("compressedRegister", False, spec="NS-33")
    region_id: str = key("regionId", "DefaultRegion", spec="SND-01")
    trace_on: bool = key("traceOn", True, spec="SND-01")
    accept_send_from_ms: int = key("startAcceptSendRequestTimeStamp", 0, unit="ms", low=0, spec="SND-02")
    transaction_timeout_ms: int = key("transactionTimeOut", 6000, unit="ms", low=0, spec="TX-07")
    transaction_check_max: int = key("transactionCheckMax", 15, low=1, spec="TX-08")
    transaction_interval_ms: int = key("transactionCheckInterval", 60_000, unit="ms", low=1, spec="TX-07")
    store_replies: bool = key("storeReplyMessageEnable", True, spec="RR-04")
    reply_queue_max: int = key("replyThreadPoolQueueCapacity", 10_000, low=1, spec="REM-14")
    reject_transactions: bool = key("rejectTransactionMessage", False, spec="SND-12")
    long_polling: bool = key("longPollingEnable", True, spec="LP-01")
    short_polling_ms: int = key("shortPollingTimeMills", 1000, unit="ms", low=1, spec="LP-01")
    notify_ids_changed: bool = key("notifyConsumerIdsChangedEnable", True, spec="HB-04")
    slave_read_enable: bool = key("slaveReadEnable", False, spec="BP-06")
    offset_check_in_slave: bool = key("offsetCheckInSlave", False, spec="BP-08")
    disable_slow_groups: bool = key("disableConsumeIfConsumerReadSlowly", False, spec="BP-09")
    slow_group_bytes: int = key("consumerFallbehindThreshold", 17_179_869_184, unit="bytes", low=1, spec="BP-09")
    property_filter_enable: bool = key("enablePropertyFilter", False, spec="BP-01")
    filter_support_retry: bool = key("filterSupportRetry", False, spec="FIL-05")
    calc_filter_bit_map: bool = key("enableCalcFilterBitMap", False, spec="FIL-06")
    bloom_consumers: int = key("expectConsumerNumUseFilter", 32, low=1, high=10_000, spec="FIL-07")
    bloom_error_percent: int = key("maxErrorRateOfBloomFilter", 20, unit="%", low=1, high=99, spec="FIL-07")
    filter_clean_span_ms: int = key("filterDataCleanTimeSpan", 86_400_000, unit="ms", low=0, spec="FIL-04")
    flush_offsets_ms: int = key("flushConsumerOffsetInterval", 5000, unit="ms", low=1, spec="OF-05")
    flush_delay_ms: int = key("flushDelayOffsetInterval", 10_000, unit="ms", low=1, spec="DLY-07")
    client_expiry_ms: int = key("channelExpiredTimeout", 120_000, unit="ms", low=1, spec="HB-06")
    client_scan_ms: int = key("clientHousekeepingInterval", 10_000, unit="ms", low=1, spec="HB-06")
    fast_failure: bool = key("brokerFastFailureEnable", True, spec="SND-16", no_effect=_NO_QUEUE)
    send_wait_ms: int = key("waitTimeMillsInSendQueue", 200, unit="ms", low=1, spec="SND-16", no_effect=_NO_QUEUE)
    send_queue_max: int = key("sendThreadPoolQueueCapacity", 10_000, low=1, spec="REM-14")
    pull_queue_max: int = key("pullThreadPoolQueueCapacity", 100_000, low=1, spec="REM-14")
    topics_max: int = key("topicsMax", 100_000, low=1, spec="LIM-13")
    topics_per_hour: int = key("autoCreateTopicsPerHour", 1000, low=0, spec="LIM-13")
    groups_max: int = key("subscriptionGroupsMax", 100_000, low=1, spec="LIM-13")
    groups_per_hour: int = key("autoCreateGroupsPerHour", 1000, low=0, spec="LIM-13")
    live_groups_max: int = key("liveGroupsMax", 100_000, low=1, spec="LIM-13")
    offsets_max: int = key("consumerOffsetsMax", 500_000, low=1, spec="LIM-13")
    locks_max: int = key("queueLocksMax", 200_000, low=1, spec="LIM-13")
    acl_enable: bool = key("aclEnable", False, spec="ACL-01")

    def validate(self) -> list[str]:
        """Return one sentence per problem; features this version does not have are rejected, not ignored.

        Warns about keys without effect.
        """
        problems = []
        for text in without_effect(self):
            log.warning(text)
        if self.acl_enable:
            problems.append("aclEnable=true: this version has no access control; remove the key or set it to false")
        if self.broker_role == "SLAVE":
            problems.append("brokerRole=SLAVE: this version has no replication; use ASYNC_MASTER")
        if not self.broker_name.strip() or "/" in self.broker_name:
            problems.append(f"brokerName={self.broker_name!r} must not be empty or hold a slash")
        return problems

    @property
    def register_seconds(self) -> float:
        """Registration period in s: registerNameServerPeriod clamped to 10..60 s (NS-33)."""
        return min(max(self.register_period_ms, 10_000), 60_000) / 1000
