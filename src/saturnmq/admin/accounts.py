"""Accounts and white lists of access control, in the account files of brokers.

Secret keys travel as the broker sends and wants them: use TLS. SaturnMQ's broker masks those that it lists.

Requirements: ADM-09, C-50..C-54.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from saturnmq.admin.connection import AdminConnection
from saturnmq.protocol.bodies import AclConfig, DataVersion, PlainAccessConfig
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import RemoteProtocolError
from saturnmq.protocol.headers import messaging as h


@dataclass(frozen=True)
class AccountVersions:
    """Versions of the account files of a broker, by path."""

    cluster: str
    broker_name: str
    address: str
    files: dict[str, DataVersion]


class Accounts:
    """Accounts and white lists of access control.

    Example:
        for account in (await admin.accounts.listing("127.0.0.1:10911")).plain_access_configs:
            print(account.access_key, account.admin)
    """

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def put(self, address: str, account: PlainAccessConfig) -> None:
        """Create or change an account of a broker (50). Lists of permissions replace those of the account; None keeps them."""
        header = h.UpdateAndCreateAclConfig(
            access_key=account.access_key,
            secret_key=account.secret_key,
            white_remote_address=account.white_remote_address,
            admin=account.admin,
            default_topic_perm=account.default_topic_perm,
            default_group_perm=account.default_group_perm,
            topic_perms=None if account.topic_perms is None else ",".join(account.topic_perms),
            group_perms=None if account.group_perms is None else ",".join(account.group_perms),
        )
        await self._connection.change(address, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header)

    async def delete(self, address: str, access_key: str) -> None:
        """Delete an account from a broker (51)."""
        header = h.DeleteAclConfig(access_key=access_key)
        await self._connection.change(address, RequestCode.DELETE_ACL_CONFIG, header)

    async def set_white_addresses(self, address: str, addresses: Sequence[str], file: str | None = None) -> None:
        """Replace the global white list of a broker (53). file: path on the broker of the account file; Apache 4.9 requires it."""
        header = h.UpdateGlobalWhiteAddrsConfig(global_white_addrs=",".join(addresses), acl_file_full_path=file)
        await self._connection.change(address, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)

    async def versions(self, address: str) -> AccountVersions:
        """Versions of the account files of a broker (52)."""
        answer = await self._connection.read(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        response = h.GetBrokerClusterAclInfoResponse.decode(answer.ext)
        try:
            table = json.loads(response.all_acl_file_version or "{}")
            files = {
                str(path): DataVersion(int(version["timestamp"]), int(version["counter"]))
                for path, version in table.items()
            }
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise RemoteProtocolError(f"{address} sent versions of account files that are none: {error}") from error
        return AccountVersions(response.cluster_name, response.broker_name, response.broker_addr, files)

    async def listing(self, address: str) -> AclConfig:
        """All accounts of a broker and its global white list (54)."""
        answer = await self._connection.read(address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        return AclConfig.decode(answer.body)
