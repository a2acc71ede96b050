"""The client of one command: NameServers, credentials and certificates from its options and the environment.

Requirements: API-03, ACL-20, CLI-07, SEC-13.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from saturnmq.cli.runtime import loop_factory
from saturnmq.client.connection.url import ENV_NAME_SERVERS, ENV_URL, from_environment

if TYPE_CHECKING:
    from saturnmq.admin.admin import Admin
    from saturnmq.admin.credentials import AdminAccess
    from saturnmq.client.client import Client
    from saturnmq.client.connection.url import ClientSettings

DEFAULT_NAME_SERVERS: Final = "127.0.0.1:9876"
GROUP: Final = "saturnmq-cli"


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Settings of a Client by name. Raises ConfigError.

    NameServers: -n, or else SATURNMQ_URL, NAMESRV_ADDR, 127.0.0.1:9876. With -n, credentials of SATURNMQ_URL are not used: they
    belong to another cluster.
    """
    environment = dict(os.environ)
    if args.name_servers:
        environment.pop(ENV_URL, None)
        environment[ENV_NAME_SERVERS] = args.name_servers
    elif not environment.get(ENV_URL) and not environment.get(ENV_NAME_SERVERS):
        environment[ENV_NAME_SERVERS] = DEFAULT_NAME_SERVERS
    settings = from_environment(environment)
    if args.config or args.tools_yml or environment.get("ROCKETMQ_HOME"):
        from saturnmq.admin.credentials import read_access

        access_settings = read_access(tools=args.tools_yml, config=args.config).client_settings()
        if "access_key" in settings and not args.tools_yml:  # those of the environment
            access_settings = {name: value for name, value in access_settings.items() if name.startswith("tls")}
        settings |= access_settings
    return settings


def admin_of(args: argparse.Namespace, *, timeout_ms: int) -> Admin:
    """Administration of the cluster, with the same access as `client_of`. Raises ConfigError."""
    from saturnmq.admin.admin import Admin
    from saturnmq.client.connection.url import make_settings

    settings = make_settings(settings_of(args))
    return Admin(settings.name_servers, access=access_of(settings), timeout_ms=timeout_ms)


def chosen_cluster(args: argparse.Namespace) -> tuple[str, AdminAccess]:
    """NameServers and access of a command that serves or collects, chosen as by `settings_of`. Raises ConfigError."""
    from saturnmq.admin.credentials import read_access
    from saturnmq.client.connection.url import make_settings

    settings = settings_of(args)
    if args.signature != "v1":
        settings["signature"] = args.signature
    client_settings = make_settings(settings)
    secret = read_access(tools=args.tools_yml, config=args.config).cluster_secret
    return ";".join(client_settings.name_servers), replace(access_of(client_settings), cluster_secret=secret)


def access_of(client_settings: ClientSettings) -> AdminAccess:
    """Credentials and certificates of a client's settings, for administration."""
    from saturnmq.admin.credentials import AdminAccess
    from saturnmq.net import TlsSettings
    from saturnmq.net.signer import Signer

    tls = TlsSettings(
        enable=client_settings.tls,
        client_auth_server=client_settings.tls_verify,
        client_trust_path=client_settings.tls_ca or "",
        client_cert_path=client_settings.tls_cert or "",
        client_key_path=client_settings.tls_key or "",
    )
    signer = None
    if client_settings.access_key and client_settings.secret_key:
        signer = Signer(
            client_settings.access_key,
            client_settings.secret_key,
            client_settings.security_token or "",
            client_settings.signature,
        )
    return AdminAccess(tls, signer)


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
