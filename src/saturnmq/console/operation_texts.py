"""Texts of the pages about dead letters, traces, transactions, delays, accounts, DLedger groups, producers and NameServers.

Requirements: UX-11.
"""

from __future__ import annotations

from typing import Final

OPERATION_TEXTS: Final[dict[str, tuple[str, str]]] = {
    # ---- dead letters
    "dead_letters": ("Dead letters", "死信消息"),
    "dead_letters_none": ("No group has dead letters.", "没有消费组存在死信消息。"),
    "origin_topic": ("Topic", "原主题"),
    "attempts": ("Retries", "重试次数"),
    "select": ("Select", "选择"),
    "resend": ("Resend", "重新投递"),
    "resend_selected": ("Resend selected", "重新投递所选消息"),
    "resend_hint": (
        "A connected client of the group consumes the source message at once. Without one, a copy goes to its retry topic.",
        "在线客户端将立即消费原消息;没有在线客户端时,副本会发送到该消费组的重试主题。",
    ),
    "resent_client": ("consumed by {client}: {result}", "由 {client} 消费:{result}"),
    "resent_retry": ("sent to {topic}", "已发送到 {topic}"),
    "no_time": ("not tried within {seconds} s", "{seconds} 秒内未能执行"),
    "export_csv": ("Export as CSV", "导出 CSV"),
    "export_json": ("Export as JSON lines", "导出 JSON 行"),
    "export_limit": ("At most {count} messages.", "最多 {count} 条消息。"),
    "back": ("Back", "返回"),
}
