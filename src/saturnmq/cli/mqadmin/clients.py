"""Commands on connected clients.

Requirements: C-36, C-39, C-40.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from saturnmq.cli.mqadmin.java_forms import absent, text_order, version_name
from saturnmq.cli.mqadmin.output import Call, Shown
from saturnmq.cli.output import warn

_CLIENT: Final = "%-36s %-22s %-10s %s\n"
_SUBSCRIPTION: Final = "%-20s %s\n"


async def consumer_connection(call: Call) -> None:
    """Print clients and subscriptions of a consumer group."""
    connection = await call.admin.clients.consumers(call.options.text("g"), call.options.text("b") or None)
    for conflict in connection.conflicts or ():
        if conflict.kind == "client_id":
            warn(
                f"two connections use the client id {conflict.client_id}: {conflict.client_addr} and {conflict.other_addr}"
            )
        else:
            members = f"{conflict.client_id} ({conflict.client_addr}) and {conflict.other_id} ({conflict.other_addr})"
            warn(f"{members} subscribe to {', '.join(conflict.topics)} differently; messages may be lost")
    columns = [("#ClientId", "client_id"), ("#ClientAddr", "client_addr"), ("#Language", "language")]
    rows = [(c.client_id, c.client_addr, c.language, version_name(c.version)) for c in connection.connection_set]
    call.out.table(_CLIENT, [*columns, ("#Version", "version")], rows)
    subscriptions = [connection.subscription_table[topic] for topic in text_order(connection.subscription_table)]
    if call.out.as_json:
        listed = [
            {"topic": subscription.topic, "sub_expression": subscription.sub_string} for subscription in subscriptions
        ]
        call.out.summary(
            "", subscriptions=listed, conflicts=[asdict(conflict) for conflict in connection.conflicts or ()]
        )
    else:
        call.out.line()
        call.out.line("Below is subscription:")
        call.out.table(
            _SUBSCRIPTION,
            [("#Topic", "topic"), ("#SubExpression", "sub_expression")],
            [(subscription.topic, subscription.sub_string) for subscription in subscriptions],
        )
        call.out.line()
    call.out.summary(f"ConsumeType: {absent(connection.consume_type)}", consume_type=connection.consume_type)
    call.out.summary(f"MessageModel: {absent(connection.message_model)}", message_model=connection.message_model)
    call.out.summary(
        f"ConsumeFromWhere: {absent(connection.consume_from_where)}", consume_from_where=connection.consume_from_where
    )


async def producer_connection(call: Call) -> None:
    """Print the clients of a producer group."""
    connections = await call.admin.clients.producers(call.options.text("g"), call.options.text("t"))
    for number, connection in enumerate(connections, 1):
        version = version_name(connection.version)
        call.out.line(
            f"{number:04d}  {connection.client_id:<32} {connection.client_addr:<22} {connection.language:<8} {version}",
            client_id=connection.client_id,
            client_addr=connection.client_addr,
            language=connection.language,
            version=version,
        )


async def producer(call: Call) -> None:
    """Print all producers of a broker."""
    instances_by_group = await call.admin.clients.all_producers(call.options.text("b"))
    for group in text_order(instances_by_group):
        if not instances_by_group[group]:
            call.out.line(f"producer group ({group}) instances are empty")
        for instance in instances_by_group[group]:
            text = f"clientId={instance.client_id},remoteIP={instance.remote_ip}, "
            text += f"language={instance.language}, version={instance.version}"
            call.out.line(
                f"producer group ({group}) instance : {text}, lastUpdateTimestamp={instance.last_update_timestamp}",
                group=group,
                client_id=instance.client_id,
                remote_ip=instance.remote_ip,
                language=instance.language,
                version=Shown(str(instance.version), version_name(instance.version)),
                last_update_timestamp=instance.last_update_timestamp,
            )
