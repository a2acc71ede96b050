"""Keys of Apache RocketMQ 4.9.7 that are accepted, shown and documented, but have no effect: its files load as they are.

Each key says why nothing reads it; a warning names those that are set to another value than their default. The settings classes
of broker and store inherit them. Names, types and defaults are those of BrokerConfig and MessageStoreConfig.

Requirements: CFG-04..CFG-09, ADM-28.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from saturnmq.config.settings import key

CPUS: Final = os.cpu_count() or 1  # Apache RocketMQ sizes its thread pools by this number
NO_THREADS: Final = "one event loop does the work of these threads"
UNREAD: Final = "Apache RocketMQ 4.9.7 does not read it either"
_NO_QUEUE: Final = "requests of this kind do not wait in a queue of their own"
_NO_BILLING: Final = "statistics for billing are always collected"
_NO_LOCK: Final = "the event loop is the only writer, no lock is taken"
_NO_HANGING: Final = "an expired file is deleted at once; readers keep what they have mapped"
_COMMITS: Final = "the transient pool is committed every commitIntervalCommitLog"
_NO_WARMING: Final = "blocks are reserved at creation, pages are not touched in advance"
_NO_LMQ: Final = "light message queues are not supported"
_DELIVERY: Final = "delayed messages are delivered in batches, without threads"


@dataclass(frozen=True, slots=True, kw_only=True)  # so that the first field of a subclass stays the first argument
class UnusedBrokerKeys:
    """Keys of BrokerConfig without effect."""

    message_store_plug_in: str = key("messageStorePlugIn", "", spec="CFG-06", no_effect="plug-ins are Java classes")
    send_message_thread_pool_nums: int = key(
        "sendMessageThreadPoolNums",
        min(CPUS, 4),
        low=0,
        spec="CFG-05",
        default_text="min(CPUs, 4)",
        no_effect=NO_THREADS,
    )
    put_message_future_thread_pool_nums: int = key(
        "putMessageFutureThreadPoolNums",
        min(CPUS, 4),
        low=0,
        spec="CFG-05",
        default_text="min(CPUs, 4)",
        no_effect=NO_THREADS,
    )
    pull_message_thread_pool_nums: int = key(
        "pullMessageThreadPoolNums",
        16 + 2 * CPUS,
        low=0,
        spec="CFG-05",
        default_text="16 + 2 * CPUs",
        no_effect=NO_THREADS,
    )
    process_reply_message_thread_pool_nums: int = key(
        "processReplyMessageThreadPoolNums",
        16 + 2 * CPUS,
        low=0,
        spec="CFG-05",
        default_text="16 + 2 * CPUs",
        no_effect=NO_THREADS,
    )
    query_message_thread_pool_nums: int = key(
        "queryMessageThreadPoolNums", 8 + CPUS, low=0, spec="CFG-05", default_text="8 + CPUs", no_effect=NO_THREADS
    )
    admin_broker_thread_pool_nums: int = key(
        "adminBrokerThreadPoolNums", 16, low=0, spec="CFG-05", no_effect=NO_THREADS
    )
    client_manage_thread_pool_nums: int = key(
        "clientManageThreadPoolNums", 32, low=0, spec="CFG-05", no_effect=NO_THREADS
    )
    consumer_manage_thread_pool_nums: int = key(
        "consumerManageThreadPoolNums", 32, low=0, spec="CFG-05", no_effect=NO_THREADS
    )
    heartbeat_thread_pool_nums: int = key(
        "heartbeatThreadPoolNums",
        min(32, CPUS),
        low=0,
        spec="CFG-05",
        default_text="min(32, CPUs)",
        no_effect=NO_THREADS,
    )
    end_transaction_thread_pool_nums: int = key(
        "endTransactionThreadPoolNums",
        max(8 + 2 * CPUS, 4 * min(CPUS, 4)),
        low=0,
        spec="CFG-05",
        default_text="max(8 + 2 * CPUs, 4 * min(CPUs, 4))",
        no_effect=NO_THREADS,
    )
    flush_consumer_offset_history_interval: int = key(
        "flushConsumerOffsetHistoryInterval", 60_000, unit="ms", low=0, spec="CFG-06", no_effect=UNREAD
    )
    put_thread_pool_queue_capacity: int = key(
        "putThreadPoolQueueCapacity", 10_000, low=0, spec="CFG-05", no_effect=_NO_QUEUE
    )
    query_thread_pool_queue_capacity: int = key(
        "queryThreadPoolQueueCapacity", 20_000, low=0, spec="CFG-05", no_effect=_NO_QUEUE
    )
    client_manager_thread_pool_queue_capacity: int = key(
        "clientManagerThreadPoolQueueCapacity", 1_000_000, low=0, spec="CFG-05", no_effect=_NO_QUEUE
    )
    consumer_manager_thread_pool_queue_capacity: int = key(
        "consumerManagerThreadPoolQueueCapacity", 1_000_000, low=0, spec="CFG-05", no_effect=_NO_QUEUE
    )
    heartbeat_thread_pool_queue_capacity: int = key(
        "heartbeatThreadPoolQueueCapacity", 50_000, low=0, spec="CFG-05", no_effect=_NO_QUEUE
    )
    end_transaction_pool_queue_capacity: int = key(
        "endTransactionPoolQueueCapacity", 100_000, low=0, spec="CFG-05", no_effect=_NO_QUEUE
    )
    filter_server_nums: int = key(
        "filterServerNums",
        0,
        low=0,
        spec="CFG-06",
        no_effect="filter servers, which run Java code of consumers, are not started; use SQL filters",
    )
    high_speed_mode: bool = key("highSpeedMode", False, spec="CFG-06", no_effect=UNREAD)
    commercial_enable: bool = key("commercialEnable", True, spec="CFG-06", no_effect=_NO_BILLING)
    commercial_timer_count: int = key("commercialTimerCount", 1, low=0, spec="CFG-06", no_effect=_NO_BILLING)
    commercial_trans_count: int = key("commercialTransCount", 1, low=0, spec="CFG-06", no_effect=_NO_BILLING)
    commercial_big_count: int = key("commercialBigCount", 1, low=0, spec="CFG-06", no_effect=_NO_BILLING)
    commercial_base_count: int = key("commercialBaseCount", 1, low=0, spec="CFG-06", no_effect=_NO_BILLING)
    transfer_msg_by_heap: bool = key(
        "transferMsgByHeap",
        True,
        spec="CFG-06",
        no_effect="messages are always sent from the mapped file or a copy, as is cheaper",
    )
    max_delay_time: int = key("maxDelayTime", 40, low=0, spec="CFG-06", no_effect=UNREAD)
    isolate_log_enable: bool = key(
        "isolateLogEnable", False, spec="CFG-06", no_effect="each broker has the folder of its logDirectory"
    )


@dataclass(frozen=True, slots=True, kw_only=True)  # so that the first field of a subclass stays the first argument
class UnusedStoreKeys:
    """Keys of MessageStoreConfig without effect."""

    bit_map_length_consume_queue_ext: int = key(
        "bitMapLengthConsumeQueueExt",
        64,
        low=0,
        spec="CFG-07",
        no_effect="the length follows from expectConsumerNumUseFilter and maxErrorRateOfBloomFilter",
    )
    use_reentrant_lock_when_put_message: bool = key(
        "useReentrantLockWhenPutMessage", True, spec="CFG-08", no_effect=_NO_LOCK
    )
    flush_commit_log_timed: bool = key(
        "flushCommitLogTimed",
        True,
        spec="CFG-08",
        no_effect="flushes follow flushIntervalCommitLog, and a waiting send starts one at once",
    )
    destroy_maped_file_interval_forcibly: int = key(
        "destroyMapedFileIntervalForcibly", 120_000, unit="ms", low=0, spec="CFG-07", no_effect=_NO_HANGING
    )
    redelete_hanged_file_interval: int = key(
        "redeleteHangedFileInterval", 120_000, unit="ms", low=0, spec="CFG-07", no_effect=_NO_HANGING
    )
    put_msg_index_hight_water: int = key("putMsgIndexHightWater", 600_000, low=0, spec="CFG-08", no_effect=UNREAD)
    commit_commit_log_least_pages: int = key("commitCommitLogLeastPages", 4, low=0, spec="CFG-08", no_effect=_COMMITS)
    flush_least_pages_when_warm_maped_file: int = key(
        "flushLeastPagesWhenWarmMapedFile", 4_096, low=0, spec="CFG-08", no_effect=_NO_WARMING
    )
    commit_commit_log_thorough_interval: int = key(
        "commitCommitLogThoroughInterval", 200, unit="ms", low=0, spec="CFG-08", no_effect=_COMMITS
    )
    message_index_safe: bool = key(
        "messageIndexSafe", False, spec="CFG-08", no_effect="recovery always takes the index into account"
    )
    warm_maped_file_enable: bool = key("warmMapedFileEnable", False, spec="CFG-08", no_effect=_NO_WARMING)
    debug_lock_enable: bool = key("debugLockEnable", False, spec="CFG-08", no_effect=_NO_LOCK)
    duplication_enable: bool = key(
        "duplicationEnable", False, spec="CFG-08", no_effect="records are dispatched as soon as they are in the log"
    )
    fast_fail_if_no_buffer_in_store_pool: bool = key(
        "fastFailIfNoBufferInStorePool", False, spec="CFG-08", no_effect="a send waits in memory for a free buffer"
    )
    enable_lmq: bool = key("enableLmq", False, spec="CFG-09", no_effect=_NO_LMQ)
    enable_multi_dispatch: bool = key("enableMultiDispatch", False, spec="CFG-09", no_effect=_NO_LMQ)
    max_lmq_consume_queue_num: int = key("maxLmqConsumeQueueNum", 20_000, low=0, spec="CFG-09", no_effect=_NO_LMQ)
    enable_schedule_async_deliver: bool = key("enableScheduleAsyncDeliver", False, spec="CFG-09", no_effect=_DELIVERY)
    schedule_async_deliver_max_pending_limit: int = key(
        "scheduleAsyncDeliverMaxPendingLimit", 2_000, low=0, spec="CFG-09", no_effect=_DELIVERY
    )
    schedule_async_deliver_max_resend_num2_blocked: int = key(
        "scheduleAsyncDeliverMaxResendNum2Blocked", 3, low=0, spec="CFG-09", no_effect=_DELIVERY
    )
