"""Commands on connected clients.

Requirements: C-36, C-39, C-40.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from saturnmq.cli.mqadmin.call import Call
from saturnmq.cli.mqadmin.java_forms import text_order
from saturnmq.cli.mqadmin.java_text import absent, version_name
from saturnmq.cli.mqadmin.output import Shown
from saturnmq.cli.output import warn

_CLIENT: Final = "%-36s %-22s %-10s %s\n"
_SUBSCRIPTION: Final = "%-20s %s\n"


async def consumer_connection(call: Call) -> None:
    """Print clients and subscriptions of a consumer group."""
    found = await call.admin.clients.consumers(call.options.text("g"), call.options.text("b") or None)
    for one in found.conflicts or ():
        if one.kind == "client_id":
            warn(f"two connections use the client id {one.client_id}: {one.client_addr} and {one.other_addr}")
        else:
            members = f"{one.client_id} ({one.client_addr}) and {one.other_id} ({one.other_addr})"
            warn(f"{members} subscribe to {', '.join(one.topics)} differently; messages may be lost")
    columns = [("#ClientId", "client_id"), ("#ClientAddr", "client_addr"), ("#Language", "language")]
    rows = [(c.client_id, c.client_addr, c.language, version_name(c.version)) for c in found.connection_set]
    call.out.table(_CLIENT, [*columns, ("#Version", "version")], rows)
    subscriptions = [found.subscription_table[topic] for topic in text_order(found.subscription_table)]
    if call.out.as_json:
        listed = [{"topic": one.topic, "sub_expression": one.sub_string} for one in subscriptions]
        call.out.summary("", subscriptions=listed, conflicts=[asdict(one) for one in found.conflicts or ()])
    else:
        call.out.line()
        call.out.line("Below is subscription:")
        call.out.table(
            _SUBSCRIPTION,
            [("#Topic", "topic"), ("#SubExpression", "sub_expression")],
            [(one.topic, one.sub_string) for one in subscriptions],
        )
        call.out.line()
    call.out.summary(f"ConsumeType: {absent(found.consume_type)}", consume_type=found.consume_type)
    call.out.summary(f"MessageModel: {absent(found.message_model)}", message_model=found.message_model)
    call.out.summary(
        f"ConsumeFromWhere: {absent(found.consume_from_where)}", consume_from_where=found.consume_from_where
    )


async def producer_connection(call: Call) -> None:
    """Print the clients of a producer group."""
    found = await call.admin.clients.producers(call.options.text("g"), call.options.text("t"))
    for number, one in enumerate(found, 1):
        version = version_name(one.version)
        call.out.line(
            f"{number:04d}  {one.client_id:<32} {one.client_addr:<22} {one.language:<8} {version}",
            client_id=one.client_id,
            client_addr=one.client_addr,
            language=one.language,
            version=version,
        )


async def producer(call: Call) -> None:
    """Print all producers of a broker."""
    found = await call.admin.clients.all_producers(call.options.text("b"))
    for group in text_order(found):
        if not found[group]:
            call.out.line(f"producer group ({group}) instances are empty")
        for one in found[group]:
            text = f"clientId={one.client_id},remoteIP={one.remote_ip}, language={one.language}, version={one.version}"
            call.out.line(
                f"producer group ({group}) instance : {text}, lastUpdateTimestamp={one.last_update_timestamp}",
                group=group,
                client_id=one.client_id,
                remote_ip=one.remote_ip,
                language=one.language,
                version=Shown(str(one.version), version_name(one.version)),
                last_update_timestamp=one.last_update_timestamp,
            )
