"""The client of one command: NameServers, credentials and certificates from its options and the environment.

Requirements: API-03, ACL-20, CLI-07, SEC-13.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections import ChainMap
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from saturnmq.cli.runtime import loop_factory
from saturnmq.client.connection.url import ENV_NAME_SERVERS, ENV_URL, from_environment

if TYPE_CHECKING:
    from saturnmq.admin.admin import Admin
    from saturnmq.admin.credentials import AdminAccess
    from saturnmq.client.client import Client

DEFAULT_NAME_SERVERS: Final = "127.0.0.1:9876"
ENV_ADDRESS_SERVER: Final = "SATURNMQ_ADDRESS_SERVER"
GROUP: Final = "saturnmq-cli"


async def name_cluster(args: argparse.Namespace) -> str:
    """The option or variable that names the cluster of a command, for a line of output.

    The list of an address server, which is asked only if nothing else is named, becomes the value of -n. Raises NoNameServer.
    """
    if args.name_servers:
        return "option -n"
    variables = (name for name in (ENV_URL, ENV_NAME_SERVERS, ENV_ADDRESS_SERVER) if os.environ.get(name, "").strip())
    if (variable := next(variables, None)) is None:
        return f"default, neither -n, {ENV_URL} nor {ENV_NAME_SERVERS} is set"
    if variable == ENV_ADDRESS_SERVER:
        from saturnmq.client.connection.address_server import fetch_addresses

        args.name_servers = ";".join(await fetch_addresses(os.environ[variable].strip(), None))
    return f"variable {variable}"


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Settings of a Client by name. Raises ConfigError.

    NameServers: -n, or else SATURNMQ_URL, NAMESRV_ADDR, 127.0.0.1:9876. With -n, credentials of SATURNMQ_URL are not used: they
    belong to another cluster. Keys of --tools-yml override those of the environment, which override those of ROCKETMQ_HOME.
    """
    return _settings_and_secret(args)[0]


def _settings_and_secret(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from saturnmq.admin.credentials import read_access

    address = args.name_servers
    if not address and not any(os.environ.get(name, "").strip() for name in (ENV_URL, ENV_NAME_SERVERS)):
        address = DEFAULT_NAME_SERVERS
    named = {ENV_URL: "", ENV_NAME_SERVERS: address} if address else {}
    settings = from_environment(ChainMap(named, os.environ))
    access = read_access(tools=args.tools_yml, config=args.config, signature=getattr(args, "signature", "v1"))
    of_files = access.access_settings
    if "access_key" in settings and not args.tools_yml:  # those of the environment
        of_files.pop("access_key", None)
        of_files.pop("secret_key", None)
    return settings | of_files, access.cluster_secret


def admin_of(args: argparse.Namespace, **more: Any) -> Admin:
    """Administration of the cluster, with the same access as `client_of`. more: keywords of Admin. Raises ConfigError."""
    from saturnmq.admin.admin import Admin

    name_servers, access = chosen_cluster(args)
    return Admin(name_servers, access=access, **more)


def chosen_cluster(args: argparse.Namespace) -> tuple[str, AdminAccess]:
    """NameServers and access for administration, chosen as by `settings_of`. Raises ConfigError."""
    from saturnmq.admin.credentials import AdminAccess
    from saturnmq.client.connection.url import make_settings

    values, secret = _settings_and_secret(args)
    settings = make_settings(values)
    return ";".join(settings.name_servers), AdminAccess(**settings.access_settings, cluster_secret=secret)


def client_of(args: argparse.Namespace, **more: Any) -> Client:
    """A client that is not started. more: settings that override options and environment. Raises ConfigError."""
    from saturnmq.client.client import Client

    return Client(**(settings_of(args) | more))


def run(main: Callable[[], Coroutine[Any, Any, int]], args: argparse.Namespace, *, fast: bool = False) -> int:
    """Run the coroutine of a command; Ctrl-C cancels it, and raises KeyboardInterrupt when it has ended.

    fast: on the event loop of the servers, which takes longer to import.
    """
    if not args.debug:  # connections and routes are no news for the user of a command
        logging.getLogger("saturnmq").setLevel(logging.ERROR if args.quiet else logging.WARNING)
    with asyncio.Runner(loop_factory=loop_factory() if fast else None) as runner:
        return runner.run(main())
