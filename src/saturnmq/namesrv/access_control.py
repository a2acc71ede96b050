"""`namesrvAccess=signed`: administrative requests and those of brokers need the signature of an administrator's account.

Reads stay open: clients of 4.9.7 do not sign requests to a NameServer. The accounts are in the files of access control
(docs/spec/01 section 6), below `rocketmqHome`.

Requirements: SEC-17, ACL-03, ACL-14, SEC-09, SEC-10.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from saturnmq.acl.addresses import parse_list
from saturnmq.acl.rules import RELOAD_SECONDS, Access, AccessDenied, RequiredRights
from saturnmq.namesrv.settings import NameServerSettings
from saturnmq.protocol.addresses import host_of
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command

RELOAD_MS: Final = int(RELOAD_SECONDS * 1000)
SIGNED: Final = "signed"
BODY_BYTES_MAX: Final = 65_536  # of requests other than registrations, whose bodies name all topics


def _admin(command: Command) -> RequiredRights:
    return RequiredRights(admin=True, changes=True)


class NameServerAccounts:
    """The accounts of one NameServer."""

    def __init__(self, settings: NameServerSettings, clock_ms: Callable[[], int]) -> None:
        from saturnmq.acl.files import home_folder  # a server without accounts runs without these and without yaml
        from saturnmq.acl.plain import PlainValidator

        self._validator = PlainValidator(
            home_folder(settings.rocketmq_home, Path(settings.kv_config_path).parent),
            settings.acl_file,
            compat=False,
            plain_admin=parse_list(settings.acl_plain_admin_addresses),
            trace_bytes_per_second=0,
            clock_ms=clock_ms,
        )
        # The validator's own methods: nothing is added to them.
        self.load = self._validator.load
        self.reload = self._validator.reload

    def check(self, remote_address: str, encrypted: bool, request: Command) -> str:
        """The access key of the administrator who signed a request. Raises AccessDenied."""
        size = len(request.body or b"")
        if size > BODY_BYTES_MAX and request.code != RequestCode.REGISTER_BROKER:  # before its signature is computed
            raise AccessDenied(
                f"a body of {size} bytes is too long for request code={request.code}, at most {BODY_BYTES_MAX}"
            )
        return self._validator.validate(Access(request, host_of(remote_address), encrypted, _admin))
