"""Validation of topic and group names, before they are used as a table key or in a path.

Requirements: SND-04, SND-05, PR-09.
"""

from __future__ import annotations

import re
from typing import Final

from saturnmq.protocol.codes import NAME_LENGTH_MAX

_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
PATTERN: Final = "^[%|a-zA-Z0-9_-]+$"


def topic_problem(topic: str) -> str | None:
    """Why a topic name is invalid, in Apache RocketMQ's wording; None if it is valid."""
    if not topic or topic.isspace():
        return "The specified topic is blank."
    if _LEGAL.fullmatch(topic) is None:
        return f"The specified topic contains illegal characters, allowing only {PATTERN}"
    if len(topic) > NAME_LENGTH_MAX:
        return "The specified topic is longer than topic max length."
    return None


def group_problem(group: str) -> str | None:
    """Why a consumer group name is invalid, or None. The limit is 255 characters."""
    if not group or group.isspace():
        return "the specified group is blank"
    if _LEGAL.fullmatch(group) is None:
        return f"the specified group contains illegal characters, allowing only {PATTERN}"
    if len(group) > 255:
        return "the specified group is longer than group max length 255."
    return None
