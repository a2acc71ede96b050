"""Subscription group table, kept in subscriptionGroup.json.

Requirements: BP-10, MON-15.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Final

from saturnmq.broker.state.creation_quota import CreationQuota
from saturnmq.broker.state.journal import JournaledTable
from saturnmq.broker.state.state_writer import StateWriter
from saturnmq.protocol.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.names import group_problem
from saturnmq.replication.dledger.change_entries import Change, Kind
from saturnmq.store.files.state_file import StateFile

log = logging.getLogger(__name__)

SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"
_SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONSAPI_OWNER",
    "CID_ONSAPI_PERMISSION",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_RMQ_SYS_TRANS",
)


class Groups(JournaledTable):
    """Subscription groups, their version and their file."""

    kind = Kind.GROUP

    def __init__(
        self, file: StateFile, clock_ms: Callable[[], int], *, auto_create: bool, quota: CreationQuota | None = None
    ) -> None:
        """quota: creation quota for groups that clients create (LIM-13)."""
        self._file = file
        self._quota = quota
        self.writer = StateWriter(file, self.pieces)
        self._clock_ms = clock_ms
        self._auto_create = auto_create
        self.table: dict[str, SubscriptionGroupConfig] = {
            name: SubscriptionGroupConfig(name) for name in _SYSTEM_GROUPS
        }
        self.version = DataVersion(clock_ms(), 0)

    def load(self) -> None:
        """Load the file over the defaults. Raises CorruptRecord, StoreError."""
        saved_table = self._file.read(SubscriptionGroupTable.decode_file)
        if saved_table is not None:
            # System groups that the file does not have stay.
            self.table.update(saved_table.subscription_group_table)
            self.version = saved_table.data_version

    def find(self, group: str, peer: str = "") -> SubscriptionGroupConfig | None:
        """Settings of a group. An unknown one is created if auto-creation, its name and the quota allow it, else None.

        peer: `ip:port` of the client. A follower of a DLedger group creates none, but allows what its leader would create.

        Raises ResponseError if the group cannot take the change.
        """
        config = self.table.get(group)
        allowed = self._auto_create or group.startswith(SYSTEM_PREFIX)
        if config is None and allowed and group_problem(group) is None:
            # A follower creates nothing of its own.
            if self.journal is not None and not self.journal.leads:
                return SubscriptionGroupConfig(group)
            # Only for what would be created.
            if self._quota is not None and self._quota.add(self._present(), group, peer) is not None:
                return None
            config = SubscriptionGroupConfig(group)
            self.set(config)
        return config

    def _present(self) -> int:
        """Number of groups that count towards subscriptionGroupsMax: all but those that every broker has."""
        return len(self.table) - sum(name in self.table for name in _SYSTEM_GROUPS)

    def _record(self, group: str, config: SubscriptionGroupConfig | None) -> DataVersion:
        """Record a change in the journal; returns the version after it."""
        before, version = self.version, self.version.next(self._clock_ms())
        if self.journal is not None:
            # For undo, if the group does not decide the change.
            old = self.table.get(group)
            change = Change(Kind.GROUP, group, config, before, version)
            self.journal.record(change, lambda: self._put(group, old, before))
        return version

    def apply(
        self, group: str, config: SubscriptionGroupConfig | None, before: DataVersion, after: DataVersion
    ) -> None:
        """Make a change of the DLedger group's leader; None: delete the group. See `Topics.apply` for the versions."""
        self._put(group, config, after if self.version == before else self.version)

    def _put(self, group: str, config: SubscriptionGroupConfig | None, version: DataVersion) -> None:
        self.table.pop(group, None)
        if config is not None:
            self.table[group] = config
        self.version = version
        self.writer.changed()

    def set(self, config: SubscriptionGroupConfig) -> None:
        """Create or change a group; `confirmed` waits until it is durable.

        Raises ResponseError if the DLedger group cannot take the change.
        """
        # First: a change that cannot be recorded must leave the table as it was.
        version = self._record(config.group_name, config)
        created = None if config.group_name in self.table else config.group_name
        self.table[config.group_name] = config
        self.version = version
        self.writer.changed(created)
        log.info("subscription group set group=%s", config.group_name)

    def disable(self, group: str) -> bool:
        """Set consumeEnable=false, which is saved with the next change (MON-15); returns whether that changed the group."""
        config = self.table.get(group)
        if config is None or not config.consume_enable:
            return False
        disabled = dataclasses.replace(config, consume_enable=False)
        try:
            version = self._record(group, disabled)
        # The monitor that disables goes on; the next round tries again.
        except ResponseError as error:
            log.warning("subscription group not disabled group=%s error=%s", group, error)
            return False
        self.table[group] = disabled
        self.version = version
        return True

    def take(self, source_table: SubscriptionGroupTable) -> None:
        """Replace groups and version by those of another broker; system groups it does not have are kept (DL-C07)."""
        # Every broker needs them.
        system_groups = {name: self.table[name] for name in _SYSTEM_GROUPS if name in self.table}
        self.table = system_groups | source_table.subscription_group_table
        self.version = source_table.data_version
        self.writer.changed()

    def delete(self, group: str) -> bool:
        """Delete a group; returns whether it existed. Raises ResponseError if the DLedger group cannot take the change."""
        if group not in self.table:
            return False
        version = self._record(group, None)
        del self.table[group]
        self.version = version
        self.writer.changed()
        return True

    def pieces(self) -> Iterator[bytes]:
        """Body of GET_ALL_SUBSCRIPTIONGROUP_CONFIG and content of the file, as it is now, in pieces."""
        return SubscriptionGroupTable(dict(self.table), self.version).pieces()
