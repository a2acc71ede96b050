"""Paths and URIs that name files of a local disk, read as Spark and Hadoop read them. Does not import pyspark."""

from __future__ import annotations

import re
from pathlib import Path

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?://([^/]*))?(.*)", re.DOTALL)
_CREDENTIALS = re.compile(r"[^:]+://[^@]*:[^@]*@")  # abfs://CONTAINER@ACCOUNT has none


def local_path(text: str) -> Path | None:
    """Return the local path that a path or URI names, None for another file system. Like Hadoop it decodes no percent signs.

    local_path("file:/data/lake") == local_path("file:///data/lake") == local_path("/data/lake") == Path("/data/lake")
    """
    match = _SCHEME.fullmatch(text)
    if match is None:
        return Path(text)
    scheme, host, path = match.groups()
    return Path(path) if scheme.lower() == "file" and host in (None, "", "localhost") else None


def path_or_url(text: str) -> str:
    """Return a path or URL as it is. Raises ValueError for a URL with credentials, or with options behind a question mark."""
    if local_path(text) is None:
        if _CREDENTIALS.match(text):
            raise ValueError(
                "a URL is shown in plans and logs: set credentials in the environment, such as AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or in a file of the library, such as ~/.aws/credentials"
            )
        if "?" in text:
            raise ValueError(
                "has options behind a question mark; set them in the environment, such as AWS_ENDPOINT_URL"
            )
    return text
