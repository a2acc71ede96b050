"""Texts of the pages that search, follow and count messages: English and Chinese by key.

Requirements: UX-11.
"""

from __future__ import annotations

from typing import Final

SEARCH_TEXTS: Final[dict[str, tuple[str, str]]] = {
    "search_range": ("Search", "搜索消息"),
    "search_hint": (
        "Times: such as 15m or 1d ago, 2026-11-23T08:00 (in the zone of this page), 2026-11-23T08:00Z, start, end. "
        "A property as name or name=value; a JSON path such as items[*].id=42. All conditions must be met.",
        "时间可写 15m、1d(之前)、2026-11-23T08:00(本页时区)、2026-11-23T08:00Z、start 或 end。属性写作 name 或 name=value;"
        "JSON 路径例如 items[*].id=42。所有条件须同时满足。",
    ),
    "from": ("From", "开始"),
    "to": ("To", "结束"),
    "property": ("Property", "属性"),
    "json_path": ("JSON path", "JSON 路径"),
    "text": ("Text in the body", "消息体包含"),
    "tail": ("Live tail", "实时消息"),
    "analyse": ("Analyse", "主题分析"),
    "jobs_empty": (
        "You have no search yet. Fill in the form above, or follow new messages with Live tail.",
        "暂无搜索。请填写上方表单,或用实时消息跟踪新消息。",
    ),
    "nothing_hint": ("Widen the time range, or remove a condition.", "请扩大时间范围或减少条件。"),
    "jobs": ("Your searches", "我的搜索"),
    "job_search": ("Search", "搜索"),
    "job_tail": ("Live tail", "实时消息"),
    "job_analysis": ("Analysis", "主题分析"),
    "job_running": ("running", "进行中"),
    "job_complete": ("complete", "已完成"),
    "job_enough": ("complete up to the limit", "已达到上限"),
    "job_limit": ("ended at the limit of time or messages", "因时间或数量上限而结束"),
    "job_left": ("ended, because no page showed it", "页面已关闭,已结束"),
    "job_cancelled": ("cancelled", "已取消"),
    "job_failed": ("failed", "失败"),
    "no_job": ("There is no such search; results are kept for an hour.", "该搜索不存在;结果保留一小时。"),
    "read_so_far": ("{count} messages read", "已读取 {count} 条"),
    "left_out": ("{count} left out", "略过 {count} 条"),
    "scanned": ("Messages read", "已读取消息"),
    "cancel": ("Cancel", "取消"),
    "size": ("Bytes", "字节"),
    "found_enough": (
        "The search ended at {count} messages; it reads the oldest first, so later ones are missing. Narrow the time range.",
        "已找到 {count} 条,搜索结束;搜索从最早的消息开始,较晚的未列出。请缩小时间范围。",
    ),
    "download_jsonl": ("Download as JSON lines", "下载 JSON 行"),
    "download_csv": ("Download as CSV", "下载 CSV"),
    "search_again": ("New search", "新的搜索"),
    "sampled": ("Messages counted", "统计消息数"),
    "mean_size": ("Mean size", "平均大小"),
    "smallest": ("Smallest", "最小"),
    "largest": ("Largest", "最大"),
    "compressed": ("Compressed", "已压缩"),
    "tags": ("Tags", "标签"),
    "sizes": ("Sizes", "大小"),
    "sent_from": ("Sent from", "发送地址"),
    "share": ("Share", "占比"),
    "consume_directly": ("Let a client consume it again", "让客户端重新消费"),
    "first_client": ("empty: the first one", "留空则取第一个"),
    "reason": ("Reason", "原因"),
}
