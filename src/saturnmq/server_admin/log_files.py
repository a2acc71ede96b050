"""Log files of a server, with the names, sizes and line formats of Apache RocketMQ's logback_broker.xml.

Servers log to standard error; with `logDirectory` the same lines go to rotating files too, and the loggers that standard error does
not show (`saturnmq.stats`, `saturnmq.watermark`) to files of their own. Former files are `otherdays/stats.1.log` and so on, not
compressed, since that would hold the event loop. One server per directory: two would rotate each other's files.

Requirements: MON-08, MON-15, MON-16.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final, NamedTuple

from saturnmq.escaping import OneLine
from saturnmq.protocol.errors import ConfigError

MIB: Final = 1024 * 1024
FORMER: Final = "otherdays"
_REPORT_SECONDS: Final = 60.0
_GENERAL: Final = "%(asctime)s %(levelname)s %(name)s - %(message)s"


class RollingLogFile(NamedTuple):
    """One file: the logger whose lines it has, its limit, how many former files are kept, and the format of a line."""

    logger: str
    name: str
    bytes_max: int
    former: int
    format: str


FILES: Final = (
    RollingLogFile("", "broker.log", 128 * MIB, 20, _GENERAL),
    RollingLogFile("saturnmq.store", "store.log", 128 * MIB, 10, _GENERAL),
    RollingLogFile("saturnmq.stats", "stats.log", 100 * MIB, 5, "%(asctime)s %(levelname)s - %(message)s"),
    RollingLogFile("saturnmq.watermark", "watermark.log", 100 * MIB, 10, "%(asctime)s - %(message)s"),
    RollingLogFile("saturnmq.protection", "protection.log", 100 * MIB, 10, "%(asctime)s - %(message)s"),
)
_DEDICATED_LOGGERS: Final = tuple(file.logger for file in FILES if file.logger)


class RotatingFile(RotatingFileHandler):
    """A file that reports on standard error, once a minute, that it cannot be written; the server goes on."""

    def __init__(self, directory: Path, file: RollingLogFile) -> None:
        super().__init__(directory / file.name, maxBytes=file.bytes_max, backupCount=file.former, encoding="utf-8")
        self.setFormatter(OneLine(file.format, "%Y-%m-%d %H:%M:%S"))
        self._report_at = 0.0

    def rotation_filename(self, default_name: str) -> str:
        """`otherdays/stats.1.log` for `stats.log.1`."""
        path = Path(default_name)
        name, _, number = path.name.rpartition(".")
        return str(path.parent / FORMER / f"{name.removesuffix('.log')}.{number}.log")

    def handleError(self, record: logging.LogRecord) -> None:
        """Report the exception that a line raised."""
        now = time.monotonic()
        if now >= self._report_at and sys.stderr is not None:
            self._report_at = now + _REPORT_SECONDS
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"log file not written path={self.baseFilename} error={sys.exc_info()[1]}\n")


def _is_general(record: logging.LogRecord) -> bool:
    """Whether a line belongs to broker.log: it has no file of its own."""
    return not any(record.name == name or record.name.startswith(f"{name}.") for name in _DEDICATED_LOGGERS)


@contextlib.contextmanager
def log_files(directory: str) -> Iterator[None]:
    """Write all log lines to files in this directory, which is created; nothing if it is empty. Raises ConfigError.

    with log_files(settings.log_directory):
        serve()
    """
    handlers: list[tuple[logging.Logger, RotatingFile]] = []
    try:
        if directory:
            path = Path(directory).expanduser()
            try:
                (path / FORMER).mkdir(parents=True, exist_ok=True)
                for file in FILES:
                    handlers.append((logging.getLogger(file.logger), RotatingFile(path, file)))
            except (OSError, RuntimeError) as error:
                raise ConfigError(
                    f"logDirectory={directory!r} cannot be used: {error}; name a directory that this user may write"
                ) from error
        for logger, handler in handlers:
            if logger is logging.getLogger():
                handler.addFilter(_is_general)
            logger.addHandler(handler)
        yield
    finally:
        for logger, handler in handlers:
            logger.removeHandler(handler)
            handler.close()
