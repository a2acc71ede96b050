"""The process' limit of file descriptors (RLIMIT_NOFILE), which connections and the store's files share."""

from __future__ import annotations

from typing import Any, Final

try:
    import resource as _resource

    resource: Any = _resource
except ImportError:  # not a Unix: there is no limit to read
    resource = None

UNLIMITED: Final = 2**31
RAISED_MAX: Final = (
    65_536  # 10,000 connections per listener and the store's files fit; tables of the kernel grow with the limit
)


def descriptor_limit() -> int:
    """The soft limit now; UNLIMITED where there is none."""
    if resource is None:
        return UNLIMITED
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else int(soft)


def raise_descriptor_limit(most: int = RAISED_MAX) -> int:
    """Raise the soft limit to the hard limit, at most to `most`; never lowers it. Returns the limit that applies."""
    soft = descriptor_limit()
    if resource is None or soft >= most:
        return soft
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if wanted > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # macOS: the kernel's own maximum is lower than an unlimited hard limit
            return soft
    return descriptor_limit()
