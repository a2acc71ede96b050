"""Annotations by which a handler gets the message or the client as arguments, as in FastStream's other brokers."""

from __future__ import annotations

from typing import Annotated, Any, Final

from faststream import Context

from saturnmq.client.client import Client as ClientType
from saturnmq.faststream.messages import RocketBatchMessage as RocketBatchMessageType
from saturnmq.faststream.messages import RocketMessage as RocketMessageType

Client = Annotated[ClientType, Context("broker._connection")]
RocketBatchMessage = Annotated[RocketBatchMessageType, Context("message")]
RocketMessage = Annotated[RocketMessageType, Context("message")]

# What to use instead of each class: FastStream refuses a parameter that is annotated with the class itself.
DRIVER_ANNOTATIONS: Final[dict[Any, Any]] = {
    ClientType: Client,
    RocketBatchMessageType: RocketBatchMessage,
    RocketMessageType: RocketMessage,
}
