"""Which topic and group names are allowed, checked before they touch a table or a path. Source: SND-04, SND-05, PR-09."""

from __future__ import annotations

import re
from typing import Final

from saturnmq.protocol.codes import NAME_LENGTH_MAX

_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
PATTERN: Final = "^[%|a-zA-Z0-9_-]+$"


def topic_problem(topic: str) -> str | None:
    """Why a name is no topic, in the original's words; None when it is one."""
    if not topic or topic.isspace():
        return "The specified topic is blank."
    if _LEGAL.fullmatch(topic) is None:
        return f"The specified topic contains illegal characters, allowing only {PATTERN}"
    if len(topic) > NAME_LENGTH_MAX:
        return "The specified topic is longer than topic max length."
    return None


def group_problem(group: str) -> str | None:
    """Why a name is no consumer group; its retry topic must fit a topic name."""
    if not group or group.isspace():
        return "the specified group is blank"
    if _LEGAL.fullmatch(group) is None:
        return f"the specified group contains illegal characters, allowing only {PATTERN}"
    if len(group) > 255:
        return "the specified group is longer than group max length 255."
    return None
