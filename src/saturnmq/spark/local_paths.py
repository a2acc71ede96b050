"""Paths and URIs that name files of a local disk, read as Spark and Hadoop read them. Does not import pyspark."""

from __future__ import annotations

import re
from pathlib import Path

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?://([^/]*))?(.*)", re.DOTALL)


def local_path(text: str) -> Path | None:
    """Return the local path that a path or URI names, None for another file system. Like Hadoop it decodes no percent signs.

    local_path("file:/data/lake") == local_path("file:///data/lake") == local_path("/data/lake") == Path("/data/lake")
    """
    match = _SCHEME.fullmatch(text)
    if match is None:
        return Path(text)
    scheme, host, path = match.groups()
    return Path(path) if scheme.lower() == "file" and host in (None, "", "localhost") else None


def arrow_uri(text: str) -> str:
    """Return the URI by which Arrow opens the folder that a path or URI names.

    arrow_uri("file:/data/a b") == arrow_uri("/data/a b") == "file:///data/a%20b"
    """
    path = local_path(text)
    return text if path is None else path.absolute().as_uri()
