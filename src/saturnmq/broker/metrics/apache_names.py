"""Names of the exporter of Apache RocketMQ, as it writes them, and the row of the runtime information that each has its value from.

Source: docs/spec/05 section 5. Requirements: EXP-02, INT-12.
"""

from __future__ import annotations

from typing import Final

RUNTIME_PREFIX: Final = "rocketmq_brokeruntime_"  # with one r
RUNTIME_LABELS: Final = ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")
BROKER_LABELS: Final = ("cluster", "brokerIP", "broker")
TOPIC_LABELS: Final = ("cluster", "broker", "topic")
GROUP_LABELS: Final = ("cluster", "broker", "group")
PAIR_LABELS: Final = ("cluster", "broker", "topic", "group")
DIFF_LABELS: Final = ("group", "topic", "countOfOnlineConsumers", "msgModel")
COUNT_LABELS: Final = ("caddr", "localaddr", "group")
CLIENT_LABELS: Final = ("clientAddr", "clientId", "group", "topic")

# Name without the prefix, key of the runtime information, explanation.
RUNTIME: Final = (
    ("put_latency_99", "putLatency99", "Time that 99 % of the puts of the last full minute did not exceed, ms."),
    ("put_latency_999", "putLatency999", "Time that 99.9 % of the puts of the last full minute did not exceed, ms."),
    ("msg_put_total_today_now", "msgPutTotalTodayNow", "Messages put since the start."),
    ("msg_gettotal_today_now", "msgGetTotalTodayNow", "Messages read since the start."),
    ("msg_puttotal_todaymorning", "msgPutTotalTodayMorning", "Messages put until the last midnight."),
    ("msg_gettotal_todaymorning", "msgGetTotalTodayMorning", "Messages read until the last midnight."),
    ("msg_puttotal_yesterdaymorning", "msgPutTotalYesterdayMorning", "Messages put until the midnight before."),
    ("msg_gettotal_yesterdaymorning", "msgGetTotalYesterdayMorning", "Messages read until the midnight before."),
    ("commitlog_maxoffset", "commitLogMaxOffset", "End of the commit log, bytes."),
    ("commitlog_minoffset", "commitLogMinOffset", "Begin of the commit log, bytes."),
    ("commitlog_disk_ratio", "commitLogDiskRatio", "Used share of the commit log's disk, 0 to 1."),
    ("consumequeue_disk_ratio", "consumeQueueDiskRatio", "Used share of the consume queues' disk, 0 to 1."),
    ("dispatch_behind_bytes", "dispatchBehindBytes", "Bytes of the log that consumers do not see yet."),
    ("dispatch_maxbuffer", "dispatchMaxBuffer", "Always 0."),
    ("put_message_size_total", "putMessageSizeTotal", "Bytes put since the start."),
    ("put_message_average_size", "putMessageAverageSize", "Bytes per message."),
    ("putmessage_times_total", "putMessageTimesTotal", "Messages put since the start, at least 1."),
    ("putmessage_entire_time_max", "putMessageEntireTimeMax", "Longest put since the start, ms."),
    ("getmessage_entire_time_max", "getMessageEntireTimeMax", "Longest read since the start, ms."),
    ("earliest_message_timestamp", "earliestMessageTimeStamp", "Store time of the oldest message, Unix ms."),
    ("start_accept_sendrequest_time", "startAcceptSendRequestTimeStamp", "Sends are accepted from this time on, Unix ms."),
    ("pagecache_lock_time_mills", "pageCacheLockTimeMills", "How long the put lock is held, ms."),
    ("remain_transientstore_buffer_numbs", "remainTransientStoreBufferNumbs", "Free buffers of the transient pool."),
    ("remain_howmanydata_toflush", "remainHowManyDataToFlush", "Bytes that are not flushed; of KiB and more the number only."),
    ("send_threadpool_queue_size", "sendThreadPoolQueueSize", "Sends that wait."),
    ("pull_threadpoolqueue_size", "pullThreadPoolQueueSize", "Pulls that wait."),
    ("query_threadpoolqueue_size", "queryThreadPoolQueueSize", "Queries that wait."),
    ("send_threadpoolqueue_capacity", "sendThreadPoolQueueCapacity", "Sends that may wait."),
    ("pull_threadpoolqueue_capacity", "pullThreadPoolQueueCapacity", "Pulls that may wait."),
    ("query_threadpool_queue_capacity", "queryThreadPoolQueueCapacity", "Queries that may wait."),
    ("send_threadpoolqueue_headwait_timemills", "sendThreadPoolQueueHeadWaitTimeMills", "How long a send waits, ms."),
    ("pull_threadpoolqueue_headwait_timemills", "pullThreadPoolQueueHeadWaitTimeMills", "How long a pull waits, ms."),
    ("query_threadpoolqueue_headwait_timemills", "queryThreadPoolQueueHeadWaitTimeMills", "How long a query waits, ms."),
)  # fmt: skip

# Name without the prefix and the window, key of the three rates.
RATES: Final = (
    ("getfound_tps", "getFoundTps"),
    ("getmiss_tps", "getMissTps"),
    ("gettotal_tps", "getTotalTps"),
    ("gettransfered_tps", "getTransferedTps"),
    ("put_tps", "putTps"),
)
WINDOWS_SECONDS: Final = (10, 60, 600)

# Name without pmdt_, class of putMessageDistributeTime.
PUT_TIMES: Final = (
    ("0ms", "<=0ms"), ("0to10ms", "0~10ms"), ("10to50ms", "10~50ms"), ("50to100ms", "50~100ms"), ("100to200ms", "100~200ms"),
    ("200to500ms", "200~500ms"), ("500to1s", "500ms~1s"), ("1to2s", "1~2s"), ("2to3s", "2~3s"), ("3to4s", "3~4s"),
    ("4to5s", "4~5s"), ("5to10s", "5~10s"), ("10stomore", "10s~"),
)  # fmt: skip

# Name, attribute of ConsumeStatus, explanation.
CLIENT: Final = (
    ("rocketmq_client_consume_fail_msg_count", "consume_failed_msgs", "Failed messages of the last hour."),
    ("rocketmq_client_consume_fail_msg_tps", "consume_failed_tps", "Failed messages per second."),
    ("rocketmq_client_consume_ok_msg_tps", "consume_ok_tps", "Consumed messages per second."),
    ("rocketmq_client_consume_rt", "consume_rt", "Time to consume a message, ms."),
    ("rocketmq_client_consumer_pull_rt", "pull_rt", "Time of a pull, ms."),
    ("rocketmq_client_consumer_pull_tps", "pull_tps", "Messages pulled per second."),
)
