"""Rows of the commands on accounts.

Requirements: C-50..C-54.
"""

from __future__ import annotations

from typing import Final

from saturnmq.cli.mqadmin.call import AdminCommand
from saturnmq.cli.mqadmin.options import Opt


def target(broker: str, cluster: str) -> tuple[Opt, Opt]:
    """The options of which exactly one names what a command works on, with their help texts."""
    return Opt("b", "brokerAddr", broker, group="target"), Opt("c", "clusterName", cluster, group="target")


VERSION_TARGET: Final = target(
    "query acl config version for which broker", "query acl config version for specified cluster"
)

ROWS: Final = (
    AdminCommand(
        "updateAclConfig",
        "Update acl config yaml file in broker",
        "saturnmq admin updateAclConfig -n 127.0.0.1:9876 -c DefaultCluster -a account -s secret-key -t orders=PUB",
        "accounts:update_account",
        (
            *target("update acl config file to which broker", "update acl config file to which cluster"),
            Opt("a", "accessKey", "set accessKey in acl config file", required=True),
            Opt("s", "secretKey", "set secretKey in acl config file", required=True),
            Opt("w", "whiteRemoteAddress", "set white ip Address for account in acl config file"),
            Opt("i", "defaultTopicPerm", "set default topicPerm in acl config file"),
            Opt("u", "defaultGroupPerm", "set default GroupPerm in acl config file"),
            Opt("t", "topicPerms", "set topicPerms list,eg: topicA=DENY,topicD=SUB"),
            Opt("g", "groupPerms", "set groupPerms list,eg: groupD=DENY,groupD=SUB"),
            Opt("m", "admin", "set admin flag in acl config file"),
        ),
        changes=True,
    ),
    AdminCommand(
        "deleteAclConfig",
        "Delete Acl Config Account in broker",
        "saturnmq admin deleteAclConfig -n 127.0.0.1:9876 -c DefaultCluster -a account",
        "accounts:delete_account",
        (
            *target("delete acl config account from which broker", "delete acl config account from which cluster"),
            Opt("a", "accessKey", "set accessKey in acl config file for deleting which account", required=True),
        ),
        aliases=("deleteAccessConfig",),
        changes=True,
    ),
    AdminCommand(
        "clusterAclConfigVersion",
        "List all of acl config version information in cluster",
        "saturnmq admin clusterAclConfigVersion -n 127.0.0.1:9876 -c DefaultCluster",
        "accounts:versions",
        VERSION_TARGET,
        listing=True,
    ),
    AdminCommand(
        "updateGlobalWhiteAddr",
        "Update global white address for acl Config File in broker",
        "saturnmq admin updateGlobalWhiteAddr -n 127.0.0.1:9876 -c DefaultCluster -g 10.10.103.*",
        "accounts:update_white_addresses",
        (
            *target("update global white address to which broker", "update global white address to which cluster"),
            Opt(
                "g", "globalWhiteRemoteAddresses",
                "set globalWhiteRemoteAddress list,eg: 10.10.103.*,192.168.0.*", required=True,
            ),
            Opt("p", "aclFileFullPath", "update global white address of specified acl file,eg: /xxx/plain_test.yml"),
        ),
        changes=True,
    ),
    AdminCommand(
        "getAclConfig",
        "List all of acl config information in cluster",
        "saturnmq admin getAclConfig -n 127.0.0.1:9876 -c DefaultCluster",
        "accounts:listing",
        (
            *VERSION_TARGET,
            Opt("", "show-secrets", "print the secret keys that Apache's broker sends", value=False, is_extension=True),
        ),
        aliases=("getAccessConfigSubCommand",),
        listing=True,
    ),
)  # fmt: skip
