"""Settings of the store: paths, file sizes, flush and retention, under the keys of Apache RocketMQ.

Each field carries its Java key, default, unit, range and requirement ID.

Requirements: DG-11.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from saturnmq.config.settings import key
from saturnmq.config.unused import UnusedStoreKeys

CONSUME_QUEUE_UNIT_BYTES: Final = 20
QUEUE_EXTENSION_BYTES_MIN: Final = 64  # a unit with the default bit map, plus the spare bytes of a file


def delete_hours(text: str) -> frozenset[int]:
    """Hours of `deleteWhen`, for example "04" or "02;14" (DEL-02). Raises ValueError naming the bad hour."""
    hours = set()
    for hour in text.split(";"):
        if hour.strip():
            if not hour.strip().isdigit() or int(hour) > 23:
                raise ValueError(f"deleteWhen: {hour.strip()!r} is not an hour from 00 to 23")
            hours.add(int(hour))
    return frozenset(hours)


class FlushDiskType(Enum):
    """ASYNC_FLUSH: an acknowledged message survives a crash of the process. SYNC_FLUSH: it also survives power loss."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class StoreProfile(Enum):
    """STANDARD: the file sizes of Apache RocketMQ. SMALL: for laptops and tests."""

    STANDARD = "standard"
    SMALL = "small"


class StoreFailureAction(Enum):
    """Reaction of the broker to a failed disk: keep serving reads and reject writes, or exit with an error."""

    READONLY = "readonly"
    EXIT = "exit"


_RESERVE_BYTES: Final = {StoreProfile.STANDARD: 16 << 20, StoreProfile.SMALL: 1 << 20}
_QUEUE_EXTENSION_BYTES: Final = {StoreProfile.STANDARD: 50_331_648, StoreProfile.SMALL: 1_048_576}
_INDEX_SLOTS: Final = {StoreProfile.STANDARD: 5_000_000, StoreProfile.SMALL: 10_000}
_INDEX_ENTRIES: Final = {StoreProfile.STANDARD: 20_000_000, StoreProfile.SMALL: 40_000}
_COMMIT_LOG_BYTES: Final = {StoreProfile.STANDARD: 1_073_741_824, StoreProfile.SMALL: 16_777_216}
_CONSUME_QUEUE_BYTES: Final = {StoreProfile.STANDARD: 6_000_000, StoreProfile.SMALL: 120_000}


PATH_SPLITTER: Final = "rocketmq.broker.multiPathSplitter"  # a system property of Apache RocketMQ


def split_folders(text: str, splitter: str) -> tuple[Path, ...]:
    """The folders of a list."""
    return tuple(Path(part.strip()) for part in text.split(splitter) if part.strip())


@dataclass(frozen=True, slots=True)
class StoreSettings(UnusedStoreKeys):
    """Settings of one store. A size of 0 means the profile's default."""

    store_path_root_dir: str = key("storePathRootDir", "store", spec="DG-11")
    store_path_commit_log: str = key("storePathCommitLog", "", spec="DG-11")
    read_only_commit_log: str = key("readOnlyCommitLogStorePaths", "", spec="ST-20")
    path_splitter: str = key(PATH_SPLITTER, ",", spec="ST-20")
    store_path_consume_queue: str = key("storePathConsumeQueue", "", spec="DG-11")
    store_path_index: str = key("storePathIndex", "", spec="DG-11")
    store_checkpoint: str = key("storeCheckpoint", "", spec="DG-11")
    abort_file: str = key("abortFile", "", spec="DG-11")
    profile: StoreProfile = key("storeProfile", StoreProfile.STANDARD, spec="UX-02")
    commit_log_file_bytes: int = key(
        "mappedFileSizeCommitLog", 0, unit="bytes", low=0, high=2_147_483_647, spec="ST-01"
    )
    consume_queue_file_bytes: int = key(
        "mappedFileSizeConsumeQueue", 0, unit="bytes", low=0, high=2_147_483_640, spec="CQ-01"
    )
    flush_disk_type: FlushDiskType = key(
        "flushDiskType", FlushDiskType.ASYNC_FLUSH, spec="FLU-01", runtime=("SYNC_FLUSH",)
    )
    sync_flush_timeout_ms: int = key("syncFlushTimeout", 5000, unit="ms", low=1, spec="FLU-04", runtime=True)
    flush_interval_ms: int = key("flushIntervalCommitLog", 500, unit="ms", low=1, spec="FLU-06")
    flush_least_pages: int = key("flushCommitLogLeastPages", 4, low=0, spec="FLU-06")
    flush_thorough_ms: int = key("flushCommitLogThoroughInterval", 10_000, unit="ms", low=1, spec="FLU-06")
    flush_queue_interval_ms: int = key("flushIntervalConsumeQueue", 1000, unit="ms", low=1, spec="FLU-10")
    flush_queue_thorough_ms: int = key("flushConsumeQueueThoroughInterval", 60_000, unit="ms", low=1, spec="FLU-10")
    message_bytes_max: int = key(
        "maxMessageSize", 4_194_304, unit="bytes", low=10, high=2**31 - 1, spec="ST-06", runtime=True
    )
    page_cache_busy_ms: int = key("osPageCacheBusyTimeOutMills", 1000, unit="ms", low=1, spec="ST-04")
    check_crc_on_recover: bool = key("checkCRCOnRecover", True, spec="RC-07")
    memory_percent_max: int = key("accessMessageInMemoryMaxRatio", 40, unit="%", low=1, high=100, spec="BP-04")
    transfer_bytes_in_memory: int = key("maxTransferBytesOnMessageInMemory", 262_144, unit="bytes", low=1, spec="BP-04")
    transfer_count_in_memory: int = key("maxTransferCountOnMessageInMemory", 32, low=1, spec="BP-04", runtime=True)
    transfer_bytes_in_disk: int = key("maxTransferBytesOnMessageInDisk", 65_536, unit="bytes", low=1, spec="BP-04")
    transfer_count_in_disk: int = key("maxTransferCountOnMessageInDisk", 8, low=1, spec="BP-04")
    scrub_days: int = key("commitLogScrubDays", 7, unit="days", low=0, spec="DUR-08")
    check_crc_on_read: bool = key("checkCRCOnRead", False, spec="DUR-08")
    flush_queue_least_pages: int = key("flushConsumeQueueLeastPages", 2, low=1, spec="FLU-10")
    transient_pool_enable: bool = key("transientStorePoolEnable", False, spec="MF-11")
    transient_pool_size: int = key("transientStorePoolSize", 5, low=2, high=64, spec="MF-11")
    commit_interval_ms: int = key("commitIntervalCommitLog", 200, unit="ms", low=1, spec="FLU-07")
    delete_when: str = key("deleteWhen", "04", spec="DEL-02", runtime=True)
    file_reserved_hours: int = key("fileReservedTime", 72, unit="h", low=0, spec="DEL-03", runtime=True)
    clean_interval_ms: int = key("cleanResourceInterval", 10_000, unit="ms", low=10, spec="DEL-01")
    delete_pause_ms: int = key("deleteCommitLogFilesInterval", 100, unit="ms", low=0, spec="DEL-03")
    delete_queue_pause_ms: int = key("deleteConsumeQueueFilesInterval", 100, unit="ms", low=0, spec="DEL-09")
    disk_percent: int = key("diskMaxUsedSpaceRatio", 75, unit="%", low=0, high=100, spec="DEL-04", runtime=True)
    clean_forcibly: bool = key("cleanFileForciblyEnable", True, spec="DEL-04", runtime=True)
    message_index_enable: bool = key("messageIndexEnable", True, spec="IX-09")
    index_slots_max: int = key("maxHashSlotNum", 0, low=0, high=100_000_000, spec="IX-01")
    index_entries_max: int = key("maxIndexNum", 0, low=0, high=400_000_000, spec="IX-01")
    query_count_max: int = key("maxMsgsNumBatch", 64, low=1, spec="IX-06")
    unique_query_count_max: int = key("defaultQueryMaxNum", 32, low=1, spec="IX-03")
    queue_extension_enable: bool = key("enableConsumeQueueExt", False, spec="CQ-13")
    queue_extension_file_bytes: int = key(
        "mappedFileSizeConsumeQueueExt", 0, unit="bytes", low=0, high=2_147_483_647, spec="CQ-13"
    )
    message_delay_level: str = key(
        "messageDelayLevel", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", spec="ST-08"
    )
    store_failure_action: StoreFailureAction = key("storeFailureAction", StoreFailureAction.READONLY, spec="DUR-06")

    def validate(self) -> list[str]:
        """Return one sentence per problem."""
        if not self.path_splitter:
            return [f"{PATH_SPLITTER} must not be empty"]
        if not set(self.commit_log_dirs) - set(self.read_only_dirs):
            return [
                f"readOnlyCommitLogStorePaths={self.read_only_commit_log} names every folder of the commit log: add one that takes "
                "new files to storePathCommitLog"
            ]
        try:
            delete_hours(self.delete_when)
        except ValueError as error:
            return [str(error)]
        return []

    @property
    def sizes(self) -> dict[str, int]:
        """The keys whose value 0 stands for that of the profile, with the value that is used."""
        extension_bytes = self.queue_extension_file_bytes or _QUEUE_EXTENSION_BYTES[self.profile]
        return {
            "mappedFileSizeCommitLog": self.commit_log_bytes,
            "mappedFileSizeConsumeQueue": self.consume_queue_bytes,
            "mappedFileSizeConsumeQueueExt": extension_bytes,
            "maxHashSlotNum": self.index_slots,
            "maxIndexNum": self.index_entries,
        }

    @property
    def root(self) -> Path:
        return Path(self.store_path_root_dir)

    @property
    def commit_log_dirs(self) -> tuple[Path, ...]:
        """One folder, or several (ST-20)."""
        return split_folders(self.store_path_commit_log, self.path_splitter) or (self.root / "commitlog",)

    @property
    def read_only_dirs(self) -> tuple[Path, ...]:
        """Folders whose files belong to the commit log, but that get no new ones (ST-20)."""
        return split_folders(self.read_only_commit_log, self.path_splitter)

    @property
    def all_commit_log_dirs(self) -> tuple[Path, ...]:
        """All folders with files of the commit log, each once."""
        return tuple(dict.fromkeys([*self.commit_log_dirs, *self.read_only_dirs]))

    @property
    def index_dir(self) -> Path:
        return Path(self.store_path_index) if self.store_path_index else self.root / "index"

    @property
    def index_slots(self) -> int:
        return self.index_slots_max or _INDEX_SLOTS[self.profile]

    @property
    def index_entries(self) -> int:
        return self.index_entries_max or _INDEX_ENTRIES[self.profile]

    @property
    def reserve_bytes(self) -> int:
        """Size of the reserve file that is given up for state files when the disk is full (DUR-15)."""
        return _RESERVE_BYTES[self.profile]

    @property
    def pool_size(self) -> int:
        """Number of buffers in the transient pool; 0 if it is off. It takes effect with ASYNC_FLUSH only (MF-11)."""
        usable = self.transient_pool_enable and self.flush_disk_type is FlushDiskType.ASYNC_FLUSH
        return self.transient_pool_size if usable else 0

    @property
    def disk_percent_max(self) -> int:
        """Disk usage in percent above which expired files are deleted at any hour, clamped to 10..95 (DEL-04)."""
        return min(max(self.disk_percent, 10), 95)

    @property
    def consume_queue_dir(self) -> Path:
        return Path(self.store_path_consume_queue) if self.store_path_consume_queue else self.root / "consumequeue"

    @property
    def queue_extension(self) -> tuple[Path, int] | None:
        """Folder and file length in bytes of the consume queue extensions (CQ-13); None if they are off."""
        if not self.queue_extension_enable:
            return None
        size = self.queue_extension_file_bytes or _QUEUE_EXTENSION_BYTES[self.profile]
        return self.root / "consumequeue_ext", max(size, QUEUE_EXTENSION_BYTES_MIN)

    @property
    def checkpoint_path(self) -> Path:
        return Path(self.store_checkpoint) if self.store_checkpoint else self.root / "checkpoint"

    @property
    def abort_path(self) -> Path:
        return Path(self.abort_file) if self.abort_file else self.root / "abort"

    @property
    def config_dir(self) -> Path:
        return self.root / "config"

    @property
    def commit_log_bytes(self) -> int:
        """Length of a commit log file in bytes."""
        return self.commit_log_file_bytes or _COMMIT_LOG_BYTES[self.profile]

    @property
    def consume_queue_bytes(self) -> int:
        """Length of a consume queue file in bytes, rounded up to whole units (CQ-01)."""
        size = self.consume_queue_file_bytes or _CONSUME_QUEUE_BYTES[self.profile]
        return -(-size // CONSUME_QUEUE_UNIT_BYTES) * CONSUME_QUEUE_UNIT_BYTES
