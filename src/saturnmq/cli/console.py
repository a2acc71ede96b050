"""`saturnmq console` and `saturnmq standalone --console`: serves the pages, and collects the history that they show.

Requirements: CON-13, UX-12, UX-13, CLI-09.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import importlib.util
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from saturnmq.cli.cluster import chosen_cluster
from saturnmq.cli.output import EXIT_DONE, emit, ready, show_rows, warn, write
from saturnmq.extras import install_command
from saturnmq.protocol.errors import ConfigError

if TYPE_CHECKING:
    from saturnmq.admin import AdminAccess
    from saturnmq.admin.mail import Mailer
    from saturnmq.console.alarms import Send
    from saturnmq.history import History

NEEDED: Final = ("starlette", "jinja2", "multipart", "uvicorn")
USERS_FILE: Final = "users.json"
ALARMS_FILE: Final = "alarms.json"
SCHEMAS_FOLDER: Final = "schemas"
_MAIL_OPTIONS: Final = ("--mail-tls", "--mail-ca", "--mail-skip-verify", "--mail-user", "--mail-password-file")


@dataclass(frozen=True)
class ConsoleOptions:
    """Options under which a console is served. hosts: names under which browsers ask for it, beside those of loopback."""

    name_servers: str
    folder: Path
    host: str
    port: int
    access: AdminAccess | None = None
    hosts: tuple[str, ...] = ()
    certificate: Path | None = None
    certificate_key: Path | None = None
    senders: tuple[Send, ...] = ()


def require_packages() -> None:
    """Raise ConfigError naming the packages of the console that are not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        refusal = ConfigError(f"the console needs the packages {', '.join(missing)}, which are not installed")
        refusal.hint = f"Install them: {install_command('console')}"
        raise refusal


def run_user_add(args: argparse.Namespace) -> int:
    """Add a user of the console, or change role and password of one."""
    from saturnmq.console.users import Users

    is_new = Users(args.folder / USERS_FILE).put(args.user, args.role, _password(args))
    write(f"user {args.user} {'added' if is_new else 'changed'} role={args.role}")
    return EXIT_DONE


def run_user_remove(args: argparse.Namespace) -> int:
    """Remove a user of the console."""
    from saturnmq.console.users import Users

    Users(args.folder / USERS_FILE).remove(args.user)
    write(f"user {args.user} removed")
    return EXIT_DONE


def run_user_list(args: argparse.Namespace) -> int:
    """List the users of the console with their roles."""
    from saturnmq.console.users import Users

    rows = [{"user": user.name, "role": user.role} for user in Users(args.folder / USERS_FILE).listing()]
    if args.json:
        emit(args.command.name, rows)
    elif rows:
        show_rows(rows)
    else:
        write(f"no users in {args.folder / USERS_FILE}")
    return EXIT_DONE


def _password(args: argparse.Namespace) -> str:
    """The password: the first line of standard input, or typed twice. Raises ConfigError."""
    if args.password_stdin:
        return sys.stdin.readline().rstrip("\n")
    if not sys.stdin.isatty():
        raise ConfigError("standard input is no terminal: give the password there with --password-stdin")
    password = getpass.getpass(f"password of {args.user}: ")
    if getpass.getpass("again: ") != password:
        raise ConfigError("the two passwords differ")
    return password


def run_console(args: argparse.Namespace) -> int:
    """Serve the console until SIGTERM or SIGINT."""
    require_packages()
    if (args.certificate is None) != (args.certificate_key is None):
        raise ConfigError("--certificate and --certificate-key belong together")
    name_servers, access = chosen_cluster(args)
    options = ConsoleOptions(
        name_servers=name_servers,
        folder=args.folder,
        host=args.host or "127.0.0.1",
        port=args.port,
        access=access,
        hosts=tuple(name.strip() for name in args.hosts.split(",") if name.strip()),
        certificate=args.certificate,
        certificate_key=args.certificate_key,
        senders=tuple(senders_of(args)),
    )

    async def main() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve(options, stop, lambda url: ready("console", {"url": url, "name_servers": name_servers}, args))

    asyncio.run(main())
    return EXIT_DONE


def senders_of(args: argparse.Namespace) -> list[Send]:
    """The senders of alarms, by the options. Raises ConfigError."""
    from saturnmq.console.alarms import webhook

    mailer = mailer_of(args)
    return [*([webhook(args.webhook)] if args.webhook else []), *([mailer.send] if mailer is not None else [])]


def mailer_of(args: argparse.Namespace) -> Mailer | None:
    """The mailer of alarms, by the `--mail` options; None without them. Raises ConfigError."""
    from saturnmq.admin.mail import NO_TLS, MailAccess, Mailer, read_password

    if not (args.mail_server or args.mail_to):
        alone = [name for name in _MAIL_OPTIONS if getattr(args, name.removeprefix("--").replace("-", "_"))]
        if alone:
            raise ConfigError(f"{', '.join(alone)} without effect: no --mail-server and --mail-to")
        return None
    if not (args.mail_server and args.mail_to):
        raise ConfigError("--mail-server and --mail-to belong together")
    if args.mail_password_file is not None and not args.mail_user:
        raise ConfigError(f"--mail-password-file {args.mail_password_file} needs --mail-user NAME")
    password = read_password(args.mail_password_file) if args.mail_user else ""
    access = MailAccess(args.mail_tls, args.mail_ca, not args.mail_skip_verify, args.mail_user, password)
    mailer = Mailer(args.mail_server, args.mail_from, args.mail_to, access=access)
    if mailer.tls == NO_TLS and not mailer.is_local_server:
        warn(f"warning: --mail-tls none: e-mails to {mailer.server} cross the network in clear text")
    if mailer.tls != NO_TLS and args.mail_skip_verify:
        warn(f"warning: --mail-skip-verify: any server may pose as {mailer.server} and gets e-mails and password")
    return mailer


async def serve(options: ConsoleOptions, stop: asyncio.Event, started: Callable[[str], None]) -> None:
    """Serve a console until `stop` is set. started: called with its address. Raises ConfigError for a port in use."""
    from saturnmq.admin import Admin
    from saturnmq.admin.survey import Surveyor
    from saturnmq.console.alarms import Alarms, RulesFile
    from saturnmq.console.app import LOCAL_HOSTS, build
    from saturnmq.console.bodies import Schemas
    from saturnmq.console.context import Services
    from saturnmq.console.serving import Server
    from saturnmq.console.state import ClusterState
    from saturnmq.console.users import FIRST_USER, Sessions, Users
    from saturnmq.history import Collector, History
    from saturnmq.tasks import cancel

    host, secure, folder = options.host, options.certificate is not None, options.folder
    if not secure and not host.startswith("127.") and host not in ("localhost", "::1"):
        warn(f"warning: serving on {host} without --certificate; passwords cross the network in clear text")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    users = Users(folder / USERS_FILE)
    password = await asyncio.to_thread(users.create_first)
    users.find(FIRST_USER)  # a damaged file is an error now, not at the first login
    rules = RulesFile(folder / ALARMS_FILE)
    previewing = Admin(options.name_servers, access=options.access, dry_run=lambda change: None)
    async with Admin(options.name_servers, access=options.access) as admin, previewing as preview:
        with History(folder / "history.db") as history:
            alarms = Alarms(rules, *options.senders, counted=partial(count_alarms, history))
            state = ClusterState(Surveyor(admin.connection))
            services = Services(
                admin, preview, state, Sessions(users), history, folder / "audit.log", alarms=alarms,
                schemas=Schemas(folder / SCHEMAS_FOLDER),
            )  # fmt: skip
            app = build(services, hosts=(*LOCAL_HOSTS, *options.hosts), secure=secure)
            server = Server(app, host, options.port, certificate=options.certificate, key=options.certificate_key)

            def listening(address: str) -> None:
                if password is not None:
                    warn(f"first start: log in as {FIRST_USER} with password {password} (shown only now)")
                started(f"{'https' if secure else 'http'}://{address}/")

            async def stopping() -> None:
                await stop.wait()
                server.stop()

            ending = asyncio.ensure_future(stopping())
            try:
                await server.run(listening, Collector(admin, history).run())
            finally:
                await cancel(ending)


def count_alarms(history: History, at: int, count: int) -> None:
    """Keep how many alarms hold, for the chart of the overview."""
    from saturnmq.history.file import Sample, Series

    history.record(at, [Sample(Series("alarms", ""), 0, count)])
