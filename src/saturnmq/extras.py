"""The command that installs the packages of an extra, for errors about one that is missing.

It names the packages, with the bounds of the installed version: `pip install 'saturnmq[console]'` works only for a release that an
index has, not for a checkout or a wheel file.

Requirements: PKG-05.
"""

from __future__ import annotations

import sys


def install_command(extra: str) -> str:
    """Return the command, for this interpreter."""
    import re
    import shlex  # here: neither is needed unless something is missing
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("saturnmq") or ()
    except PackageNotFoundError:  # sources on PYTHONPATH
        lines = ()
    of_an_extra = re.compile(r"""(.+?)\s*;.*\bextra\s*==\s*["']([\w-]+)["']""")
    packages = [match[1] for match in map(of_an_extra.fullmatch, lines) if match and match[2] == extra]
    return shlex.join((sys.executable, "-m", "pip", "install", *(packages or (f"saturnmq[{extra}]",))))
