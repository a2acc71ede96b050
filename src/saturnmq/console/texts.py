"""All texts of the console, English and Chinese, by key.

Templates take them by `t("key")`; a test checks that every key in a template is here and that no page mixes the languages.

Requirements: UX-11.
"""

from __future__ import annotations

from typing import Final

from saturnmq.console.action_texts import ACTION_TEXTS
from saturnmq.console.alarm_texts import ALARM_TEXTS
from saturnmq.console.operation_texts import OPERATION_TEXTS
from saturnmq.console.search_texts import SEARCH_TEXTS

LANGUAGES: Final = {"en": "English", "zh": "中文"}
OWN_TEXTS: Final[dict[str, tuple[str, str]]] = {
    "console": ("SaturnMQ console", "SaturnMQ 控制台"),
    "overview": ("Overview", "概览"),
    "brokers": ("Brokers", "节点"),
    "topics": ("Topics", "主题"),
    "groups": ("Groups", "消费组"),
    "audit": ("Audit log", "审计日志"),
    "log_in": ("Log in", "登录"),
    "login_hint": (
        "The first start of the console prints a password for the user admin, once, in its log: log in as admin with password. "
        "An administrator adds other users, and sets passwords, with: saturnmq console user add NAME --role viewer --folder DIR",
        "首次启动时,控制台会在日志中为用户 admin 打印一次密码:log in as admin with password。"
        "添加其他用户或重置密码:saturnmq console user add NAME --role viewer --folder DIR",
    ),
    "menu": ("Menu", "菜单"),
    "close": ("Close", "关闭"),
    "notice": ("Notice", "提示"),
    "page_missing": ("Page not found", "页面不存在"),
    "page_missing_text": (
        "There is no page {path}. It may be a link to something that was deleted.",
        "不存在页面 {path}。链接指向的内容可能已被删除。",
    ),
    "page_failed": ("The page failed", "页面出错"),
    "page_failed_text": (
        "The console has a defect here; its log shows why. Other pages work.",
        "控制台在此处出错,原因见其日志。其他页面可正常使用。",
    ),
    "to_overview": ("To the overview", "返回概览"),
    "log_out": ("Log out", "退出"),
    "user": ("User", "用户"),
    "password": ("Password", "密码"),
    "wrong_login": ("User or password is wrong.", "用户或密码错误。"),
    "locked": ("Too many wrong passwords. Try again in {seconds} s.", "密码错误次数过多,请在 {seconds} 秒后重试。"),
    "skip": ("Skip to content", "跳到正文"),
    "language": ("Language", "语言"),
    "name": ("Name", "名称"),
    "cluster": ("Cluster", "集群"),
    "address": ("Address", "地址"),
    "role": ("Role", "角色"),
    "version": ("Version", "版本"),
    "state": ("State", "状态"),
    "disk": ("Disk used", "磁盘使用率"),
    "kept": ("Messages kept", "现存消息"),
    "total": ("Messages ever", "累计消息"),
    "in_rate": ("In, msg/s", "生产速率(条/秒)"),
    "out_rate": ("Out, msg/s", "消费速率(条/秒)"),
    "lag": ("Lag", "堆积"),
    "queues": ("Queues", "队列"),
    "queue": ("Queue", "队列"),
    "first": ("First offset", "最小位点"),
    "next": ("Next offset", "最大位点"),
    "consumed": ("Consumed offset", "消费位点"),
    "last_message": ("Last message", "最近消息时间"),
    "permission": ("Permission", "权限"),
    "clients": ("Clients", "客户端"),
    "client": ("Client", "客户端"),
    "program": ("Language", "开发语言"),
    "offline": ("No client is connected.", "没有在线客户端。"),
    "subscriptions": ("Subscriptions", "订阅关系"),
    "expression": ("Expression", "表达式"),
    "consumers": ("Consumed by", "消费者"),
    "none": ("None.", "无。"),
    "search": ("Search", "搜索"),
    "page_of": ("Page {page} of {pages}, {count} in all", "第 {page} 页,共 {pages} 页,{count} 条"),
    "previous": ("Previous", "上一页"),
    "following": ("Next", "下一页"),
    "as_of": ("State of {age} s ago", "{age} 秒前的状态"),
    "collecting": ("The state of the cluster is being collected.", "正在收集集群状态。"),
    "problems": ("Problems", "问题"),
    "no_problems": ("No problems.", "没有问题。"),
    "not_found": ("There is no {what} {name}.", "不存在{what}{name}。"),
    "no_answer": ("does not answer", "无响应"),
    "online": ("online", "在线"),
    "master": ("master", "主"),
    "slave": ("slave", "从"),
    "time_range": ("Time range", "时间范围"),
    "range_1h": ("Last hour", "最近 1 小时"),
    "range_6h": ("Last 6 hours", "最近 6 小时"),
    "range_24h": ("Last 24 hours", "最近 24 小时"),
    "no_history": (
        "No history in this range yet: a value is collected every minute, a line needs two.",
        "此范围内暂无历史数据:每分钟采集一次,至少需要两个点。",
    ),
    "runtime": ("All runtime values", "运行时信息"),
    "configuration": ("Configuration", "配置"),
    "key": ("Key", "键"),
    "value": ("Value", "值"),
    "forbidden": ("Your role does not allow this.", "当前角色无权执行此操作。"),
    "bad_token": ("The form has expired. Load the page again.", "表单已过期,请刷新页面。"),
    "failed": ("It failed: {reason}", "操作失败:{reason}"),
    "done": ("Done.", "已完成。"),
    "create_topic": ("Create or change a topic", "创建或修改主题"),
    "delete_topic": ("Delete this topic", "删除主题"),
    "type_name": ("Type the name to confirm", "输入名称以确认"),
    "delete": ("Delete", "删除"),
    "save": ("Save", "保存"),
    "time": ("Time", "时间"),
    "action": ("Action", "操作"),
    "result": ("Result", "结果"),
    "topic": ("topic", "主题"),
    "group": ("group", "消费组"),
    "broker": ("broker", "节点"),
    "messages": ("Messages", "消息"),
    "message": ("message", "消息"),
    "message_id": ("Message id", "消息 ID"),
    "keys": ("Keys", "业务键"),
    "tag": ("Tag", "标签"),
    "properties": ("Properties", "属性"),
    "body": ("Body", "消息体"),
    "bytes": ("{size} bytes, {form}", "{size} 字节,{form}"),
    "cut": ("Only the beginning is shown.", "仅显示开头部分。"),
    "stored": ("Stored", "存储时间"),
    "born": ("Sent", "发送时间"),
    "offset": ("Offset", "位点"),
    "trace": ("Trace", "消息轨迹"),
    "sent": ("sent", "发送"),
    "received": ("consumed", "消费"),
    "cost": ("Took, ms", "耗时(毫秒)"),
    "send_message": ("Send a test message", "发送测试消息"),
    "send": ("Send", "发送"),
    "nothing_found": ("No message was found.", "未找到消息。"),
    "reset": ("Reset offsets", "重置位点"),
    "preview": ("Preview", "预览"),
    "new_offset": ("New offset", "新位点"),
    "reset_warning": (
        "Nothing is changed yet. Connected clients continue from the new offsets within 10 s.",
        "尚未执行任何更改。在线客户端将在 10 秒内从新位点继续消费。",
    ),
    "server": ("Cluster state cannot be read: {reason}", "无法读取集群状态:{reason}"),
}
PARTS: Final = (OWN_TEXTS, OPERATION_TEXTS, SEARCH_TEXTS, ALARM_TEXTS, ACTION_TEXTS)  # no key is in two of them
TEXTS: Final = {key: texts for part in PARTS for key, texts in part.items()}


def translate(language: str, key: str, **values: object) -> str:
    """The text of a key in a language; English for an unknown language. Raises KeyError for an unknown key."""
    text = TEXTS[key][1 if language == "zh" else 0]
    return text.format(**values) if values else text
