"""Commands on accounts. Secret keys are not printed.

Requirements: C-50..C-54, SEC-13.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from saturnmq.cli.mqadmin.java_forms import text_order
from saturnmq.cli.mqadmin.output import Call, Time
from saturnmq.config.settings import MASK
from saturnmq.protocol.bodies import PlainAccessConfig

_VERSION_COLUMNS: Final = (
    ("#Cluster Name", "cluster"),
    ("#Broker Name", "broker_name"),
    ("#Broker Addr", "broker_addr"),
    ("#AclFilePath", "file"),
    ("#AclConfigVersionNum", "version"),
    ("#AclLastUpdateTime", "updated"),
)
_VERSION_LAYOUT: Final = "%-16s  %-22s  %-22s  %-20s  %-22s  %-22s"


async def _all(call: Call) -> list[str]:
    """The broker of -b, or masters and slaves of -c."""
    if "b" in call.options:
        return [call.options.text("b")]
    return text_order(await call.admin.connection.masters_and_slaves(call.options.text("c")))


async def _masters(call: Call) -> list[str]:
    """The broker of -b, or the masters of -c."""
    if "b" in call.options:
        return [call.options.text("b")]
    return text_order((await call.admin.connection.masters(call.options.text("c"))).values())


async def update_account(call: Call) -> None:
    """Create or change an account on brokers."""
    options = call.options
    account = PlainAccessConfig(
        options.text("a"),
        options.text("s"),
        _optional_text(call, "w"),
        options.boolean("m", False),
        _optional_text(call, "i"),
        _optional_text(call, "u"),
        options.text("t").split(",") if "t" in options else None,
        options.text("g").split(",") if "g" in options else None,
    )
    for address in await _all(call):
        await call.admin.accounts.put(address, account)
        text = f"create or update plain access config to {address} success."
        call.out.change_line(text, address=address, access_key=account.access_key)
    shown = ", ".join(f"{name}={_text(value)}" for name, value in _fields(account, MASK).items())
    call.out.change_line(f"PlainAccessConfig [{shown}]", end="")


def _optional_text(call: Call, letter: str) -> str | None:
    return call.options.text(letter) if letter in call.options else None


async def delete_account(call: Call) -> None:
    """Delete an account from brokers."""
    key = call.options.text("a")
    for address in await _all(call):
        await call.admin.accounts.delete(address, key)
        text = f"delete plain access config account from {address} success."
        call.out.change_line(text, address=address, access_key=key)
    call.out.change_line(f"account's accesskey is:{key}", end="")


async def update_white_addresses(call: Call) -> None:
    """Replace the global white list of brokers."""
    addresses = call.options.text("g").split(",")
    for address in await _all(call):
        await call.admin.accounts.set_white_addresses(address, addresses, _optional_text(call, "p"))
        text = f"update global white remote addresses to {address} success."
        call.out.change_line(text, address=address, white_addresses=addresses)


async def versions(call: Call) -> None:
    """Print the versions of account files; with -b without headings, as mqadmin does."""
    of_cluster = "c" in call.options
    never = str(datetime.fromtimestamp(0))  # of a file that was not changed by requests
    versions_by_broker = [await call.admin.accounts.versions(address) for address in await _masters(call)]
    rows = [
        (
            broker.cluster,
            broker.broker_name,
            broker.address,
            path,
            file.counter,
            Time(file.timestamp, never, millis=False),
        )
        for broker in versions_by_broker
        for path, file in ((path, broker.files[path]) for path in text_order(broker.files))
    ]
    if of_cluster or call.out.as_json:
        call.out.table(_VERSION_LAYOUT, _VERSION_COLUMNS, rows)
    else:
        for row in rows:
            call.out.line(_VERSION_LAYOUT % row)
    call.out.line(f"get {'cluster' if of_cluster else 'broker'}'s plain access config version success.")


async def listing(call: Call) -> None:
    """Print accounts and the global white list of brokers."""
    out = call.out
    for address in await _masters(call):
        config = await call.admin.accounts.listing(address)
        white = config.global_white_addrs
        out.line()
        out.line(f"{'globalWhiteRemoteAddresses':<20}: {_text(white)}", address=address, global_white_addresses=white)
        out.line()
        out.line("accounts:")
        for account in config.plain_access_configs:
            secret = account.secret_key if "show-secrets" in call.options else MASK
            fields = _fields(account, secret)
            if out.as_json:
                out.line("", address=address, **{_snake(name): value for name, value in fields.items()})
                continue
            for name, value in fields.items():
                out.line(f"  {name:<18}: {_text(value)}")
            out.line()


def _fields(account: PlainAccessConfig, secret: str | None) -> dict[str, Any]:
    return {
        "accessKey": account.access_key,
        "secretKey": secret,
        "whiteRemoteAddress": account.white_remote_address,
        "admin": account.admin,
        "defaultTopicPerm": account.default_topic_perm,
        "defaultGroupPerm": account.default_group_perm,
        "topicPerms": account.topic_perms,
        "groupPerms": account.group_perms,
    }


def _text(value: Any) -> str:
    """A field as Java prints it; nothing for one that is absent."""
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
