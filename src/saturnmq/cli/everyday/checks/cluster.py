"""Checks of a cluster from where the command runs: NameServers and routed brokers.

Requirements: CLI-06, UX-07.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from saturnmq.admin.admin import Admin
from saturnmq.admin.connection import ask_each
from saturnmq.cli.advertised import connects, in_container_network, is_loopback
from saturnmq.cli.everyday.checks import open_ports
from saturnmq.cli.everyday.checks.certificates import certificate_end
from saturnmq.cli.everyday.checks.finding import Finding, note, ok, problem
from saturnmq.cli.everyday.checks.host import disk_finding
from saturnmq.config.settings import parse_properties
from saturnmq.errors import CallTimeout
from saturnmq.protocol.addresses import host_of, port_of
from saturnmq.protocol.bodies import ClusterInfo
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ResponseError, SaturnError

SKEW_MS_MAX: Final = 5000
VIP_PORT_DISTANCE: Final = 2
SET_ADDRESS: Final = "set brokerIP1 there to a name or address that all clients reach, and restart the broker"
GIVE_KEYS: Final = "put the keys of an administrator into $ROCKETMQ_HOME/conf/tools.yml, and run it again"
LOOK_AT_IT: Final = "see whether the broker hangs or is overloaded, if a connection to its port is accepted"
_RUNTIME: Final = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")


class Runtime(NamedTuple):
    """The values of code 28 of a broker, and when they were asked for, Unix ms."""

    values: dict[str, str]
    asked_ms: int
    answered_ms: int


async def check_addresses(admin: Admin, *, seconds: float) -> list[Finding]:
    """What a client needs first: NameServers that answer, and brokers at the addresses that these give to clients."""
    responses = await _listings(admin, seconds)
    brokers = routed(responses)
    states = await _states(admin, brokers, seconds)
    local = all(map(_is_loopback, admin.connection.name_servers))
    findings = [*name_servers(responses), *_missing_brokers(responses, brokers)]
    for address, name in brokers.items():
        state = states[address]
        error = None if isinstance(state, Runtime) else state
        findings.append(address_finding(f"{name} at {address}", address, error, local=local))
    return findings


async def check_cluster(admin: Admin, *, seconds: float, tls: bool) -> list[Finding]:
    """All checks over the network; no server is waited for longer than `seconds`."""
    responses = await _listings(admin, seconds)
    findings = list(name_servers(responses))
    brokers = routed(responses)
    findings += await authentication(admin, responses, brokers, seconds=seconds)
    findings += _missing_brokers(responses, brokers)
    states = await _states(admin, brokers, seconds)
    ports = await asyncio.gather(*(_fast_port(address, seconds) for address in brokers))
    local = all(map(_is_loopback, admin.connection.name_servers))
    for (address, name), fast in zip(brokers.items(), ports, strict=True):
        findings += broker_findings(f"{name} at {address}", address, states[address], local=local)
        findings += fast_port(f"{name} at {address}", open_=fast, reached=isinstance(states[address], Runtime))
    findings += equal_versions({address: state for address, state in states.items() if isinstance(state, Runtime)})
    if tls:
        findings += await asyncio.gather(*(_served_certificate(address, seconds) for address in responses | states))
    return findings


async def _listings(admin: Admin, seconds: float) -> dict[str, ClusterInfo | SaturnError]:
    """The brokers that each NameServer lists."""
    connection = admin.connection

    async def listing(address: str) -> ClusterInfo:
        answer = await connection.read(address, RequestCode.GET_BROKER_CLUSTER_INFO, main_port=True)
        return ClusterInfo.decode(answer.body)

    return await ask_each(connection.name_servers, listing, seconds=seconds)


async def _states(admin: Admin, brokers: dict[str, str], seconds: float) -> dict[str, Runtime | SaturnError]:
    async def runtime(address: str) -> Runtime:
        asked_ms = _now_ms()
        return Runtime(await admin.brokers.runtime(address), asked_ms, _now_ms())

    return await ask_each(brokers, runtime, seconds=seconds)


def _missing_brokers(responses: dict[str, ClusterInfo | SaturnError], brokers: dict[str, str]) -> Iterator[Finding]:
    """NameServers that answer, and have no broker."""
    if not brokers and any(isinstance(response, ClusterInfo) for response in responses.values()):
        advice = "start one: saturnmq broker -n NAMESERVER, and look into its log for `registered`"
        yield problem("brokers", "routes", "no broker is registered", advice)


def name_servers(responses: dict[str, ClusterInfo | SaturnError]) -> Iterator[Finding]:
    """Whether each NameServer answers, and whether all list the same brokers."""
    listings = {}
    for address, response in responses.items():
        if isinstance(response, SaturnError):
            advice = "start it: saturnmq namesrv, or take it from the list of -n, SATURNMQ_URL or NAMESRV_ADDR"
            yield problem("NameServer", address, response.message, advice)
        else:
            listings[address] = _registered_brokers(response)
            yield ok("NameServer", address, f"answers, {len(listings[address])} brokers registered")
    if len({frozenset(each.items()) for each in listings.values()}) > 1:
        counts = ", ".join(f"{address}: {len(each)}" for address, each in listings.items())
        advice = "give every broker all NameServers: namesrvAddr=host:port;host:port"
        yield problem("NameServer", "routes", f"list different brokers ({counts})", advice)


async def authentication(
    admin: Admin, name_servers: dict[str, ClusterInfo | SaturnError], brokers: dict[str, str], *, seconds: float
) -> list[Finding]:
    """Which of the servers that answer are open without authentication; one that refuses the request is not."""

    async def configuration(address: str) -> dict[str, str]:
        code = RequestCode.GET_BROKER_CONFIG if address in brokers else RequestCode.GET_NAMESRV_CONFIG
        answer = await admin.connection.read(address, code, main_port=True)
        return parse_properties((answer.body or b"").decode(errors="replace"))

    servers = {
        address: f"NameServer {address}"
        for address, response in name_servers.items()
        if isinstance(response, ClusterInfo)
    }
    servers |= {address: f"{name} at {address}" for address, name in brokers.items()}
    findings: list[Finding] = []
    for address, settings in (await ask_each(servers, configuration, seconds=seconds)).items():
        if not isinstance(settings, SaturnError):
            name_server = address not in brokers
            findings += open_ports.running_findings(
                servers[address], host_of(address), settings, name_server=name_server
            )
    return findings


def routed(responses: dict[str, ClusterInfo | SaturnError]) -> dict[str, str]:
    """Name of each routed broker, by address."""
    return {
        a: name
        for response in responses.values()
        if isinstance(response, ClusterInfo)
        for a, name in _registered_brokers(response).items()
    }


def _registered_brokers(info: ClusterInfo) -> dict[str, str]:
    return {
        address: f"{data.broker_name}/{number}"
        for data in info.broker_addr_table.values()
        for number, address in sorted(data.broker_addrs.items())
        if re.fullmatch(r".+:\d{1,5}", address)
    }


def broker_findings(subject: str, address: str, state: Runtime | SaturnError, *, local: bool) -> Iterator[Finding]:
    """Address, response, clock, disk and version of one broker. local: the NameServers are on this machine."""
    yield address_finding(subject, address, None if isinstance(state, Runtime) else state, local=local)
    if not isinstance(state, Runtime):
        return
    values = state.values
    skew_ms = clock_skew_ms(state)
    if skew_ms is None:
        yield note("clock", subject, "the broker does not report its time", "compare the clocks by hand")
    elif abs(skew_ms) > SKEW_MS_MAX:
        advice = "run chrony or ntpd on both machines: delays, searches by time and signatures of version 2 need equal clocks"
        yield problem("clock", subject, f"{skew_ms / 1000:+.0f} s from the clock here", advice)
    else:
        yield ok("clock", subject, "equal to a second or so")
    with contextlib.suppress(ValueError):
        percent = round(float(values.get("commitLogDiskRatio", "")) * 100)
        if percent >= 0:
            yield disk_finding(subject, percent, f"{percent} % of the commit log's disk used")


def address_finding(subject: str, address: str, error: SaturnError | None, *, local: bool) -> Finding:
    """Whether the address that routes name can be used, here and by others."""
    host = host_of(address)
    container = in_container_network(host)
    if isinstance(error, ResponseError):  # the address is right
        text = f"answers, but refuses its state: {error.message}"
        return note("advertised address", subject, text, GIVE_KEYS)
    if isinstance(error, CallTimeout):
        return problem(
            "advertised address", subject, f"not usable from here: {error.message}", f"{LOOK_AT_IT}; else {SET_ADDRESS}"
        )
    if error is not None:
        where = ", an address inside a container network" if container else ""
        return problem("advertised address", subject, f"not usable from here{where}: {error.message}", SET_ADDRESS)
    if _is_loopback(address) and not local:
        return problem(
            "advertised address", subject, "a loopback address, which every client takes for itself", SET_ADDRESS
        )
    if _is_loopback(address):
        return ok("advertised address", subject, "answers; a loopback address, for clients on this machine")
    if container:
        return note(
            "advertised address", subject, "answers, but is inside a container network of one machine", SET_ADDRESS
        )
    return ok("advertised address", subject, "answers")


def _is_loopback(address: str) -> bool:
    return is_loopback(host_of(address))


def clock_skew_ms(state: Runtime) -> int | None:
    """By how much a broker's clock is ahead of the one here, from its boot time and running time, which is in whole seconds."""
    running = _RUNTIME.fullmatch(state.values.get("runtime", ""))
    boot = state.values.get("bootTimestamp", "")
    if running is None or not re.fullmatch(r"\d{1,15}", boot):
        return None
    days, hours, minutes, seconds = (int(part[:9]) for part in running.groups())
    at_least = int(boot) + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    if at_least > state.answered_ms:
        return at_least - state.answered_ms
    return min(at_least + 1000 - state.asked_ms, 0)


def fast_port(subject: str, *, open_: bool, reached: bool) -> Iterator[Finding]:
    """The port that Java clients with vipChannelEnabled=true use."""
    if open_:
        yield ok("ports", subject, "main port and the fast port 2 below it are open")
    elif reached:
        advice = "open it, or leave vipChannelEnabled=false in clients (their default)"
        yield note("ports", subject, "the fast port, 2 below the main port, is closed", advice)


async def _fast_port(address: str, seconds: float) -> bool:
    port = port_of(address) - VIP_PORT_DISTANCE
    return port > 0 and await connects(host_of(address), port, seconds)


def equal_versions(states: dict[str, Runtime]) -> Iterator[Finding]:
    """The versions of all brokers."""
    versions = {address: runtime.values.get("brokerVersionDesc", "unknown") for address, runtime in states.items()}
    names = sorted(set(versions.values()))
    if len(names) > 1:
        text = ", ".join(f"{address}: {version}" for address, version in versions.items())
        yield note("version", "brokers", f"differ ({text})", "finish the upgrade: slaves first, then masters")
    elif names:
        yield ok("version", "brokers", f"all {names[0]}")


async def _served_certificate(address: str, seconds: float) -> Finding:
    """The certificate that a server presents; it is not verified here."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = host_of(address), port_of(address)
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host.strip("[]"), port, ssl=context)
    except (OSError, TimeoutError) as error:
        advice = "set tls.server.certPath and tls.server.keyPath there"
        return problem("certificate", address, f"no TLS connection: {error}", advice)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return certificate_end(address, der, datetime.now(UTC))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
