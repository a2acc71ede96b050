"""Texts of the alarms, the graph and the configuration of brokers: English and Chinese by key.

Requirements: UX-11.
"""

from __future__ import annotations

from typing import Final

ALARM_TEXTS: Final[dict[str, tuple[str, str]]] = {
    "alarms": ("Alarms", "告警"),
    "no_alarms": ("No alarms.", "没有告警。"),
    "alarm_history": ("Past alarms", "告警历史"),
    "since": ("Since", "开始时间"),
    "began": ("began", "开始"),
    "ended": ("ended", "恢复"),
    "rule": ("Rule", "规则"),
    "rules": ("Rules", "规则"),
    "every_group": ("all groups", "所有消费组"),
    "min_count": ("Clients at least (0: off)", "最少客户端数(0 关闭)"),
    "max_diff": ("Lag at most (0: off)", "最大堆积(0 关闭)"),
    "change_limits": ("Change rules", "修改规则"),
    "alarm_cluster": ("cluster not reachable", "集群不可用"),
    "alarm_missing": ("members not registered", "节点未注册"),
    "forget": ("Forget", "不再期望"),
    "forget_hint": (
        "Removed on purpose: expect it no more.",
        "已下线,不再期望其注册。",
    ),
    "alarm_lag": ("lag", "堆积"),
    "alarm_disk": ("disk", "磁盘"),
    "alarm_slave": ("slave behind", "从节点落后"),
    "alarm_dead_letters": ("dead letters", "死信增长"),
    "alarm_broker": ("broker does not answer", "节点无响应"),
    "alarm_leader": ("no master", "没有主节点"),
    "alarm_members": ("too few clients", "客户端过少"),
    "limit_lag": ("Lag of a group, messages", "消费组堆积(条)"),
    "limit_disk": ("Disk used, percent", "磁盘使用率(%)"),
    "limit_slave_bytes": ("Slave behind, bytes", "从节点落后(字节)"),
    "limit_dead_letters": ("New dead letters in 10 min", "10 分钟内新增死信"),
    "limit_head_wait": ("Oldest waiting send or pull, ms", "最早等待的生产或拉取请求(毫秒)"),
    "limit_page_cache": ("Append in progress, ms", "写入页缓存耗时(毫秒)"),
    "alarm_head_wait": ("requests wait", "请求等待"),
    "alarm_page_cache": ("page cache busy", "页缓存繁忙"),
    "limit": ("Limit", "阈值"),
    "group_rules": ("Rules of groups", "消费组规则"),
    "one_group": ("one group", "单个消费组"),
    "stale_state": (
        "The cluster is not seen now{reason}: this is its state of {age} s ago.",
        "当前无法获取集群状态{reason},以下是 {age} 秒前的状态。",
    ),
    "unknown_now": ("not known now", "当前未知"),
    "graph": ("Graph", "关系图"),
    "graph_more": (
        "{count} more are not drawn. Search to narrow the graph.",
        "另有 {count} 项未绘制,请搜索以缩小范围。",
    ),
    "graph_label": ("Which groups consume which topics", "消费组与主题的关系"),
    "old_value": ("Value now", "当前值"),
    "new_value": ("New value", "新值"),
    "change_key": ("Change a key", "修改配置项"),
    "config_hint": (
        "Nothing is changed yet. The broker decides whether the key may change at run time.",
        "尚未执行任何更改。该配置项能否在运行时修改由节点决定。",
    ),
}
