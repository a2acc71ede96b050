"""Keys given by environment variables: `SATURNMQ_` and the key in upper snake case, `SATURNMQ_BROKER_NAME` for `brokerName`.

Upper and lower case, underscores and dots do not distinguish two keys, so `SATURNMQ_BROKERNAME` and `SATURNMQ_brokerName` name the
same key; two variables for one key are an error. Pure: the caller passes the variables.

Requirements: CLI-10.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from saturnmq.protocol.errors import ConfigError

PREFIX: Final = "SATURNMQ_"
# Variables that are no keys: of the client, of the runtime, of the test suite, and those that Kubernetes sets for a service
# named `saturnmq`.
_RESERVED_VARIABLES: Final = re.compile(
    r"(LOOP|PURE|URL|ACCESS_KEY|SECRET_KEY|SECURITY_TOKEN|SIGNATURE|NAMESPACE|TIMEOUT|KEY_FILE|CLUSTER_SECRET|ADVERTISED_HOST|"
    r"PULLER|GATE|SHARD_PARENT|(SPARK|SIM|SOAK|REWRITE|TEST|SERVICE)_.*|PORT(_.*)?)"
)


class EnvironmentKey(NamedTuple):
    """A key given by an environment variable."""

    variable: str
    name: str
    text: str


def variable_of(name: str) -> str:
    """The documented variable of a key: `SATURNMQ_LISTEN_PORT` of `listenPort`."""
    snake_case = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name.replace(".", "_"))
    return PREFIX + re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", snake_case).upper()


def read_environment(key_names: Iterable[str], variables: Mapping[str, str]) -> tuple[list[EnvironmentKey], list[str]]:
    """The keys that variables give, and the variables with the prefix that name no key.

    Raises ConfigError that names the variables if two of them give one key.
    """
    names = {_folded(name): name for name in key_names}
    keys: dict[str, EnvironmentKey] = {}
    unrecognized: list[str] = []
    problems: list[str] = []
    for variable in sorted(variables):
        if not variable.startswith(PREFIX):
            continue
        suffix = variable.removeprefix(PREFIX)
        name = names.get(_folded(suffix))
        if name is None:
            if not _RESERVED_VARIABLES.fullmatch(suffix):
                unrecognized.append(variable)
        elif name in keys:
            problems.append(f"{keys[name].variable} and {variable} both set {name}; unset one of them")
        else:
            keys[name] = EnvironmentKey(variable, name, variables[variable])
    if problems:
        raise ConfigError(problems)
    return list(keys.values()), unrecognized


def _folded(name: str) -> str:
    return name.replace("_", "").replace(".", "").lower()
