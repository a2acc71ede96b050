"""Command lines on topics that are compared with mqadmin's."""

from __future__ import annotations

from admin_compare import Line

LINES = (Line("topicList", rows_sorted=True),)
