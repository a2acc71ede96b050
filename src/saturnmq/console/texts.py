"""All texts of the console, English and Chinese, by key.

Templates take them by `t("key")`; a test checks that every key in a template is here and that no page mixes the languages.

Requirements: UX-11.
"""

from __future__ import annotations

from typing import Final

LANGUAGES: Final = {"en": "English", "zh": "中文"}
TEXTS: Final[dict[str, tuple[str, str]]] = {
    "console": ("SaturnMQ console", "SaturnMQ 控制台"),
    "overview": ("Overview", "概览"),
    "brokers": ("Brokers", "节点"),
    "topics": ("Topics", "主题"),
    "groups": ("Groups", "消费组"),
    "audit": ("Audit log", "审计日志"),
    "log_in": ("Log in", "登录"),
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
    "in_rate": ("In, messages/s", "生产速率(条/秒)"),
    "out_rate": ("Out, messages/s", "消费速率(条/秒)"),
    "lag": ("Lag", "堆积"),
    "queues": ("Queues", "队列"),
    "queue": ("Queue", "队列"),
    "first": ("First offset", "最小位点"),
    "next": ("Next offset", "最大位点"),
    "consumed": ("Consumed offset", "消费位点"),
    "last_message": ("Last message", "最近消息时间"),
    "permission": ("Permission", "权限"),
    "read_write": ("Read and write queues", "读写队列数"),
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
    "history": ("Last 24 hours", "最近 24 小时"),
    "no_history": ("No history. `saturnmq collect` keeps one.", "没有历史数据。可用 `saturnmq collect` 采集。"),
    "runtime": ("Runtime values", "运行时信息"),
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
    "system": ("System topics, too", "包含系统主题"),
    "topic": ("topic", "主题"),
    "group": ("group", "消费组"),
    "broker": ("broker", "节点"),
    "server": ("Cluster state cannot be read: {reason}", "无法读取集群状态:{reason}"),
}


def translate(language: str, key: str, **values: object) -> str:
    """The text of a key in a language; English for an unknown language. Raises KeyError for an unknown key."""
    text = TEXTS[key][1 if language == "zh" else 0]
    return text.format(**values) if values else text
