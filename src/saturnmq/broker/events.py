"""Events inside a broker: what one part reports to those that subscribed, on the event loop and in order of subscription."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class EventEmitter(Generic[T]):
    """One kind of event. A subscriber that raises an exception is a defect: it reaches the emitter."""

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: list[Callable[[T], object]] = []

    def subscribe(self, subscriber: Callable[[T], object]) -> None:
        """Call the subscriber with every later event."""
        self._subscribers.append(subscriber)

    def emit(self, value: T) -> None:
        """Call all subscribers now."""
        for subscriber in self._subscribers:
            subscriber(value)
