"""Rows of the commands on NameServers.

Requirements: C-21, C-22, C-46..C-49.
"""

from __future__ import annotations

from typing import Final

from saturnmq.cli.mqadmin.call import AdminCommand
from saturnmq.cli.mqadmin.options import Opt

NAMESPACE: Final = Opt("s", "namespace", "set the namespace", required=True)
KEY: Final = Opt("k", "key", "set the key name", required=True)
BROKER: Final = Opt("b", "brokerName", "broker name", required=True)

ROWS: Final = (
    AdminCommand(
        "updateKvConfig",
        "Create or update KV config.",
        "saturnmq admin updateKvConfig -n 127.0.0.1:9876 -s space -k name -v text",
        "name_servers:update_kv_config",
        (NAMESPACE, KEY, Opt("v", "value", "set the key value", required=True)),
        changes=True,
    ),
    AdminCommand(
        "deleteKvConfig",
        "Delete KV config.",
        "saturnmq admin deleteKvConfig -n 127.0.0.1:9876 -s space -k name",
        "name_servers:delete_kv_config",
        (NAMESPACE, KEY),
        changes=True,
    ),
    AdminCommand(
        "wipeWritePerm",
        "Wipe write perm of broker in all name server you defined in the -n param",
        "saturnmq admin wipeWritePerm -n 127.0.0.1:9876 -b broker-a",
        "name_servers:wipe_write_perm",
        (BROKER,),
        changes=True,
    ),
    AdminCommand(
        "addWritePerm",
        "Add write perm of broker in all name server you defined in the -n param",
        "saturnmq admin addWritePerm -n 127.0.0.1:9876 -b broker-a",
        "name_servers:add_write_perm",
        (BROKER,),
        changes=True,
    ),
    AdminCommand(
        "getNamesrvConfig",
        "Get configs of name server.",
        "saturnmq admin getNamesrvConfig -n 127.0.0.1:9876",
        "name_servers:get_namesrv_config",
    ),
    AdminCommand(
        "updateNamesrvConfig",
        "Update configs of name server.",
        "saturnmq admin updateNamesrvConfig -n 127.0.0.1:9876 -k logLevel -v DEBUG",
        "name_servers:update_namesrv_config",
        (Opt("k", "key", "config key", required=True), Opt("v", "value", "config value", required=True)),
        changes=True,
    ),
)
