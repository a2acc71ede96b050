"""`saturnmq console`: serves the pages, and collects the history that they show.

Requirements: CON-13, UX-12, UX-13, CLI-09.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import signal
from typing import TYPE_CHECKING, Final

from saturnmq.cli.output import EXIT_DONE, ready, warn
from saturnmq.protocol.errors import ConfigError

if TYPE_CHECKING:
    from saturnmq.console.notices import Send

NEEDED: Final = ("starlette", "jinja2", "multipart", "uvicorn")
USERS_FILE: Final = "users.json"
ALARMS_FILE: Final = "alarms.json"


def run_console(args: argparse.Namespace) -> int:
    """Serve the console until SIGTERM or SIGINT."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the console needs {', '.join(missing)}; pip install 'saturnmq[console]' installs it")
    if (args.certificate is None) != (args.certificate_key is None):
        raise ConfigError("--certificate and --certificate-key belong together")
    asyncio.run(_serve(args))
    return EXIT_DONE


def senders_of(args: argparse.Namespace) -> list[Send]:
    """How alarms are sent, by the options. Raises ConfigError."""
    from saturnmq.console.notices import mail, webhook

    senders = [webhook(args.webhook)] if args.webhook else []
    if args.mail_server or args.mail_to:
        if not (args.mail_server and args.mail_to):
            raise ConfigError("--mail-server and --mail-to belong together")
        senders.append(mail(args.mail_server, args.mail_from, args.mail_to))
    return senders


async def _serve(args: argparse.Namespace) -> None:
    from saturnmq.admin import Admin, read_access
    from saturnmq.admin.survey import Surveyor
    from saturnmq.console.alarms import Alarms, RulesFile
    from saturnmq.console.app import LOCAL_HOSTS, build
    from saturnmq.console.context import Services
    from saturnmq.console.serving import Server
    from saturnmq.console.state import ClusterState
    from saturnmq.console.users import FIRST_USER, Sessions, Users
    from saturnmq.history import Collector, History

    host, secure, folder = args.host or "127.0.0.1", args.certificate is not None, args.folder
    if not secure and not host.startswith("127.") and host not in ("localhost", "::1"):
        warn(f"warning: serving on {host} without --certificate; passwords cross the network in clear text")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    users = Users(folder / USERS_FILE)
    password = await asyncio.to_thread(users.create_first)
    users.find(FIRST_USER)  # a damaged file is an error now, not at the first login
    alarms = Alarms(RulesFile(folder / ALARMS_FILE), *senders_of(args))
    access = read_access(tools=args.tools_yml, config=args.config, signature=args.signature)
    hosts = (*LOCAL_HOSTS, *(name.strip() for name in args.hosts.split(",") if name.strip()))
    previewing = Admin(args.name_servers, access=access, dry_run=lambda change: None)
    async with Admin(args.name_servers, access=access) as admin, previewing as preview:
        with History(folder / "history.db") as history:
            state = ClusterState(Surveyor(admin.connection))
            services = Services(admin, preview, state, Sessions(users), history, folder / "audit.log", alarms=alarms)
            app = build(services, hosts=hosts, secure=secure)
            server = Server(app, host, args.port, certificate=args.certificate, key=args.certificate_key)
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, server.stop)

            def started(address: str) -> None:
                url = f"{'https' if secure else 'http'}://{address}/"
                if password is not None:
                    warn(f"first start: log in as {FIRST_USER} with password {password} (shown only now)")
                ready("console", {"url": url, "name_servers": args.name_servers}, args)

            await server.run(started, Collector(admin, history).run())
