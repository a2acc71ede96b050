"""Numeric codes and reserved names of the protocol: requests, responses, languages, versions, flag bits, topics, properties.

See docs/spec/00 sections 3.4, 4.4, 4.5, 5 and 6.
"""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag
from typing import Final

VERSION: Final = 407  # ordinal of release 4.9.7 (REM-31)
SIGNATURES: Final = ("v1", "v2")  # versions of the signature of requests, values of settings
VERSION_DESC: Final = "V4_9_7"  # name of that release in Java's MQVersion
VERSION_REGISTER_BODY: Final = 37  # from this version on, REGISTER_BROKER carries RegisterBrokerBody (NS-13)
VERSION_OFFSET_PUSH: Final = 28  # 3.0.7: from this version on, clients take the offsets of 220 and answer 221
VERSION_RELAY: Final = 62  # 3.1.8: from this version on, clients answer 307 and 309
VERSION_MAX_RECONSUME: Final = 121  # from this version on, the client's maxReconsumeTimes is honoured (SND-09)


def _version_names() -> tuple[str, ...]:
    """In the order of Java's MQVersion."""
    names = [f"V3_0_0_{name}" for name in ("SNAPSHOT", "ALPHA1", *(f"BETA{n}" for n in range(1, 6)))]
    names += [f"V3_0_0_BETA{n}{suffix}" for n in range(6, 10) for suffix in ("_SNAPSHOT", "")]
    names.append("V3_0_0_FINAL")
    releases = [(3, 0, n) for n in range(1, 16)]
    releases += [(3, minor, n) for minor in range(1, 10) for n in range(0 if minor < 3 else 1, 10)]
    releases += [(major, minor, n) for major in (4, 5) for minor in range(10) for n in range(10)]
    names += [f"V{a}_{b}_{c}{suffix}" for a, b, c in releases for suffix in ("_SNAPSHOT", "")]
    return (*names, "HIGHER_VERSION")


_VERSION_NAMES: Final = _version_names()


def version_name(ordinal: int) -> str:
    """The name of a client's or broker's version, such as V4_9_7 for 407."""
    return _VERSION_NAMES[min(max(ordinal, 0), len(_VERSION_NAMES) - 1)]


class Language(IntEnum):
    """Implementation language of a peer: its name in JSON headers, its number in binary headers (REM-32)."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12


class RequestCode(IntEnum):
    """Request codes of 4.9.7 (docs/spec/00 section 5), and those of 5.x that are served."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_BROKER_OFFSET = 13
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    GET_ALL_TOPIC_CONFIG = 21
    GET_TOPIC_CONFIG_LIST = 22
    GET_TOPIC_NAME_LIST = 23
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    TRIGGER_DELETE_FILES = 27
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    UPDATE_AND_CREATE_ACL_CONFIG = 50
    DELETE_ACL_CONFIG = 51
    GET_BROKER_CLUSTER_ACL_INFO = 52
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53
    GET_BROKER_CLUSTER_ACL_CONFIG = 54
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    SUSPEND_CONSUMER = 209
    RESUME_CONSUMER = 210
    RESET_CONSUMER_OFFSET_IN_CONSUMER = 211
    RESET_CONSUMER_OFFSET_IN_BROKER = 212
    ADJUST_CONSUMER_THREAD_POOL = 213
    WHO_CONSUME_THE_MESSAGE = 214
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    REGISTER_FILTER_SERVER = 301
    REGISTER_MESSAGE_FILTER_CLASS = 302
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    # of 5.x: its consoles and clients use them (CON-16)
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    LITE_PULL_MESSAGE = 361


def request_name(code: int) -> str:
    """The name of a request code; the number if it has none."""
    try:
        return RequestCode(code).name
    except ValueError:
        return str(code)


class ResponseCode(IntEnum):
    """Response codes of 4.9.7 (docs/spec/00 section 6)."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    UPDATE_AND_CREATE_ACL_CONFIG_FAILED = 209
    DELETE_ACL_CONFIG_FAILED = 210
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED = 211
    FLOW_CONTROL = 215
    # Client-side only, never on the wire.
    CONNECT_BROKER = 10001
    ACCESS_BROKER_TIMEOUT = 10002
    BROKER_NOT_EXIST = 10003
    NO_NAME_SERVER = 10004
    NOT_FOUND_TOPIC = 10005
    REQUEST_TIMEOUT = 10006
    CREATE_REPLY_MESSAGE = 10007


class CommandFlag(IntFlag):
    """Bits of a command's `flag` (REM-05, REM-06)."""

    RESPONSE = 1
    ONEWAY = 2


class Perm(IntFlag):
    """Permission bits of a topic or broker ("RW-" = 6, TBW102 = 7)."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


def perm_text(perm: int) -> str:
    """A permission as text, e.g. `RW-`."""
    return f"{'R' if perm & Perm.READ else '-'}{'W' if perm & Perm.WRITE else '-'}{'X' if perm & Perm.INHERIT else '-'}"


class SysFlag(IntFlag):
    """Bits of a message's sysFlag (docs/spec/00 section 4.4)."""

    COMPRESSED = 0x001
    MULTI_TAGS = 0x002
    PREPARED = 0x004
    COMMIT = 0x008
    ROLLBACK = 0x00C
    BORN_HOST_V6 = 0x010
    STORE_HOST_V6 = 0x020
    NEED_UNWRAP = 0x040
    INNER_BATCH = 0x080
    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


TRANSACTION_MASK: Final = 0x00C
ROLLED_BACK: Final = int(SysFlag.ROLLBACK)
NOT_IN_QUEUE: Final = (int(SysFlag.PREPARED), ROLLED_BACK)  # transaction states of records that no consumer sees
COMPRESSION_MASK: Final = 0x700


class PullSysFlag(IntFlag):
    """Bits of a pull request's sysFlag."""

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4
    CLASS_FILTER = 8
    LITE_PULL = 16


class TopicSysFlag(IntFlag):
    """Bits of a topic's sysFlag."""

    UNIT = 1
    UNIT_SUB = 2


class Confirmation(Enum):
    """What had confirmed a message when its broker answered SEND_OK.

    MEMORY: a buffer of the broker's process (`transientStorePoolEnable`). PAGE_CACHE: the kernel's cache of one machine. FSYNC:
    synced to the broker's disk. SLAVE: in the broker's page cache, acknowledged by a slave. FSYNC_AND_SLAVE: synced to the
    broker's disk, acknowledged by a slave. MAJORITY: in the page caches of a majority of a DLedger group. FSYNC_MAJORITY: synced
    by a majority of a DLedger group.

    Example:
        receipt = await out.send("orders", b"hello")
        if receipt.confirmation is Confirmation.PAGE_CACHE:
            print("lost if the broker's machine fails now")
    """

    MEMORY = "memory"
    PAGE_CACHE = "page_cache"
    FSYNC = "fsync"
    SLAVE = "slave"
    FSYNC_AND_SLAVE = "fsync_and_slave"
    MAJORITY = "majority"
    FSYNC_MAJORITY = "fsync_majority"

    @property
    def durable(self) -> bool:
        """Whether the message was on a disk or a second machine, and so survives the failure of the broker's machine."""
        return self not in (Confirmation.MEMORY, Confirmation.PAGE_CACHE)


# SaturnMQ extension in sends, with any value: the sender asks how its message is confirmed. In the answer: a Confirmation.
CONFIRMATION_FIELD: Final = "confirmation"

# Reserved topics, groups and prefixes.
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_FIELD: Final = (
    "timerMaxDelayMs"  # SaturnMQ extension in heartbeat responses: the broker accepts delays other than the levels
)
COMPLETE_FIELD: Final = "saturnmqComplete"  # SaturnMQ extension: a registration lists all topics of its broker
EXACT_DELAY_FIELD: Final = (
    "delayMs"  # SaturnMQ extension in request 36: overrides delayLevel if the broker announced TIMER_FIELD
)
TIMER_TOPIC: Final = "rmq_sys_SATURN_TIMER"  # SaturnMQ extension: messages waiting for their delivery time
TIMER_LIMIT_MS: Final = 40 * 86_400_000  # how far ahead a delivery time may be
TIMER_DONE_ROW: Final = "timerDoneMs"  # SaturnMQ extension of the runtime information, see TimerService.table
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT: Final = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
REPLY_TOPIC_SUFFIX: Final = "REPLY_TOPIC"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_TOPICS: Final = frozenset(  # of every broker; each has more, named after itself and its cluster
    {AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, BENCHMARK_TOPIC, HALF_TOPIC, TRACE_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC,
     SELF_TEST_TOPIC, OFFSET_MOVED_EVENT}
)  # fmt: skip
FORBIDDEN_SEND_TOPICS: Final = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, TIMER_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_EVENT}
)
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"
ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
MASTER_ID: Final = 0

NAME_LENGTH_MAX: Final = 127
GROUP_LENGTH_MAX: Final = 255


class PropertyKey:
    """Names of reserved message properties (docs/spec/00 section 4.5)."""

    KEYS: Final = "KEYS"
    TAGS: Final = "TAGS"
    WAIT: Final = "WAIT"
    DELAY: Final = "DELAY"
    RETRY_TOPIC: Final = "RETRY_TOPIC"
    REAL_TOPIC: Final = "REAL_TOPIC"
    REAL_QID: Final = "REAL_QID"
    TRAN_MSG: Final = "TRAN_MSG"
    PGROUP: Final = "PGROUP"
    MIN_OFFSET: Final = "MIN_OFFSET"
    MAX_OFFSET: Final = "MAX_OFFSET"
    BUYER_ID: Final = "BUYER_ID"
    ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
    TRANSFER_FLAG: Final = "TRANSFER_FLAG"
    CORRECTION_FLAG: Final = "CORRECTION_FLAG"
    MQ2_FLAG: Final = "MQ2_FLAG"
    RECONSUME_TIME: Final = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
    MSG_REGION: Final = "MSG_REGION"
    TRACE_ON: Final = "TRACE_ON"
    UNIQ_KEY: Final = "UNIQ_KEY"
    CONSUME_START_TIME: Final = "CONSUME_START_TIME"
    TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
    TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
    CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    INSTANCE_ID: Final = "INSTANCE_ID"
    CORRELATION_ID: Final = "CORRELATION_ID"
    REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
    TTL: Final = "TTL"
    MSG_TYPE: Final = "MSG_TYPE"
    ARRIVE_TIME: Final = "ARRIVE_TIME"
    PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
    CLUSTER: Final = "CLUSTER"
    INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
    INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
    START_DELIVER_TIME: Final = "__STARTDELIVERTIME"
    TRANSACTION_ID: Final = "__transactionId__"
    TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
    TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
    TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
    TIMER_OUT_MS: Final = "TIMER_OUT_MS"
    TIMER_WAKE_MS: Final = "TIMER_WAKE_MS"


# Property names that applications must not set (column R of docs/spec/00 section 4.5).
RESERVED_PROPERTIES: Final = frozenset(value for name, value in vars(PropertyKey).items() if name.isupper()) - {
    PropertyKey.TRAN_PREPARED_QUEUE_OFFSET,
    PropertyKey.TRANSACTION_CHECK_TIMES,
    PropertyKey.CHECK_IMMUNITY_TIME_IN_SECONDS,
    PropertyKey.INNER_MULTI_DISPATCH,
    PropertyKey.START_DELIVER_TIME,
    PropertyKey.TRANSACTION_ID,
}
