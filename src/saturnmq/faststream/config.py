"""The state that a broker shares with its subscribers and publishers, and the columns of its log."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from faststream._internal.configs import BrokerConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.exceptions import IncorrectState

from saturnmq.client.client import Client
from saturnmq.faststream.annotations import DRIVER_ANNOTATIONS
from saturnmq.faststream.producer import RocketProducer

if TYPE_CHECKING:
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.context import ContextRepo


@dataclass(kw_only=True)
class RocketConfig(BrokerConfig):
    """FastStream's options of a broker, and its client while it is connected."""

    producer: RocketProducer = field(default_factory=partial(RocketProducer, None, None))
    connection: Client | None = field(default=None, init=False, repr=False)
    default_driver_annotations: Any = field(default_factory=DRIVER_ANNOTATIONS.copy)

    @property
    def client(self) -> Client:
        """The started client. Raises IncorrectState while the broker is not connected."""
        if self.connection is None:
            raise IncorrectState("the broker is not connected: call `await broker.connect()` or `await broker.start()`")
        return self.connection


class RocketLogColumns(DefaultLoggerStorage):
    """The default logger: topic and group before each line."""

    __slots__ = ("_widths",)

    def __init__(self) -> None:
        super().__init__()
        self._widths = {"topic": 4, "group": 4}

    def register_subscriber(self, params: dict[str, Any]) -> None:
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        if (known_logger := self._get_logger_ref()) is not None:
            return known_logger
        columns = "".join(f"%({name})-{width}s | " for name, width in self._widths.items())
        logger = get_broker_logger(
            name="rocketmq",
            default_context={"topic": "", "group": ""},
            message_id_ln=32,
            fmt=f"%(asctime)s %(levelname)-8s - {columns}%(message_id)-32s - %(message)s",
            context=context,
            log_level=self.logger_log_level,
        )
        self._logger_ref.add(logger)
        return logger


make_rocket_logger = partial(make_logger_state, default_storage_cls=RocketLogColumns)
