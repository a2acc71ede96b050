"""The `saturnmq` command line: parses options, builds settings, starts the servers or tools, and returns an exit code.

stdout carries results, stderr everything else. Exit codes: 0 success, 1 failure, 2 invalid options, 3 a check found problems,
4 server not reachable, 130 interrupted.

Requirements: CLI-01..CLI-11, DG-09, UX-12.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import saturnmq
from saturnmq import admin
from saturnmq.cli_output import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    Parser,
    complain,
    emit_rows,
    fail,
    ready,
)
from saturnmq.config.settings import Loaded, keys_of, load, parse_properties, to_properties
from saturnmq.protocol.codes import VERSION
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.protocol.frames.command import own_serialization

if TYPE_CHECKING:
    import asyncio  # imported where it is used: --help starts in half the time without it (CLI-01)

    from saturnmq.broker import Broker
    from saturnmq.namesrv import NameServer

PORT_MAX: Final = 65535

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verb:
    """One row of the command table, from which parser, help and documentation are derived (CLI-01)."""

    name: str
    summary: str
    example: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


# ---- settings ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Configured:
    """All settings of a process, with the origin of every value."""

    parts: dict[str, Loaded[Any]]
    unknown: dict[str, str]

    def part(self, name: str) -> Any:
        return self.parts[name].settings


def configure(classes: dict[str, type[Any]], args: argparse.Namespace, preset: dict[str, str]) -> Configured:
    """Build the settings of all packages from presets, the file of -c, options and --set; later sources override earlier ones.

    Members of a DLedger group flush synchronously and exit on a disk failure unless configured otherwise (DUR-02, DUR-06).
    Unknown keys cause a warning with the closest known key, or an error under --strict-config (CLI-10).
    Raises ConfigError with all problems.
    """
    sources = [("command line default", preset)]
    if args.config:
        sources.append((str(args.config), read_properties(args.config)))
    sources.append(("option", given_options(args)))
    sources.append(("--set", dict(pair(text) for text in args.set)))
    of_a_group = [source["enableDLegerCommitLog"] for _, source in sources if "enableDLegerCommitLog" in source]
    if "store" in classes and of_a_group and of_a_group[-1].strip().lower() == "true":
        member = {"flushDiskType": "SYNC_FLUSH", "storeFailureAction": "exit"}
        sources[0] = ("default of a group's member", member | preset)
    problems: list[str] = []
    parts: dict[str, Loaded[Any]] = {}
    known: dict[str, str] = {}
    for name, cls in classes.items():
        known.update(dict.fromkeys(keys_of(cls), name))
        try:
            parts[name] = load(cls, *sources)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    unknown = {k: v for _, source in sources for k, v in source.items() if k not in known}
    hints = Loaded(None, {}, unknown).unknown_hints(known)
    if hints and args.strict_config:
        raise ConfigError(hints)
    for hint in hints:
        complain(f"warning: {hint}; it is ignored")
    return Configured(parts, unknown)


def read_properties(path: Path) -> dict[str, str]:
    """Keys and values of a properties file. Raises ConfigError naming the file."""
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path}: {getattr(error, 'strerror', None) or error}") from error


def pair(text: str) -> tuple[str, str]:
    """Parse the `key=value` of --set. Raises ConfigError."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--set {text!r} must be key=value")
    return name.strip(), value.strip()


def given_options(args: argparse.Namespace) -> dict[str, str]:
    """Java keys and values of the options that were given."""
    table = {
        "name_servers": "namesrvAddr",
        "data": "storePathRootDir",
        "port": "listenPort",
        "host": "bindAddress",
        "profile": "storeProfile",
    }
    return {java: str(value) for name, java in table.items() if (value := getattr(args, name, None)) is not None}


def print_config(configured: Configured, as_json: bool) -> int:
    """Print every setting with value and origin, secrets masked (CLI-10)."""
    rows = []
    for loaded in configured.parts.values():
        for name, value in to_properties(loaded.settings).items():
            rows.append({"key": name, "value": value, "origin": loaded.origins.get(name, "default")})
    rows.sort(key=lambda row: row["key"])
    if as_json:
        emit_rows("print-config", rows)
    else:
        for row in rows:
            print(f"{row['key']}={row['value']}  # {row['origin']}")
    return EXIT_DONE


# ---- servers -------------------------------------------------------------------------------------------------------


def loop_name() -> str:
    return "uvloop" if _uvloop() is not None else "asyncio"


def _uvloop() -> Any:
    if os.environ.get("SATURNMQ_LOOP") == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop


def twin_name() -> str:
    """Name of the hot-path implementation that runs; there is only the pure-Python one so far.

    Raises ConfigError when SATURNMQ_PURE=0 demands the compiled implementation (PKG-02).
    """
    if os.environ.get("SATURNMQ_PURE") == "0":
        raise ConfigError(
            "SATURNMQ_PURE=0 demands the compiled hot path, and this build has none; unset it or set it to 1"
        )
    return "python"


def serve(main: Callable[[asyncio.Event], Any]) -> int:
    """Run a server until SIGTERM or SIGINT, then let it stop; its stop steps bound the time that takes."""
    import asyncio

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await main(stop)

    uvloop = _uvloop()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner:
        runner.run(run())
    return EXIT_DONE


def warn_if_public(host: str) -> None:
    """Warn about a non-loopback address without access control (UX-12)."""
    if not host.startswith("127.") and host not in ("localhost", "::1"):
        complain(f"warning: listening on {host} without access control; anybody who reaches it can read and write")


def run_namesrv(args: argparse.Namespace) -> int:
    from saturnmq.namesrv import NameServer
    from saturnmq.namesrv.settings import NameServerSettings, stored_in
    from saturnmq.net import NetSettings, TlsSettings

    classes = {"namesrv": NameServerSettings, "net": NetSettings, "tls": TlsSettings}
    configured = configure(classes, args, {})
    if args.config:
        configured.parts["namesrv"] = stored_in(configured.parts["namesrv"], str(args.config))
    if args.print_config:
        return print_config(configured, args.json)
    settings: NameServerSettings = configured.part("namesrv")
    warn_if_public(settings.bind_address)

    async def main(stop: asyncio.Event) -> None:
        server: NameServer = NameServer(
            settings, configured.part("net"), tls=configured.part("tls"), unknown_keys=configured.unknown
        )
        host, port = await server.start(settings.bind_address, settings.listen_port)
        try:
            if not args.json:
                print(f"The Name Server boot success. serializeType={own_serialization(os.environ).name}", flush=True)
            ready("namesrv", {"namesrv": f"{host}:{port}", "twin": twin_name(), "loop": loop_name()}, args)
            await stop.wait()
        finally:
            await server.stop()

    return serve(main)


async def stopped_or_failed(stop: asyncio.Event, broker: Broker) -> None:
    """Wait for a stop signal, or for a disk failure if storeFailureAction is exit (DUR-06), which is raised."""
    import asyncio

    waits = [asyncio.ensure_future(event.wait()) for event in (stop, broker.failed)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    if broker.failed.is_set() and broker.store.failure is not None:
        raise broker.store.failure


def broker_facts(broker: Broker, store: Any) -> dict[str, str]:
    return {
        "broker": broker.address,
        "advertised": broker.advertised_address,
        "store": store.store_path_root_dir,
        "durability": store.flush_disk_type.name,
        "twin": twin_name(),
        "loop": loop_name(),
    }


def boot_line(broker: Broker, name_servers: str) -> str:
    """The line printed after startup, as Apache's broker prints it (DG-09)."""
    return (
        f"The broker[{broker.name}, {broker.advertised_address}] boot success. serializeType={own_serialization(os.environ).name} "
        f"and name server is {name_servers}"
    )


def broker_classes() -> dict[str, type[Any]]:
    from saturnmq.broker.settings import BrokerSettings
    from saturnmq.net import NetSettings, TlsSettings
    from saturnmq.raft.settings import RaftSettings
    from saturnmq.store.settings import StoreSettings

    return {
        "broker": BrokerSettings,
        "store": StoreSettings,
        "raft": RaftSettings,
        "net": NetSettings,
        "tls": TlsSettings,
    }


def broker_tls(configured: Configured) -> Any:
    """The `tls.*` keys; by default a broker that enforces TLS also uses it towards its NameServers (REM-29)."""
    from saturnmq.net import TlsMode

    loaded = configured.parts["tls"]
    if "tls.enable" not in loaded.origins and loaded.settings.server_mode is TlsMode.ENFORCING:
        return dataclasses.replace(loaded.settings, enable=True)
    return loaded.settings


async def came_up(start: Coroutine[Any, Any, object], stop: asyncio.Event) -> bool:
    """Whether a server started before a stop was requested. A start in progress is then cancelled, and cleans up after itself."""
    import asyncio

    starting, stopping = asyncio.ensure_future(start), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
    if starting.cancelled():
        return False
    starting.result()
    return True


def run_broker(args: argparse.Namespace) -> int:
    from saturnmq.broker import Broker

    configured = configure(broker_classes(), args, {})
    if args.print_config:
        return print_config(configured, args.json)
    warn_if_public(configured.part("broker").bind_address)

    async def main(stop: asyncio.Event) -> None:
        broker: Broker = Broker(
            configured.part("broker"),
            configured.part("store"),
            configured.part("net"),
            tls=broker_tls(configured),
            raft=configured.part("raft"),
        )
        if not await came_up(broker.start(), stop):
            return
        try:
            name_servers = configured.part("broker").namesrv_addr
            if not args.json:
                print(boot_line(broker, name_servers), flush=True)
            facts = broker_facts(broker, configured.part("store")) | {"namesrv": name_servers or "none"}
            ready("broker", facts, args)
            await stopped_or_failed(stop, broker)
        finally:
            await broker.stop()

    return serve(main)


# A development profile: small files, and SQL filters enabled, which both Apache's broker and SaturnMQ disable by default.
STANDALONE_PRESET: Final = {"storeProfile": "small", "enablePropertyFilter": "true"}


def run_standalone(args: argparse.Namespace) -> int:
    from saturnmq.broker import Broker
    from saturnmq.namesrv import NameServer
    from saturnmq.namesrv.settings import NameServerSettings

    started = time.monotonic()
    configured = configure(broker_classes(), args, STANDALONE_PRESET)
    if args.print_config:
        return print_config(configured, args.json)
    settings, store, net = (configured.part(name) for name in ("broker", "store", "net"))
    warn_if_public(settings.bind_address)
    namesrv_settings = NameServerSettings(
        listen_port=args.namesrv_port, kv_config_path=str(Path(store.store_path_root_dir) / "namesrv" / "kvConfig.json")
    )

    async def main(stop: asyncio.Event) -> None:
        tls = broker_tls(configured)
        server: NameServer = NameServer(namesrv_settings, net, tls=tls)
        host, port = await server.start(settings.bind_address, args.namesrv_port, chosen_by="option --namesrv-port")
        try:
            reachable = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104 - a comparison, no socket is bound
            name_servers = f"{reachable}:{port}"
            broker: Broker = Broker(
                dataclasses.replace(settings, namesrv_addr=name_servers),
                store,
                net,
                tls=tls,
                raft=configured.part("raft"),
            )
            if not await came_up(broker.start(), stop):
                return
            try:
                if not args.json:
                    print(boot_line(broker, name_servers), flush=True)
                facts = {"namesrv": f"{host}:{port}"} | broker_facts(broker, store)
                facts["start_ms"] = str(round((time.monotonic() - started) * 1000))
                ready("standalone", facts, args)
                await stopped_or_failed(stop, broker)
            finally:
                await broker.stop()
        finally:
            await server.stop()

    return serve(main)


def run_spark(args: argparse.Namespace) -> int:
    try:
        export = importlib.import_module("saturnmq.spark.export")
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'saturnmq[spark]'") from error
    options = [f"--{name}" for name in ("json", "quiet") if getattr(args, name)]
    first = ["--check"] if args.check else args.rest[:1]
    code: int = export.main([*first, *options, *([] if args.check else args.rest[1:])])
    return code


def run_store(args: argparse.Namespace) -> int:
    from saturnmq import cli_store

    if args.data is None and args.config is None:
        raise ConfigError("name the store: --data DIR, or -c broker.conf")
    configured = configure(broker_classes(), args, {})
    loaded = configured.parts["store"]
    return cli_store.run(args, loaded.settings, loaded.origins.keys())


def configure_store(parser: argparse.ArgumentParser) -> None:
    from saturnmq import cli_store

    cli_store.configure(parser)


# ---- the table -----------------------------------------------------------------------------------------------------


def port_number(text: str) -> int:
    """Parse a port; 0 selects a free one. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) > PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} must be a port in 0..{PORT_MAX}")
    return int(text)


def server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="properties file with RocketMQ's own key names"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one key; stands above the file"
    )
    parser.add_argument(
        "-p", "--print-config", action="store_true", help="print every key, value and origin, and exit (not the port)"
    )
    parser.add_argument("--strict-config", action="store_true", help="an unknown key is an error, not a warning")


def configure_namesrv(parser: argparse.ArgumentParser) -> None:
    server_options(parser)
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=port_number, help="port to listen on (default 9876)")
    parser.add_argument(
        "-n", "--name-servers", dest="ignored", metavar="HOST:PORT", help="taken as the original does, without effect"
    )


def broker_options(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        required=required,
        metavar="DIR",
        help="where messages and state are kept (storePathRootDir)",
    )
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=port_number, help="broker port (default 10911)")


def configure_broker(parser: argparse.ArgumentParser) -> None:
    server_options(parser)
    parser.add_argument("-n", "--name-servers", metavar="HOST:PORT;...", help="name servers to register with")
    broker_options(parser)


def configure_standalone(parser: argparse.ArgumentParser) -> None:
    server_options(parser)
    broker_options(parser, required=True)
    parser.add_argument("--namesrv-port", type=port_number, default=9876, help="name server port (default 9876)")


def configure_spark(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check", action="store_true", help="which Java, Python and Spark run here, and does a worker work"
    )
    parser.add_argument(
        "rest", nargs=argparse.REMAINDER, metavar="PIPELINE ...",
        help="export, replay, trace, stats, audit, dlq, files, compact: saturnmq spark PIPELINE --help; "
        "pack OUT: what executors need; --help after a pipeline's name shows its inputs, outputs "
        "and guarantees",
    )  # fmt: skip


VERBS: Final = (
    Verb(
        "standalone",
        "a NameServer and a broker in one process",
        "saturnmq standalone --data ./data",
        configure_standalone,
        run_standalone,
    ),
    Verb("namesrv", "a NameServer", "saturnmq namesrv --port 9876", configure_namesrv, run_namesrv),
    Verb("broker", "a broker", "saturnmq broker -c broker.conf -n 127.0.0.1:9876", configure_broker, run_broker),
    Verb(
        "store",
        "verify, rebuild, repair a store, or show a record of it",
        "saturnmq store verify --data ./data",
        configure_store,
        run_store,
    ),
    Verb(
        "admin",
        "how a DLedger group stands, who leads it, are its ledgers whole and equal",
        "saturnmq admin ledgerStatus -n 127.0.0.1:9876 -g RaftNode00",
        admin.configure,
        admin.run,
    ),
    Verb(
        "spark",
        "a pipeline on Spark",
        "saturnmq spark export --name-servers 127.0.0.1:9876 --topic flights --out ./lake",
        configure_spark,
        run_spark,
    ),
)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line from VERBS."""
    common = Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="results as one JSON document on stdout")
    common.add_argument("--quiet", action="store_true", help="no progress, warnings only")
    common.add_argument("--debug", action="store_true", help="log everything, show tracebacks")
    parser = Parser(prog="saturnmq", description="A message broker compatible with Apache RocketMQ 4.9.7, in Python.")
    parser.add_argument("--version", action="store_true", help="version, commit, Python, twin, loop, protocol")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND")
    for verb in VERBS:
        sub = verbs.add_parser(
            verb.name,
            help=verb.summary,
            description=verb.summary[0].upper() + verb.summary[1:] + ".",
            epilog=f"example: {verb.example}",
            parents=[common],
        )
        verb.configure(sub)
        sub.set_defaults(run=verb.run)
    return parser


def commit() -> str:
    """Commit of the running checkout, read from .git without starting git; "release" for an installed package."""
    git = Path(saturnmq.__file__).resolve().parent.parent.parent / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        if head.startswith("ref: "):
            head = (git / head[5:]).read_text().strip()
    except OSError:
        return "release"
    return head[:12]


def version_line() -> str:
    """The line printed by --version (CLI-11)."""
    python = ".".join(str(part) for part in sys.version_info[:3])
    return (
        f"saturnmq {saturnmq.__version__} commit={commit()} python={python} twin={twin_name()} "
        f"loop={loop_name()} protocol={VERSION}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        if args.version:
            print(version_line())
            return EXIT_DONE
        if args.verb is None:
            parser.print_help(sys.stderr)
            return EXIT_USAGE
        level = logging.DEBUG if args.debug else logging.WARNING if args.quiet else logging.INFO
        logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        twin_name()
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except ConfigError as error:
        return fail(error, args, EXIT_USAGE)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except ConnectionError as error:
        return fail(error, args, EXIT_UNREACHABLE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (SaturnError, OSError) as error:
        return fail(error, args, EXIT_FAILED)


if __name__ == "__main__":
    sys.exit(main())
