"""Settings of a command, from presets, the file of -c, environment variables, options and --set; and --print-config.

Requirements: CLI-10, CLI-11, DG-11, DUR-02, DUR-06.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from saturnmq.cli.advertised import KEY, VARIABLE
from saturnmq.cli.output import EXIT_DONE, emit, warn, write
from saturnmq.config.environment import read_environment, variable_of
from saturnmq.config.settings import Loaded, keys_of, load, parse_properties, to_properties, without_effect
from saturnmq.protocol.errors import ConfigError


@dataclass(frozen=True)
class Configured:
    """All settings of a process, with the origin of every value."""

    parts: dict[str, Loaded[Any]]
    unknown_keys: dict[str, str]

    def part(self, name: str) -> Any:
        return self.parts[name].settings


def configure(classes: dict[str, type[Any]], args: argparse.Namespace, preset: dict[str, str]) -> Configured:
    """Build the settings of all packages from presets, the file of -c, environment variables, options and --set.

    Later sources override earlier ones.

    Members of a DLedger group flush synchronously and exit on a disk failure unless configured otherwise (DUR-02, DUR-06).
    Unknown keys cause a warning with the closest known key, or an error under --strict-config (CLI-10).
    Raises ConfigError with all problems.
    """
    sources = [("command line default", preset)]
    if args.config:
        sources.append((str(args.config), read_properties(args.config)))
    environment_keys, strangers = read_environment(
        {name for cls in classes.values() for name in keys_of(cls)}, os.environ
    )
    if "broker" in classes and (host := os.environ.get(VARIABLE)):
        sources.append((f"environment {VARIABLE}", {KEY: host}))
    sources += [(f"environment {each.variable}", {each.name: each.text}) for each in environment_keys]
    sources.append(("option", given_options(args)))
    pairs = dict(parse_pair(text) for text in args.set)
    sources.append(("--set", pairs))
    group_values = [source["enableDLegerCommitLog"] for _, source in sources if "enableDLegerCommitLog" in source]
    if "store" in classes and group_values and group_values[-1].strip().lower() == "true":
        preset_of_member = {"flushDiskType": "SYNC_FLUSH", "storeFailureAction": "exit"}
        sources[0] = ("default of a group's member", preset_of_member | preset)
    problems = _secrets_in_arguments(classes, pairs)
    parts = _loaded(classes, sources, problems)
    if (shard := getattr(args, "shard", None)) is not None:
        from saturnmq.cli.shard_settings import shard_values

        shards = args.shards or 1
        keys = {name: text for loaded in parts.values() for name, text in to_properties(loaded.settings).items()}
        sources.append((f"shard {shard} of {shards}", shard_values(keys, shard, shards)))
        parts = _loaded(classes, sources, problems)
    part_by_key = {name: part for part, cls in classes.items() for name in keys_of(cls)}
    unknown_keys = {k: v for _, source in sources for k, v in source.items() if k not in part_by_key}
    hints = Loaded(None, {}, unknown_keys).unknown_hints(part_by_key)
    hints += [_variable_hint(variable, part_by_key) for variable in strangers]
    if hints and args.strict_config:
        raise ConfigError(hints)
    for hint in hints:
        warn(f"warning: {hint}; it is ignored")
    for loaded in parts.values():
        for text in without_effect(loaded.settings):
            warn(f"warning: {text}")
    return Configured(parts, unknown_keys)


def _loaded(
    classes: dict[str, type[Any]], sources: Sequence[tuple[str, dict[str, str]]], problems: list[str]
) -> dict[str, Loaded[Any]]:
    """The settings of all packages. Raises ConfigError with these problems and those of loading."""
    parts: dict[str, Loaded[Any]] = {}
    for name, cls in classes.items():
        try:
            parts[name] = load(cls, *sources)
        except ConfigError as error:
            problems = [*problems, *error.problems]
    if problems:
        raise ConfigError(problems)
    return parts


def _variable_hint(variable: str, key_names: Iterable[str]) -> str:
    near = difflib.get_close_matches(variable, [variable_of(name) for name in key_names], n=1)
    return f"unknown environment variable {variable!r}" + (f", did you mean {near[0]!r}?" if near else "")


def _secrets_in_arguments(classes: dict[str, type[Any]], pairs: dict[str, str]) -> list[str]:
    """Problems of secrets given as arguments of the process, which every user of the machine can read (SEC-13)."""
    return [
        f"--set {name}: other users of this machine can read the arguments of a process; write it into the file of -c"
        for cls in classes.values()
        for name, (_, meta) in keys_of(cls).items()
        if meta.secret and name in pairs
    ]


def read_properties(path: Path) -> dict[str, str]:
    """Keys and values of a properties file. Raises ConfigError naming the file."""
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        refusal = ConfigError(f"configuration file {path}: {getattr(error, 'strerror', None) or error}")
        refusal.hint = f"Name a readable file of key=value lines in UTF-8: ls -l {path}; --print-config lists all keys."
        raise refusal from error


def parse_pair(text: str) -> tuple[str, str]:
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
    }
    return {java: str(value) for name, java in table.items() if (value := getattr(args, name, None)) is not None}


# What `mqbroker -m` prints: the keys that Apache RocketMQ 4.9.7 marks as important.
IMPORTANT: Final = frozenset({
    "accessMessageInMemoryMaxRatio", "aclEnable", "autoCreateSubscriptionGroup", "autoCreateTopicEnable", "brokerClusterName",
    "brokerIP1", "brokerId", "brokerName", "brokerRole", "cleanFileForciblyEnable", "commitIntervalCommitLog", "deleteWhen",
    "fetchNamesrvAddrByAddressServer", "fileReservedTime", "flushCommitLogTimed", "flushDiskType", "flushIntervalCommitLog",
    "haMasterAddress", "maxTransferBytesOnMessageInDisk", "maxTransferBytesOnMessageInMemory",
    "maxTransferCountOnMessageInDisk", "maxTransferCountOnMessageInMemory", "messageIndexEnable", "messageIndexSafe",
    "msgTraceTopicName", "namesrvAddr", "rejectTransactionMessage", "storePathCommitLog", "storePathDLedgerCommitLog",
    "storePathRootDir", "traceTopicEnable", "transactionCheckInterval", "transactionCheckMax", "transactionTimeOut",
    "transientStorePoolEnable",
})  # fmt: skip


def print_config(configured: Configured, as_json: bool, *, important: bool = False) -> int:
    """Print every setting with value and origin, secrets masked (CLI-10). important: only the keys of IMPORTANT."""
    rows = []
    for loaded in configured.parts.values():
        for name, value in to_properties(loaded.settings).items():
            if important and name not in IMPORTANT:
                continue
            rows.append({"key": name, "value": value, "origin": loaded.origins.get(name, "default")})
    rows.sort(key=lambda row: row["key"])
    if as_json:
        emit("print-config", rows)
    else:
        for row in rows:
            write(f"{row['key']}={row['value']}  # {row['origin']}")
    return EXIT_DONE


def broker_classes() -> dict[str, type[Any]]:
    """The settings classes of a broker."""
    from saturnmq.broker.settings import BrokerSettings
    from saturnmq.net import NetSettings, TlsSettings
    from saturnmq.raft.settings import RaftSettings
    from saturnmq.replication.masterslave.settings import HaSettings
    from saturnmq.store.settings import StoreSettings

    return {
        "broker": BrokerSettings,
        "store": StoreSettings,
        "raft": RaftSettings,
        "ha": HaSettings,
        "net": NetSettings,
        "tls": TlsSettings,
    }


def broker_tls(configured: Configured) -> Any:
    """The `tls.*` keys; by default a broker that enforces TLS also uses it towards NameServers and its group (REM-29)."""
    from saturnmq.net import TlsMode

    loaded = configured.parts["tls"]
    if "useTLS" in loaded.origins:  # as in Apache RocketMQ, it overrides tls.enable
        return dataclasses.replace(loaded.settings, enable=loaded.settings.use_tls)
    if "tls.enable" not in loaded.origins and loaded.settings.server_mode is TlsMode.ENFORCING:
        return dataclasses.replace(loaded.settings, enable=True)
    return loaded.settings


def standalone_tls(configured: Configured) -> Any:
    """As `broker_tls`; the broker trusts the certificate of the NameServer in its own process, whatever host it names.

    `tls.client.trustCertPath` overrides this.
    """
    tls = broker_tls(configured)
    if tls.client_trust_path or not tls.server_cert_path:
        return tls
    return dataclasses.replace(tls, client_trust_path=tls.server_cert_path, client_check_host=False)
