"""The current role of a broker among those with the same name."""

from __future__ import annotations

from typing import Protocol


class BrokerRole(Protocol):
    """Whether this broker currently is a slave of another one."""

    @property
    def slave(self) -> bool: ...


class FixedRole:
    """Role of a broker without a group: it does not change."""

    __slots__ = ("slave",)

    def __init__(self, *, slave: bool = False) -> None:
        self.slave = slave
