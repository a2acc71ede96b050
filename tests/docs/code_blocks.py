"""The fenced Python blocks of a document, each as the text of a file that runs by itself."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
DEFAULT_ADDRESS: Final = "127.0.0.1:9876"
# With this sentence before its first block a document makes the names of that block part of all others.
SHARES_NAMES: Final = "All examples use these names:\n\n"
_BLOCK: Final = re.compile(r"^```(python[^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block. kind: what follows ```; shared: what the document makes part of every block."""

    page: str
    line: int
    kind: str
    code: str
    shared: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def file(self, address: str) -> str:
        """The text of a file that runs this block against NameServers at `address`; a top-level `await` is run by asyncio."""
        code = self.code
        compiled = compile(code, str(self), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if compiled.co_flags & inspect.CO_COROUTINE:
            code = f"async def example():\n{textwrap.indent(code, '    ')}\n\nimport asyncio\nasyncio.run(example())\n"
        return (self.shared + code).replace(DEFAULT_ADDRESS, address)


def blocks_of(page: str) -> list[Block]:
    """The Python blocks of a document, in order."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    found = list(_BLOCK.finditer(text))
    shared = found[0][2] if found and text[: found[0].start()].endswith(SHARES_NAMES) else ""
    return [
        Block(page, text[: match.start()].count("\n") + 1, match[1], match[2], shared if number else "")
        for number, match in enumerate(found)
    ]


def run_through(page: str, address: str) -> None:
    """Run the blocks of a page in order, with one set of names, as they are pasted into `python -m asyncio`."""
    names: dict[str, object] = {"__name__": "example"}
    with asyncio.Runner() as runner:
        for block in blocks_of(page):
            code = block.code.replace(DEFAULT_ADDRESS, address)
            compiled = compile(code, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if compiled.co_flags & inspect.CO_COROUTINE:
                runner.run(types.FunctionType(compiled, names)())
            else:
                exec(compiled, names)


def pages() -> list[str]:
    """README and the documents, without the specification."""
    found = [path for path in (REPOSITORY / "docs").rglob("*.md") if path.parent.name != "spec"]
    return ["README.md", *sorted(str(path.relative_to(REPOSITORY)) for path in found)]
