"""The table of admin commands, in the order of Apache's list.

Requirements: ADM-01, ADM-02, ADM-04, CLI-01.
"""

from __future__ import annotations

from typing import Final

from saturnmq.cli.mqadmin import rows_topics
from saturnmq.cli.mqadmin.call import AdminCommand

COMMANDS: Final[tuple[AdminCommand, ...]] = (*rows_topics.ROWS,)
BY_NAME: Final = {name.lower(): command for command in COMMANDS for name in (command.name, *command.aliases)}


def find(name: str) -> AdminCommand | None:
    """The command of a name or alias, in any case."""
    return BY_NAME.get(name.lower())
