"""`saturnmq completion`: the script of a shell, and the words that may follow a line.

The script calls `saturnmq completion bash --line TEXT` for every completion. Commands and options come from the command table,
names of topics and groups from the cluster if it answers in time. Only names that a shell takes literally are offered.

Requirements: CLI-05.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Final

from saturnmq.cli.output import EXIT_DONE, write
from saturnmq.cli.table import CliCommand, Option

NAMES_SECONDS_MAX: Final = 0.3
NAMES_MAX: Final = 1000
_LITERAL: Final = re.compile(r"[A-Za-z0-9_%.-]{1,255}")
_TOPICS: Final = {"topic", "--topic"}
_GROUPS: Final = {"--group", "--groupName", "--consumerGroup"}
_NAME_SERVERS: Final = {"--name-servers", "--namesrvAddr"}

SCRIPTS: Final = {
    "bash": """\
_saturnmq() {
    local IFS=$'\\n'
    COMPREPLY=($(saturnmq completion bash --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o default -F _saturnmq saturnmq
""",
    "zsh": """\
#compdef saturnmq
_saturnmq() {
    local -a words_found
    words_found=("${(@f)$(saturnmq completion zsh --line "${BUFFER[1,CURSOR]}" 2>/dev/null)}")
    if [[ -n ${words_found[1]} ]]; then compadd -a words_found; else _files; fi
}
compdef _saturnmq saturnmq
""",
    "fish": """\
complete -a '(saturnmq completion fish --line (commandline -cp | string collect) 2>/dev/null)' -c saturnmq
""",
}


def run_completion(args: argparse.Namespace) -> int:
    """Print the script of the shell, or what may follow the line of --line."""
    if args.line is None:
        write(SCRIPTS[args.shell].rstrip("\n"))
        return EXIT_DONE
    from saturnmq.cli.commands import COMMON

    def names(kind: str, name_servers: str | None) -> list[str]:
        return names_of_cluster(args, kind, name_servers)

    for candidate in candidates(words_of(args.line), commands(), COMMON, names):
        write(candidate)
    return EXIT_DONE


def commands() -> list[CliCommand]:
    """All commands by their names after `saturnmq`, also those in mqadmin's form."""
    from saturnmq.cli.commands import COMMANDS
    from saturnmq.cli.mqadmin.table import COMMANDS as ADMIN_COMMANDS

    return [*COMMANDS, *(row._replace(name=f"admin {row.name}") for row in ADMIN_COMMANDS)]


def words_of(line: str) -> list[str]:
    """The words after the program's name; the last one is the one to complete, empty after a blank."""
    try:
        tokens = shlex.split(line)
    except ValueError:  # an open quotation mark
        tokens = line.split()
    if not line or line[-1].isspace():
        tokens.append("")
    return tokens[1:]


def candidates(
    tokens: Sequence[str],
    commands: Sequence[CliCommand],
    common: Sequence[Option],
    names: Callable[[str, str | None], list[str]],
) -> list[str]:
    """Completions of the last word. names: those of the cluster, by kind `topics` or `groups` and the value of -n, if given."""
    *before, last = tokens or [""]
    command, positions, waiting, servers = _parsed(before, commands, common)
    options = [*(command.options if command else ()), *common]
    if waiting is not None:
        matches = _values(waiting, names, servers)
    elif last.startswith("-"):
        matches = [name for each in options for name in each.names if name.startswith("--")]
    else:
        prefix = f"{command.name} " if command else ""
        depth = prefix.count(" ")
        matches = [row.name[len(prefix) :] for row in commands if row.name.startswith(prefix)]
        matches = [match for match in matches if " " not in match]
        positionals = [each for each in options if not each.names[0].startswith("-")]
        if positions - depth < len(positionals) and not matches:
            matches = _values(positionals[positions - depth], names, servers)
    return sorted({match for match in matches if match.startswith(last)})


def _parsed(
    tokens: Sequence[str], commands: Sequence[CliCommand], common: Sequence[Option]
) -> tuple[CliCommand | None, int, Option | None, str | None]:
    """The command, how many words are no options, the option that waits for its value, and the value of -n."""
    by_name = {row.name: row for row in commands}
    command: CliCommand | None = None
    positions, waiting, servers = 0, None, None
    for token in tokens:
        if waiting is not None:
            servers = token if _NAME_SERVERS & set(waiting.names) else servers
            waiting = None
        elif token.startswith("-"):
            options = [*(command.options if command else ()), *common]
            option = next((each for each in options if token in each.names), None)
            waiting = option if option is not None and option.takes_value else None
        else:
            longer = f"{command.name} {token}" if command else token
            command = by_name.get(longer, command)
            positions += 1
    return command, positions, waiting, servers


def _values(option: Option, names: Callable[[str, str | None], list[str]], servers: str | None) -> list[str]:
    """Values of an option or argument: its choices, or names; nothing for others, such as files, which the shell completes."""
    if choices := option.keywords.get("choices"):
        return [str(choice) for choice in choices]
    if _TOPICS & set(option.names):
        return names("topics", servers)
    if _GROUPS & set(option.names):
        return names("groups", servers)
    return []


def names_of_cluster(args: argparse.Namespace, kind: str, servers: str | None) -> list[str]:
    """Names of topics or groups that a shell takes literally; none if the cluster does not answer in time."""
    from saturnmq.cli.cluster import admin_of
    from saturnmq.protocol.errors import SaturnError

    async def groups() -> list[str]:
        cluster = await admin.connection.cluster()
        addresses = [addrs[0] for broker in cluster.broker_addr_table.values() if 0 in (addrs := broker.broker_addrs)]
        group_names: set[str] = set()
        for address in addresses:
            group_names |= (await admin.groups.all_on(address)).keys()
        return list(group_names)

    async def listed_names() -> list[str]:
        async with asyncio.timeout(NAMES_SECONDS_MAX), admin:
            return await (admin.topics.names() if kind == "topics" else groups())

    args.name_servers = servers or args.name_servers
    try:
        admin = admin_of(args, timeout_ms=300)  # imports count towards no limit of the network
        names = asyncio.run(listed_names())
    except (SaturnError, OSError, TimeoutError):
        return []
    return [name for name in names if _LITERAL.fullmatch(name)][:NAMES_MAX]
