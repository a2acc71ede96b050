r"""Lines of the Prometheus text format, version 0.0.4.

    # HELP name text                        in text  \ and line ends are escaped
    # TYPE name counter|gauge|histogram
    name{label="value",...} number          in a value  \  "  and line ends are escaped

All lines of a family stand together, after its HELP and TYPE.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


def escaped(value: str) -> str:
    """A label value, escaped."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


def number(value: float) -> str:
    """A value as Prometheus reads it."""
    if isinstance(value, float) and math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return repr(value)


def head(name: str, kind: str, text: str) -> str:
    """The HELP and TYPE lines of a family."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def template(name: str, labels: Sequence[str], constant: Mapping[str, str]) -> str:
    """A line with one `%s` for each label's value and one for the number; constant: labels whose value is already known.

    Raises ValueError for names that Prometheus does not accept.
    """
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name of a metric")
    for label in (*constant, *labels):
        if _LABEL.fullmatch(label) is None:
            raise ValueError(f"{label!r} is no name of a label")
    pairs = [f'{label}="{escaped(value)}"'.replace("%", "%%") for label, value in constant.items()]
    pairs += [f'{label}="%s"' for label in labels]
    return f"{name}{{{','.join(pairs)}}} %s\n" if pairs else f"{name} %s\n"


def joined(lines: Sequence[str]) -> bytes:
    """Lines as UTF-8; what no text can be (half a surrogate pair) becomes a question mark."""
    return "".join(lines).encode("utf-8", "replace")
