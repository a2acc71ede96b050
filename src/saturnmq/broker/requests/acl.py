"""Requests that read and change accounts (50-54).

Requirements: ACL-15..ACL-17, SEC-13.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

from saturnmq.broker.requests.context import AclContext
from saturnmq.net import Connection
from saturnmq.protocol.bodies import PlainAccessConfig
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ConfigError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers import messaging as h

if TYPE_CHECKING:
    from saturnmq.acl.plain import PlainValidator

log = logging.getLogger(__name__)


def _split(text: str | None) -> list[str] | None:
    # None leaves a list as it is, an empty text empties it.
    return None if text is None else [part for part in text.split(",") if part]


def _plain_validator(ctx: AclContext, code: ResponseCode) -> PlainValidator:
    if ctx.plain_validator is None:
        raise response_error(code, "this broker has no account files: aclEnable=false, or aclValidators without plain")
    return ctx.plain_validator


async def update_account(
    ctx: AclContext, connection: Connection, request: Command, header: h.UpdateAndCreateAclConfig
) -> Command:
    """Serve UPDATE_AND_CREATE_ACL_CONFIG (50)."""
    failed = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    account = PlainAccessConfig(
        header.access_key,
        header.secret_key,
        header.white_remote_address,
        header.admin,
        header.default_topic_perm,
        header.default_group_perm,
        _split(header.topic_perms),
        _split(header.group_perms),
    )
    try:
        await _plain_validator(ctx, failed).update_account(account)
    except ConfigError as error:
        raise response_error(failed, error.message) from error
    log.info("account written key=%r peer=%s", header.access_key, connection.remote_address)
    return request.reply()


async def delete_account(
    ctx: AclContext, connection: Connection, request: Command, header: h.DeleteAclConfig
) -> Command:
    """Serve DELETE_ACL_CONFIG (51)."""
    failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
    try:
        deleted = await _plain_validator(ctx, failed).delete_account(header.access_key)
    except ConfigError as error:
        raise response_error(failed, error.message) from error
    if not deleted:
        text = f"The accesskey[{header.access_key}] corresponding to accessConfig has been deleted failed."
        return request.reply(failed, text)
    log.info("account deleted key=%r peer=%s", header.access_key, connection.remote_address)
    return request.reply()


async def update_white_addresses(
    ctx: AclContext, connection: Connection, request: Command, header: h.UpdateGlobalWhiteAddrsConfig
) -> Command:
    """Serve UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53)."""
    failed = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
    addresses = _split(header.global_white_addrs) or []
    try:
        written = await _plain_validator(ctx, failed).set_white_addresses(addresses, header.acl_file_full_path or "")
    except ConfigError as error:
        raise response_error(failed, error.message) from error
    if not written:
        return request.reply(failed, f"The globalWhiteAddresses[{header.global_white_addrs}] has been updated failed.")
    log.info("global white list written peer=%s", connection.remote_address)
    return request.reply()


def versions(ctx: AclContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve GET_BROKER_CLUSTER_ACL_INFO (52)."""
    validator = _plain_validator(ctx, ResponseCode.SYSTEM_ERROR)
    texts = {path: {"counter": v.counter, "timestamp": v.timestamp} for path, v in validator.versions.items()}
    answer = h.GetBrokerClusterAclInfoResponse(
        version=json.dumps({"counter": validator.version.counter, "timestamp": validator.version.timestamp}),
        all_acl_file_version=json.dumps(texts),
        broker_name=ctx.settings.broker_name,
        broker_addr=ctx.identity.address,
        cluster_name=ctx.settings.cluster_name,
    )
    return request.reply(ext=answer.to_ext())


async def accounts(ctx: AclContext, connection: Connection, request: Command, header: object) -> Command:
    """Serve GET_BROKER_CLUSTER_ACL_CONFIG (54); secret keys are masked."""
    # Reads files, so not on the event loop.
    config = await asyncio.to_thread(_plain_validator(ctx, ResponseCode.SYSTEM_ERROR).config)
    return request.reply(body=config.encode())
