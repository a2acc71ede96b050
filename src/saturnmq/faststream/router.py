"""Routers: subscribers and publishers that a broker includes, under a prefix of their topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from saturnmq.faststream.config import RocketConfig
from saturnmq.faststream.registrator import RocketRegistrator

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.types import BrokerMiddleware, CustomCallable


class RocketPublisher(ArgsContainer):
    """The arguments of `broker.publisher`, for a RocketRoute."""


class RocketRoute(SubscriberRoute):
    """A handler, its publishers and the arguments of `broker.subscriber`, for a RocketRouter.

    Example:
        RocketRouter(handlers=[RocketRoute(bill, "orders", group="billing", publishers=[RocketPublisher("invoices")])])
    """


class RocketRouter(RocketRegistrator, BrokerRouter[Any, RocketConfig]):
    """Subscribers and publishers without a connection. prefix: before the names of their topics.

    Example:
        router = RocketRouter(prefix="shop-")

        @router.subscriber("orders", group="billing")  # topic shop-orders
        async def bill(order: Order) -> None: ...

        broker.include_router(router)
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RocketRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[RocketRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        super().__init__(
            handlers=handlers,
            config=RocketConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
            ),
            routers=routers,
        )
