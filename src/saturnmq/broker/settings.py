"""Broker settings, under Apache RocketMQ's configuration keys.

Each field names its own requirement.

Requirements: DG-11.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from saturnmq.config.settings import LOG_LEVELS, key
from saturnmq.config.unused import UnusedBrokerKeys
from saturnmq.net.client import split_addresses
from saturnmq.protocol.errors import ConfigError
from saturnmq.server_admin import LOOPBACK, addresses_problems
from saturnmq.store.files.mapped_file import numbered_files

_UNREAD: Final = (
    "set enableDLegerCommitLog=true, which alone reads it, or move the folder {folder} away if the messages may go"
)


@dataclass(frozen=True, slots=True)
class BrokerSettings(UnusedBrokerKeys):
    """Settings of one broker. Store and network have their own: StoreSettings and NetSettings."""

    cluster_name: str = key("brokerClusterName", "DefaultCluster", spec="DG-11")
    broker_name: str = key("brokerName", "broker-a", spec="DG-11")
    broker_id: int = key("brokerId", 0, low=0, spec="DG-11")
    namesrv_addr: str = key("namesrvAddr", "", spec="NS-36", runtime=True)
    fetch_name_servers: bool = key("fetchNamesrvAddrByAddressServer", False, spec="NS-36")
    name_server_domain: str = key("rocketmq.namesrv.domain", "jmenv.tbsite.net", spec="NS-36")
    name_server_subgroup: str = key("rocketmq.namesrv.domain.subgroup", "nsaddr", spec="NS-36")
    address_server_domain: str = key("rmqAddressServerDomain", "", spec="NS-36")
    address_server_subgroup: str = key("rmqAddressServerSubGroup", "", spec="NS-36")
    config_black_list: str = key("configBlackList", "configBlackList;brokerConfigPath", spec="ADM-13")
    bind_address: str = key("bindAddress", "127.0.0.1", spec="UX-12")
    listen_port: int = key("listenPort", 10911, low=0, high=65535, spec="REM-28")
    fast_port_enable: bool = key("fastPortEnable", True, spec="REM-28")
    broker_ip1: str = key("brokerIP1", "", spec="SND-10")
    advertised_port: int = key("advertisedPort", 0, low=0, high=65535, spec="UX-03")
    broker_ip2: str = key("brokerIP2", "", spec="NS-32")
    broker_role: str = key("brokerRole", "ASYNC_MASTER", choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"), spec="DG-04")
    broker_permission: int = key("brokerPermission", 6, low=0, high=15, spec="NS-35", runtime=True)
    auto_create_topic: bool = key("autoCreateTopicEnable", True, spec="SND-06", runtime=True)
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
    delete_unused_stats: bool = key("autoDeleteUnusedStats", False, spec="MON-12")
    detail_stats: bool = key("enableDetailStat", True, spec="MON-01")
    delay_stats: bool = key("enableScheduleMessageStats", True, spec="MON-01")
    fall_stats: bool = key("diskFallRecorded", True, spec="MON-01")
    log_directory: str = key("logDirectory", "", spec="MON-08")
    stats_lines_max: int = key("statsLogLinesPerMinute", 10_000, low=0, high=100_000, spec="MON-08")
    accept_send_from_ms: int = key("startAcceptSendRequestTimeStamp", 0, unit="ms", low=0, spec="SND-02", runtime=True)
    transaction_timeout_ms: int = key("transactionTimeOut", 6000, unit="ms", low=0, spec="TX-07")
    transaction_check_max: int = key("transactionCheckMax", 15, low=1, spec="TX-08")
    transaction_interval_ms: int = key("transactionCheckInterval", 60_000, unit="ms", low=1, spec="TX-07")
    half_messages_max: int = key("undecidedHalfMessagesMax", 200_000, low=1, spec="LIM-13")
    store_replies: bool = key("storeReplyMessageEnable", True, spec="RR-04")
    reply_queue_max: int = key("replyThreadPoolQueueCapacity", 10_000, low=1, spec="REM-14")
    reject_transactions: bool = key("rejectTransactionMessage", False, spec="SND-12", runtime=True)
    long_polling: bool = key("longPollingEnable", True, spec="LP-01", runtime=True)
    short_polling_ms: int = key("shortPollingTimeMills", 1000, unit="ms", low=1, spec="LP-01")
    notify_ids_changed: bool = key("notifyConsumerIdsChangedEnable", True, spec="HB-04")
    slave_read_enable: bool = key("slaveReadEnable", False, spec="BP-06")
    forward_to_leader: bool = key("forwardToLeader", True)
    forward_requests_max: int = key("forwardRequestsMax", 10_000, low=1)
    forward_bytes_max: int = key("forwardBytesMax", 67_108_864, unit="bytes", low=1)
    forward_wait_ms: int = key("forwardWaitMs", 1000, unit="ms", low=0, high=60_000)
    forward_drain_ms: int = key("forwardDrainMs", 0, unit="ms", low=0, high=600_000)
    offset_check_in_slave: bool = key("offsetCheckInSlave", False, spec="BP-08")
    disable_slow_groups: bool = key("disableConsumeIfConsumerReadSlowly", False, spec="MON-15")
    slow_group_bytes: int = key("consumerFallbehindThreshold", 17_179_869_184, unit="bytes", low=1, spec="MON-15")
    property_filter_enable: bool = key("enablePropertyFilter", False, spec="BP-01")
    filter_support_retry: bool = key("filterSupportRetry", False, spec="FIL-05")
    calc_filter_bit_map: bool = key("enableCalcFilterBitMap", False, spec="FIL-06")
    bloom_consumers: int = key("expectConsumerNumUseFilter", 32, low=1, high=10_000, spec="FIL-07")
    bloom_error_percent: int = key("maxErrorRateOfBloomFilter", 20, unit="%", low=1, high=99, spec="FIL-07")
    filter_clean_span_ms: int = key("filterDataCleanTimeSpan", 86_400_000, unit="ms", low=0, spec="FIL-04")
    flush_offsets_ms: int = key("flushConsumerOffsetInterval", 5000, unit="ms", low=1, spec="OF-05")
    flush_delay_ms: int = key("flushDelayOffsetInterval", 10_000, unit="ms", low=1, spec="DLY-07")
    client_expiry_ms: int = key("channelExpiredTimeout", 120_000, unit="ms", low=1, spec="HB-06", runtime=True)
    client_scan_ms: int = key("clientHousekeepingInterval", 10_000, unit="ms", low=1, spec="HB-06")
    fast_failure: bool = key("brokerFastFailureEnable", True, spec="SND-16")
    fast_failure_delay_ms: int = key(
        "brokerFastFailureDelayMillis", 1000, unit="ms", low=0, spec="SND-16", runtime=True
    )
    send_wait_ms: int = key("waitTimeMillsInSendQueue", 200, unit="ms", low=1, spec="SND-16", runtime=True)
    pull_wait_ms: int = key("waitTimeMillsInPullQueue", 5000, unit="ms", low=1, spec="BP-09", runtime=True)
    heartbeat_wait_ms: int = key("waitTimeMillsInHeartbeatQueue", 31_000, unit="ms", low=1, spec="SND-16", runtime=True)
    transaction_wait_ms: int = key(
        "waitTimeMillsInTransactionQueue", 3000, unit="ms", low=1, spec="SND-16", runtime=True
    )
    send_queue_max: int = key("sendThreadPoolQueueCapacity", 10_000, low=1, spec="REM-14", runtime=True)
    pull_queue_max: int = key("pullThreadPoolQueueCapacity", 100_000, low=1, spec="REM-14", runtime=True)
    parked_per_queue: int = key("parkedPullsMaxPerQueue", 10_000, low=1, spec="LIM-13", runtime=True)
    parked_per_group: int = key("parkedPullsMaxPerGroup", 25_000, low=1, spec="LIM-13", runtime=True)
    parked_per_address: int = key("parkedPullsMaxPerAddress", 50_000, low=1, spec="LIM-13", runtime=True)
    topics_max: int = key("topicsMax", 100_000, low=1, spec="LIM-13")
    topics_per_hour: int = key("autoCreateTopicsPerHour", 1000, low=0, spec="LIM-13")
    groups_max: int = key("subscriptionGroupsMax", 100_000, low=1, spec="LIM-13")
    groups_per_hour: int = key("autoCreateGroupsPerHour", 1000, low=0, spec="LIM-13")
    live_groups_max: int = key("liveGroupsMax", 100_000, low=1, spec="LIM-13")
    client_subscriptions_max: int = key("subscriptionsMaxPerClient", 2000, low=1, spec="LIM-13")
    subscriptions_max: int = key("liveSubscriptionsMax", 100_000, low=1, spec="LIM-13")
    consumer_filters_max: int = key("consumerFiltersMax", 10_000, low=1, spec="LIM-13")
    offsets_max: int = key("consumerOffsetsMax", 500_000, low=1, spec="LIM-13")
    locks_max: int = key("queueLocksMax", 200_000, low=1, spec="LIM-13")
    log_level: str = key("logLevel", "", choices=LOG_LEVELS, spec="SEC-07", runtime=True)
    acl_enable: bool = key("aclEnable", False, spec="ACL-01")
    acl_home: str = key("rocketmqHome", "", spec="ACL-03")
    acl_file: str = key("rocketmq.acl.plain.file", "conf/plain_acl.yml", spec="ACL-03")
    acl_compat: bool = key("aclCompatMode", False, spec="SEC-12")
    acl_validators: str = key("aclValidators", "plain", spec="ACL-02")
    acl_plain_admin_addresses: str = key("aclPlainAdminAddresses", LOOPBACK, spec="SEC-09")
    acl_trace_bytes: int = key("aclTraceBytesPerSecond", 4 * 1024 * 1024, unit="bytes", low=0, spec="SEC-14")
    namesrv_access_key: str = key("namesrvAccessKey", "", spec="SEC-17")
    namesrv_secret_key: str = key("namesrvSecretKey", "", secret=True, spec="SEC-17")
    production_waive: str = key("production.waive", "", spec="SEC-21")
    admin_addresses: str = key("adminAddresses", LOOPBACK, spec="SEC-12")
    metrics_port: int = key("metricsPort", 0, low=0, high=65535, spec="MON-17")
    metrics_address: str = key("metricsAddress", "127.0.0.1", spec="INT-11")
    metrics_accumulation: bool = key("metricsMessageAccumulation", True, spec="INT-12")

    def validate(self) -> list[str]:
        """Return one sentence per problem; features this version does not have are rejected, not ignored."""
        problems = []
        if not any(name.strip() for name in self.acl_validators.split(",")):
            problems.append("aclValidators must name at least one validator, such as plain")
        try:
            split_addresses(self.namesrv_addr)
        except ConfigError as error:
            problems.append(f"namesrvAddr {error.message}")
        if not self.broker_name.strip() or "/" in self.broker_name:
            problems.append(f"brokerName={self.broker_name!r} must not be empty or hold a slash")
        problems += addresses_problems(self.acl_plain_admin_addresses, "aclPlainAdminAddresses")
        if bool(self.namesrv_access_key) != bool(self.namesrv_secret_key):
            problems.append("namesrvAccessKey and namesrvSecretKey must be set together")
        return problems + addresses_problems(self.admin_addresses)

    def role_problem(self) -> str | None:
        """Why the configured role cannot be served; not asked in a DLedger group, which decides the role itself (DL-B15)."""
        if self.broker_role == "SLAVE" and self.broker_id == 0:
            return "brokerRole=SLAVE: brokerId must be above 0, 0 is the master (HA-20)"
        return None

    @property
    def address_server(self) -> tuple[str, str]:
        """Host of the HTTP address server and the last part of its path; the keys of a broker's file override the system's."""
        return (
            self.address_server_domain or self.name_server_domain,
            self.address_server_subgroup or self.name_server_subgroup,
        )

    @property
    def register_seconds(self) -> float:
        """Registration period in s: registerNameServerPeriod clamped to 10..60 s (NS-33)."""
        return min(max(self.register_period_ms, 10_000), 60_000) / 1000


def refuse_unread_ledger(root: Path, advice: str = _UNREAD) -> None:
    """Refuse to start without DLedger on a store that holds a ledger; its messages would appear to be lost (DL-U07).

    advice: what the operator is to do instead; `{folder}` is replaced. Raises ConfigError.
    """
    ledger_file = next(
        (path for folder in sorted(root.glob("dledger-*")) for path in numbered_files(folder / "data")), None
    )
    if ledger_file is not None:
        text = advice.format(folder=ledger_file.parent.parent)
        raise ConfigError(f"{ledger_file.parent} holds messages of a DLedger group: {text}")
