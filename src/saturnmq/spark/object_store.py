"""File systems by path or URL: local disks, s3:// and gs:// by pyarrow, every other scheme by fsspec.

Credentials come from where the libraries look for them: environment, files, the machine. A URL that holds some is refused, since
plans and logs show URLs. Errors of a service become one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from pyarrow import fs

from saturnmq.config.settings import without_credentials
from saturnmq.protocol.errors import ConfigError, StoreError
from saturnmq.spark.local_paths import local_path, path_or_url

_OF_SERVICE: Final = re.compile(r"AWS Error|google::cloud|curlCode")
_AWS: Final = re.compile(
    r"AWS Error (\w+)(?: \[.*?\])? during (\w+) operation: (.*?)(?: \(Request ID: .*\))?\Z", re.DOTALL
)
_ADVICE: Final = {
    "ACCESS_DENIED": "its credentials do not have this right",
    "INVALID_ACCESS_KEY_ID": "it does not know the key of AWS_ACCESS_KEY_ID or of the profile",
    "SIGNATURE_DOES_NOT_MATCH": "AWS_SECRET_ACCESS_KEY does not belong to AWS_ACCESS_KEY_ID",
    "NO_SUCH_BUCKET": "there is no such bucket; create it, or correct the URL",
    "NETWORK_CONNECTION": "it cannot be reached; AWS_ENDPOINT_URL and AWS_REGION say where it is",
}


def file_system(url: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or URL, and the path in it. Raises ConfigError, StoreError."""
    path = local_path(url)
    if path is not None:
        return fs.LocalFileSystem(), str(path.absolute())
    try:
        scheme, _, location = path_or_url(url).partition("://")
        with service_errors(url):
            system, root = fs.FileSystem.from_uri(f"s3://{location}" if scheme == "s3a" else url)
            return system, root
    except pa.ArrowInvalid:
        return _by_fsspec(url)
    except ValueError as error:
        raise ConfigError(f"{without_credentials(url)}: {error}") from None
    except OSError as error:
        raise StoreError(f"{url}: {str(error).partition(chr(10))[0]}") from error  # of HDFS it has a line per folder


def _by_fsspec(url: str) -> tuple[fs.FileSystem, str]:
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]

        system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"{url}: pyarrow has no file system of this scheme, and fsspec neither: {error}; pyarrow has s3, gs and abfs"
        ) from None
    return fs.PyFileSystem(fs.FSSpecHandler(system)), path


@contextmanager
def service_errors(url: str) -> Iterator[None]:
    """Raise StoreError, in one line, for an error of an object store; other errors, and a missing file, pass."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if not _OF_SERVICE.search(str(error)):
            raise
        match = _AWS.search(str(error))
        reason = " ".join((match.expand(r"\2: \1, \3") if match else str(error)).split())
        advice = _ADVICE.get(match[1], "") if match else ""
        raise StoreError(f"{url}: {reason}" + (f": {advice}" if advice else "")) from error


def check_bucket(url: str) -> None:
    """Raise StoreError unless the bucket of a URL exists. A listing in a missing bucket is empty, as of a missing folder."""
    system, path = file_system(url)
    bucket = path.partition("/")[0]
    with service_errors(url):
        if bucket and system.get_file_info(bucket).type == fs.FileType.NotFound:
            raise StoreError(f"{url}: there is no bucket {bucket}, or these credentials do not see it")
