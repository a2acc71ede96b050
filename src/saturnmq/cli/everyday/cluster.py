"""The client of one command: NameServers, credentials and certificates from its options and the environment.

Requirements: API-03, ACL-20, CLI-07, SEC-13.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

from saturnmq.client.client import Client
from saturnmq.client.connection.url import ENV_NAME_SERVERS, ENV_URL, from_environment
from saturnmq.protocol.errors import ConfigError

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
    if args.config or args.tools_yml or ("access_key" not in settings and environment.get("ROCKETMQ_HOME")):
        settings |= _from_files(args, known="access_key" in settings)
    return settings


def _from_files(args: argparse.Namespace, *, known: bool) -> dict[str, Any]:
    """Credentials of tools.yml and the tls.* keys of a node's file. known: credentials are configured already."""
    from saturnmq.admin.credentials import read_account, read_tls

    settings: dict[str, Any] = {}
    account = read_account(args.tools_yml) if args.tools_yml or not known else None
    if account is not None:
        settings = {"access_key": account[0], "secret_key": account[1]}
    if args.config:
        tls = read_tls(args.config)
        if tls.client_key_password:
            raise ConfigError(
                f"{args.config}: tls.client.keyPassword is not supported here; name a key without password"
            )
        settings |= {
            "tls": tls.enable,
            "tls_verify": tls.client_auth_server,
            "tls_ca": tls.client_trust_path or None,
            "tls_cert": tls.client_cert_path or None,
            "tls_key": tls.client_key_path or None,
        }
    return settings


def client_of(args: argparse.Namespace, **more: Any) -> Client:
    """A client that is not started. more: settings that override options and environment. Raises ConfigError."""
    return Client(**(settings_of(args) | more))


def run(main: Callable[[], Coroutine[Any, Any, int]], args: argparse.Namespace) -> int:
    """Run the coroutine of a command; Ctrl-C cancels it, and raises KeyboardInterrupt when it has ended."""
    if not args.debug:  # connections and routes are no news for the user of a command
        logging.getLogger("saturnmq").setLevel(logging.ERROR if args.quiet else logging.WARNING)
    return asyncio.run(main())
