"""The arguments of an admin command's function, and the row that names it.

Requirements: ADM-04, CLI-01.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from saturnmq.cli.mqadmin.options import COMMON, AdminOptions, Opt
from saturnmq.cli.mqadmin.output import AdminOutput

if TYPE_CHECKING:
    from saturnmq.admin import Admin

FAMILY: Final = "saturnmq.cli.mqadmin"


@dataclass(frozen=True)
class Call:
    """One run of a command: its options, the administration library, and where to print."""

    options: AdminOptions
    admin: Admin
    out: AdminOutput


Function = Callable[[Call], Awaitable[int | None]]


@dataclass(frozen=True)
class AdminCommand:
    """One command. function: `module:function` in this package; it returns an exit code, or None for success.

    changes: whether it changes something, and so knows --dry-run. listing: whether --watch is of use.
    is_extension: not in Apache's list.
    """

    name: str
    help: str
    example: str
    function: str
    options: tuple[Opt, ...] = ()
    aliases: tuple[str, ...] = ()
    changes: bool = False
    listing: bool = False
    is_extension: bool = False

    @property
    def all_options(self) -> tuple[Opt, ...]:
        """Its options and the common ones; its own replace common ones of the same letter."""
        return tuple({option.key: option for option in (*COMMON, *self.options)}.values())

    def load(self) -> Function:
        """Import and return the function."""
        module, _, name = self.function.partition(":")
        function: Function = getattr(import_module(f"{FAMILY}.{module}"), name)
        return function
