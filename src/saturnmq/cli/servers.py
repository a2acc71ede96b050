"""The servers: `saturnmq standalone`, `namesrv`, `broker` and `collect`. Builds settings, starts, waits for a signal, stops.

Requirements: CLI-09, CLI-10, DG-09, UX-12.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import faulthandler
import gc
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from saturnmq.cli.advertised import warn_of_address
from saturnmq.cli.output import EXIT_DONE, ready, warn, write
from saturnmq.cli.reload import Reload
from saturnmq.cli.runtime import implementation, loop_factory, loop_name, uncollected
from saturnmq.cli.settings import Configured, broker_classes, broker_tls, configure, print_config, standalone_tls
from saturnmq.cli.shard_settings import refuse_unread_shards
from saturnmq.cli.shards import Shards, follow_supervisor, is_supervised, report_topic
from saturnmq.descriptors import raise_descriptor_limit
from saturnmq.namesrv import NameServer
from saturnmq.namesrv.settings import NameServerSettings, stored_in
from saturnmq.net import NetSettings, TlsSettings
from saturnmq.net.budget import AcceptErrors
from saturnmq.protocol.addresses import join_host_port
from saturnmq.protocol.frames.command import own_serialization
from saturnmq.server_admin.collector import StagedCollector
from saturnmq.tasks import cancel

if TYPE_CHECKING:  # a NameServer runs without the broker package
    from saturnmq.broker import Broker


def serve(main: Callable[[asyncio.Event], Any]) -> int:
    """Run a server until SIGTERM or SIGINT, then let it stop; its stop steps bound the time that takes."""

    raise_descriptor_limit()
    with contextlib.suppress(OSError, ValueError, AttributeError):  # standard error may be no file
        faulthandler.enable()  # a fatal signal, for instance of a mapped file that was truncated, is reported with its stack

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(AcceptErrors())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await main(stop)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run())
    return EXIT_DONE


def warn_if_public(host: str, *, protected: bool = False) -> None:
    """Warn about a non-loopback address without access control (UX-12)."""
    if not protected and not host.startswith("127.") and host not in ("localhost", "::1"):
        warn(f"warning: listening on {host} without access control; any client that reaches it can read and write")


def run_namesrv(args: argparse.Namespace) -> int:
    """Run a NameServer."""
    gc.freeze()  # as below
    classes = {"namesrv": NameServerSettings, "net": NetSettings, "tls": TlsSettings}
    configured = configure(classes, args, {})
    reload = Reload(classes, args, {}, configured)
    if args.config:
        configured.parts["namesrv"] = stored_in(configured.parts["namesrv"], str(args.config))
    if args.print_config:
        return print_config(configured, args.json)
    settings: NameServerSettings = configured.part("namesrv")
    if args.profile:
        from saturnmq.cli.production import require_production

        require_production(configured, args.config)
    warn_if_public(settings.bind_address, protected=settings.namesrv_access == "signed")

    async def main(stop: asyncio.Event) -> None:
        server: NameServer = NameServer(
            settings, configured.part("net"), tls=configured.part("tls"), unknown_keys=configured.unknown_keys
        )
        host, port = await server.start(settings.bind_address, settings.listen_port)
        reload.on_signal(server.configuration)
        StagedCollector().start()  # until the process ends
        try:
            if not args.json:
                write(f"The Name Server boot success. serializeType={own_serialization(os.environ).name}")
            facts = {"namesrv": join_host_port(host, port), "hot": implementation(), "loop": loop_name()}
            ready("namesrv", facts | {"unauthenticated": listed(server.unauthenticated)}, args)
            await stop.wait()
        finally:
            await server.stop()

    return serve(main)


def log_files_in(directory: str) -> AbstractContextManager[None]:
    """The log files of a server; none if no directory is configured."""
    if not directory:
        return contextlib.nullcontext()
    from saturnmq.server_admin.log_files import log_files

    return log_files(directory)


def listed(ports: Mapping[str, str]) -> str:
    """Ports that anybody who reaches them may use, for the ready line (SEC-16)."""
    return ",".join(f"{name}:{address}" for name, address in ports.items()) or "none"


def broker_facts(broker: Broker, store: Any) -> dict[str, str]:
    """The text of the ready line about a broker."""
    return {
        "broker": broker.address,
        "advertised": broker.advertised_address,
        "store": store.store_path_root_dir,
        "durability": store.flush_disk_type.name,
        "unauthenticated": listed(broker.unauthenticated),
        "hot": implementation(),
        "loop": loop_name(),
    }


async def started_before_stop(start: Coroutine[Any, Any, object], stop: asyncio.Event) -> bool:
    """Whether a server started before a stop was requested. A start in progress is then cancelled, and cleans up after itself."""
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


class OneBroker:
    """A broker in this process.

    preset: that it was configured with.
    """

    def __init__(self, args: argparse.Namespace, configured: Configured, preset: dict[str, str], tls: Any) -> None:
        with uncollected():
            from saturnmq.broker import Broker
        gc.freeze()  # collections pass over what is imported
        if args.shard is None:
            refuse_unread_shards(Path(configured.part("store").store_path_root_dir))
        self._class, self._args, self._configured, self._tls = Broker, args, configured, tls
        self._reload = Reload(broker_classes(), args, preset, configured)
        self._broker: Broker | None = None
        self._is_supervised = is_supervised(args)

    async def start(self, name_servers: str = "") -> None:
        """Start it. name_servers: of a standalone server, the one of its own process."""
        configured, settings, fixed = self._configured, self._configured.part("broker"), {}
        if name_servers:
            settings = dataclasses.replace(settings, namesrv_addr=name_servers)
            fixed["namesrvAddr"] = "a standalone server is registered with the NameServer of its own process"
        broker = self._class(
            settings,
            configured.part("store"),
            configured.part("net"),
            tls=self._tls,
            raft=configured.part("raft"),
            ha=configured.part("ha"),
            config_file=self._args.config,
            fixed=fixed,
        )
        await broker.start()
        self._broker = broker
        self._reload.on_signal(broker.configuration)
        StagedCollector().start()  # until the process ends

    def boot_line(self) -> str:
        """The line printed after startup, as Apache's broker prints it (DG-09)."""
        assert self._broker is not None
        return (
            f"The broker[{self._broker.name}, {self._broker.advertised_address}] boot success. "
            f"serializeType={own_serialization(os.environ).name} and name server is {self._broker.settings.namesrv_addr}"
        )

    def facts(self) -> dict[str, str]:
        """The text of the ready line about it."""
        assert self._broker is not None
        return broker_facts(self._broker, self._configured.part("store"))

    async def wait(self, stop: asyncio.Event) -> None:
        """Wait for a stop signal or a failure, of a task or of the disk if storeFailureAction is exit (DUR-06). Raises it."""
        broker = self._broker
        assert broker is not None
        await warn_of_address(broker.address, broker.advertised_address)
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(event.wait()) for event in (stop, broker.failed)]
        if self._is_supervised:
            broker.topics.created.subscribe(report_topic)
            waits.append(asyncio.ensure_future(follow_supervisor(broker.topics.add)))
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in done:
                wait.result()
        finally:
            await cancel(*waits)
        if broker.failure is not None:
            raise broker.failure

    async def stop(self) -> None:
        """Stop it if it has started; a start that was cancelled cleans up after itself."""
        if self._broker is not None:
            await self._broker.stop()


def brokers_of(
    args: argparse.Namespace, configured: Configured, preset: dict[str, str], tls: Any
) -> OneBroker | Shards:
    """The broker of this process, or a process for each of its shards."""
    if args.shards is None or args.shard is not None:
        return OneBroker(args, configured, preset, tls)
    return Shards(args, Path(configured.part("store").store_path_root_dir))


def run_broker(args: argparse.Namespace) -> int:
    """Run a broker, or a process for each of its shards."""
    configured = configure(broker_classes(), args, {})
    if args.print_config or args.print_important:
        return print_config(configured, args.json, important=args.print_important)
    if args.profile:
        from saturnmq.cli.production import require_production

        require_production(configured, args.config)
    settings = configured.part("broker")
    if args.shard is None:
        warn_if_public(settings.bind_address, protected=settings.acl_enable)
    return serve_brokers(args, configured, brokers_of(args, configured, {}, broker_tls(configured)))


def serve_brokers(args: argparse.Namespace, configured: Configured, brokers: OneBroker | Shards) -> int:
    """Serve until a signal: brokers that register with the configured NameServers."""
    settings = configured.part("broker")
    report = argparse.Namespace(json=True) if is_supervised(args) else args

    async def main(stop: asyncio.Event) -> None:
        try:
            if await started_before_stop(brokers.start(), stop):
                if not report.json:
                    write(brokers.boot_line())
                ready("broker", brokers.facts() | {"namesrv": settings.namesrv_addr or "none"}, report)
                await brokers.wait(stop)
        finally:
            await brokers.stop()

    with log_files_in(settings.log_directory):
        return serve(main)


# Where the broker and the console of the same process reach a NameServer that listens on all addresses.
_REACHED_AT: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - a comparison, no socket is bound
# A development profile: small files, no port for slaves, and SQL filters enabled, which both Apache's broker and SaturnMQ disable
# by default.
STANDALONE_PRESET: Final = {"storeProfile": "small", "enablePropertyFilter": "true", "haPortEnable": "false"}


def run_standalone(args: argparse.Namespace) -> int:
    """Run a NameServer and a broker in one process, or a NameServer and a process for each shard of the broker."""
    started = time.monotonic()
    configured = configure(broker_classes(), args, STANDALONE_PRESET)
    if args.print_config:
        return print_config(configured, args.json)
    if args.console:
        from saturnmq.cli.console import require_packages

        require_packages()  # before anything is started
    settings, net, tls = configured.part("broker"), configured.part("net"), standalone_tls(configured)
    brokers = brokers_of(args, configured, STANDALONE_PRESET, tls)
    if args.shard is not None:
        return serve_brokers(args, configured, brokers)
    warn_if_public(settings.bind_address)
    data = Path(configured.part("store").store_path_root_dir)
    namesrv_settings = NameServerSettings(
        listen_port=args.namesrv_port,
        kv_config_path=str(data / "namesrv" / "kvConfig.json"),
        config_store_path=str(data / "namesrv" / "namesrv.properties"),
        admin_addresses=settings.admin_addresses,
    )

    async def main(stop: asyncio.Event) -> None:
        server: NameServer = NameServer(namesrv_settings, net, tls=tls)
        host, port = await server.start(settings.bind_address, args.namesrv_port, chosen_by="option --namesrv-port")
        try:
            name_servers = join_host_port(_REACHED_AT.get(host, host), port)
            if not await started_before_stop(brokers.start(name_servers), stop):
                return
            facts = {"namesrv": join_host_port(host, port)} | brokers.facts()
            open_ports = [text for text in (listed(server.unauthenticated), facts["unauthenticated"]) if text != "none"]
            facts["unauthenticated"] = ",".join(open_ports) or "none"
            facts["start_ms"] = str(round((time.monotonic() - started) * 1000))
            async with console_beside(args, name_servers, data) as pages:
                if not args.json:
                    write(brokers.boot_line())
                ready("standalone", facts | pages, args)
                await brokers.wait(stop)
        finally:
            await brokers.stop()
            await server.stop()

    with log_files_in(settings.log_directory):
        return serve(main)


@contextlib.asynccontextmanager
async def console_beside(args: argparse.Namespace, name_servers: str, data: Path) -> AsyncIterator[dict[str, str]]:
    """With --console, serve the console in this process; gives what the ready line says about it. It ends with the server."""
    if not args.console:
        yield {}
        return
    from saturnmq.admin import read_access
    from saturnmq.cli.console import ConsoleOptions
    from saturnmq.cli.console import serve as serve_console

    access = read_access(tools=args.tools_yml, config=args.config)
    options = ConsoleOptions(name_servers, data / "console", args.host or "127.0.0.1", args.console_port, access)
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(serve_console(options, stop, url.set_result))
    await asyncio.wait((serving, url), return_when=asyncio.FIRST_COMPLETED)
    try:
        if not url.done():
            serving.result()  # raises why it does not serve
        yield {"console": url.result()}
    finally:
        stop.set()
        await asyncio.wait({serving})
        if not serving.cancelled() and serving.exception() is not None and url.done():
            warn(f"console ended: {serving.exception()}")


def run_collect(args: argparse.Namespace) -> int:
    """Collect the history of a cluster every minute until a signal; with --once now and once."""
    from saturnmq.admin import Admin
    from saturnmq.cli.cluster import chosen_cluster
    from saturnmq.history import Collector, History

    name_servers, access = chosen_cluster(args)

    async def main(stop: asyncio.Event) -> None:
        with History(args.data) as history:
            async with Admin(name_servers, access=access) as admin:
                collector = Collector(admin, history)
                ready("collect", {"name_servers": name_servers, "history": str(args.data)}, args)
                work: asyncio.Future[Any] = asyncio.ensure_future(collector.round() if args.once else collector.run())
                stopped = asyncio.ensure_future(stop.wait())
                await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    work.result()
                await cancel(work, stopped)

    return serve(main)
