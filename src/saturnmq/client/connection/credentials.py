"""Credentials for brokers with access control: the key file of Java clients.

Requirements: ACL-18.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from saturnmq.client.connection.url import ClientSettings
from saturnmq.config.settings import parse_properties
from saturnmq.protocol.errors import ConfigError

# The properties of a key file: AccessKey, SecretKey, SecurityToken.
_NAMES: Final = {"AccessKey": "access_key", "SecretKey": "secret_key", "SecurityToken": "security_token"}


async def with_key_file(settings: ClientSettings) -> ClientSettings:
    """The settings with the credentials of their key file; unchanged without a key file, or if access_key is set.

    The file is read in a thread. Raises ConfigError, whose text contains no value of the file.
    """
    if settings.key_file is None or settings.access_key:
        return settings
    return await asyncio.to_thread(_read, settings, Path(settings.key_file))


def _read(settings: ClientSettings, path: Path) -> ClientSettings:
    try:
        pairs = parse_properties(path.expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"key_file {path} cannot be read: {reason}") from error
    credentials: dict[str, Any] = {
        key: pairs[name].strip() for name, key in _NAMES.items() if pairs.get(name, "").strip()
    }
    missing = [name for name in ("AccessKey", "SecretKey") if _NAMES[name] not in credentials]
    if missing:
        raise ConfigError(f"key_file {path} must hold AccessKey and SecretKey, missing: {', '.join(missing)}")
    return replace(settings, **credentials)
