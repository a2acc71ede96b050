"""Validation of topic and group names, before they are used as a table key or in a path, in the wording of a broker.

Requirements: SND-04, SND-05, PR-09.
"""

from __future__ import annotations

import re
from typing import Final

from saturnmq.protocol.codes import GROUP_LENGTH_MAX, NAME_LENGTH_MAX

LEGAL_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")  # matched in full
PATTERN: Final = "^[%|a-zA-Z0-9_-]+$"


def topic_problem(topic: str) -> str | None:
    """Why a topic name is invalid, in Apache RocketMQ's wording; None if it is valid."""
    if not topic or topic.isspace():
        return "The specified topic is blank."
    if LEGAL_NAME.fullmatch(topic) is None:
        return f"The specified topic contains illegal characters, allowing only {PATTERN}"
    if len(topic) > NAME_LENGTH_MAX:
        return "The specified topic is longer than topic max length."
    return None


def group_problem(group: str) -> str | None:
    """Why a consumer group name is invalid, or None. The limit is 255 characters."""
    if not group or group.isspace():
        return "the specified group is blank"
    if LEGAL_NAME.fullmatch(group) is None:
        return f"the specified group contains illegal characters, allowing only {PATTERN}"
    if len(group) > GROUP_LENGTH_MAX:
        return f"the specified group is longer than group max length {GROUP_LENGTH_MAX}."
    return None
