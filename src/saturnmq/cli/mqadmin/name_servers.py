"""Commands on NameServers.

Requirements: C-21, C-22, C-46..C-49, OPS-05.
"""

from __future__ import annotations

from typing import Final

from saturnmq.cli.mqadmin.java_forms import text_order
from saturnmq.cli.mqadmin.options import NAME_SERVERS
from saturnmq.cli.mqadmin.output import Call
from saturnmq.cli.output import warn
from saturnmq.protocol.errors import SaturnError

WIPE_IS_VOLATILE: Final = (
    "warning: the NameServers forget this when broker {broker} changes a topic or group, and when they restart; "
    "for longer: saturnmq admin updateBrokerConfig -b ADDRESS -k brokerPermission -v 4"
)


# ---- configuration


async def get_namesrv_config(call: Call) -> None:
    """Print the keys and values of every NameServer."""
    configurations = await call.admin.name_servers.configuration()
    for address in text_order(configurations):
        call.out.line(f"============{address}============")
        for key, value in sorted(configurations[address].items()):
            call.out.line("%-50s=  %s" % (key, value), name_server=address, key=key, value=value)  # noqa: UP031


async def update_namesrv_config(call: Call) -> None:
    """Set a key on every NameServer."""
    key, value = call.options.text("k"), call.options.text("v")
    await call.admin.name_servers.update_configuration(key, value)
    addresses_text = call.options.text(NAME_SERVERS.key)
    servers = f"[{', '.join(addresses_text.split(';'))}]" if addresses_text else ""
    call.out.change_line(f"update name server config success!{servers}")
    call.out.change_line(f"{key} : {value}", key=key, value=value)


# ---- keys and values


async def update_kv_config(call: Call) -> None:
    """Set a key of a namespace on every NameServer."""
    namespace, key, value = (call.options.text(letter) for letter in "skv")
    await call.admin.name_servers.set_value(namespace, key, value)
    text = "create or update kv config to namespace success."
    call.out.change_line(text, namespace=namespace, key=key, value=value)


async def delete_kv_config(call: Call) -> None:
    """Delete a key of a namespace on every NameServer."""
    namespace, key = call.options.text("s"), call.options.text("k")
    await call.admin.name_servers.delete_value(namespace, key)
    call.out.change_line("delete kv config from namespace success.", namespace=namespace, key=key)


# ---- write permission


async def wipe_write_perm(call: Call) -> None:
    """Take the write permission of a broker in the routes of every NameServer."""
    broker = call.options.text("b")
    counts = await call.admin.name_servers.wipe_write_permission(broker)
    _print_counts(call, "wipe", broker, counts)
    if not call.out.dry_run and any(isinstance(count, int) for count in counts.values()):
        warn(WIPE_IS_VOLATILE.format(broker=broker))


async def add_write_perm(call: Call) -> None:
    """Give the write permission back."""
    broker = call.options.text("b")
    _print_counts(call, "add", broker, await call.admin.name_servers.add_write_permission(broker))


def _print_counts(call: Call, action: str, broker: str, counts: dict[str, int | SaturnError]) -> None:
    for address, count in counts.items():
        text = f"{action} write perm of broker[{broker}] in name server[{address}]"
        if isinstance(count, SaturnError):
            call.out.change_line(f"{text} Failed", name_server=address, broker_name=broker, topics=None)
            call.out.problem(f"{address}: {count.message}")
        else:
            call.out.change_line(f"{text} OK, {count}", name_server=address, broker_name=broker, topics=count)
