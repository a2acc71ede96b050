"""`--profile production`: what a server must have before a port is exposed, checked before it starts.

Requirements: SEC-21.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from saturnmq.acl.files import account_paths, home_folder
from saturnmq.cli.output import warn
from saturnmq.cli.settings import Configured
from saturnmq.net import TlsMode
from saturnmq.protocol.errors import ConfigError

WAIVE: Final = "production.waive"
ITEMS: Final = {
    "acl": "access control",
    "tls": "enforcing TLS",
    "clientCertificates": "certificates of all clients",
    "autoCreate": "no automatic creation of topics and groups",
    "syncFlush": "synchronous flush",
    "haSecret": "a secret between master and slave",
    "fileModes": "files closed to other users",
}
_OTHER_USERS_BITS: Final = 0o007
_GROUP_AND_OTHERS: Final = 0o077


def require_production(configured: Configured, config_file: Path | None) -> None:
    """Refuse a configuration that misses what production needs, unless `production.waive` lists it.

    Raises ConfigError with one sentence per missing item, which names the keys to set.
    """
    part = "broker" if "broker" in configured.parts else "namesrv"
    waived = [name.strip() for name in configured.part(part).production_waive.split(",") if name.strip()]
    unknown_items = [name for name in waived if name not in ITEMS]
    problems = [f"{WAIVE}={name}: must be one of {', '.join(ITEMS)}" for name in unknown_items]
    for item, problem in _missing(configured, config_file):
        if item in waived:
            warn(f"warning: --profile production without {ITEMS[item]} ({WAIVE}={item}): {problem}")
        else:
            problems.append(f"--profile production: {problem}; or waive it with {WAIVE}={item}")
    if problems:
        raise ConfigError(problems)


def _missing(configured: Configured, config_file: Path | None) -> Iterator[tuple[str, str]]:
    """Name of each missing item, and what to set."""
    tls = configured.part("tls")
    if "broker" in configured.parts:
        broker, store = configured.part("broker"), configured.part("store")
        if not broker.acl_enable:
            yield "acl", "aclEnable=false lets every client do everything; set aclEnable=true and add accounts"
        if broker.auto_create_topic or broker.auto_create_group:
            text = "clients create topics and groups; set autoCreateTopicEnable=false and autoCreateSubscriptionGroup=false"
            yield "autoCreate", text
        if store.flush_disk_type.name != "SYNC_FLUSH":
            yield (
                "syncFlush",
                "acknowledged messages may be lost with the machine's power; set flushDiskType=SYNC_FLUSH",
            )
        yield from _replication(configured)
        home = home_folder(broker.acl_home, Path(store.store_path_root_dir))
        accounts = _accounts(home, broker.acl_file) if broker.acl_enable else []
        folders = [Path(store.store_path_root_dir)]
    else:
        namesrv = configured.part("namesrv")
        if namesrv.namesrv_access != "signed":
            yield "acl", "any host can register brokers; set namesrvAccess=signed and add accounts"
        home = home_folder(namesrv.rocketmq_home, Path(namesrv.kv_config_path).parent)
        accounts = _accounts(home, namesrv.acl_file) if namesrv.namesrv_access == "signed" else []
        folders = [Path(namesrv.kv_config_path).parent]
    if tls.server_mode is not TlsMode.ENFORCING or not tls.server_cert_path:
        text = (
            "connections may be plain text; set tls.server.mode=enforcing, tls.server.certPath and tls.server.keyPath"
        )
        yield "tls", text
    if tls.plain_without_certificate:
        yield (
            "clientCertificates",
            "tls.server.need.client.auth=require exempts plain connections; set tls.server.mode=enforcing",
        )
    secret = [*([config_file] if config_file else []), *accounts, Path(tls.server_key_path), Path(tls.client_key_path)]
    modes = [*_too_open(secret, _GROUP_AND_OTHERS), *_too_open(folders, _OTHER_USERS_BITS)]
    if modes:
        yield "fileModes", f"other users can read {', '.join(modes)}; run chmod 600 on files and chmod 750 on folders"


def _replication(configured: Configured) -> Iterator[tuple[str, str]]:
    """The missing settings of a slave, or of a master that is set up for slaves. A member of a group is neither."""
    broker, ha = configured.part("broker"), configured.part("ha")
    if configured.part("raft").enabled:
        return
    if broker.broker_role == "SLAVE" and not ha.cluster_secret:
        yield "haSecret", "a slave copies from any broker that registers as its master; set haClusterSecret"
    elif (
        broker.broker_role == "SYNC_MASTER" or (broker.broker_role != "SLAVE" and ha.allowed_text.strip())
    ) and not ha.secret_only(protected=broker.acl_enable):
        text = "an address suffices to copy all messages; set haClusterSecret and haRequireClusterSecret=true"
        yield "haSecret", text


def _accounts(home: Path, default: str) -> list[Path]:
    try:
        return account_paths(home, home / default)
    except OSError:
        return []  # reported by what reads them


def _too_open(paths: Iterable[Path], forbidden: int) -> Iterator[str]:
    """Existing paths that have one of the forbidden permission bits, with their mode."""
    for path in paths:
        if path == Path():
            continue
        try:
            mode = path.stat().st_mode & 0o777
        except OSError:
            continue  # a missing file is reported by what reads it
        if mode & forbidden:
            yield f"{path} (mode {mode:04o})"
