"""Texts of the pages about dead letters, traces, transactions, delays, accounts, DLedger groups, producers and NameServers.

Requirements: UX-11.
"""

from __future__ import annotations

from typing import Final

OPERATION_TEXTS: Final[dict[str, tuple[str, str]]] = {
    # ---- dead letters
    "dead_letters": ("Dead letters", "死信消息"),
    "dead_letters_none": ("No group has dead letters.", "没有消费组存在死信消息。"),
    "retries_used": ("Retries used up: {count}", "重试次数已用完:{count}"),
    "dead_letters_empty": (
        "This group has no dead letters: every message was consumed within its retries.",
        "该消费组没有死信:所有消息都在重试次数内消费成功。",
    ),
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
    # ---- clients in conflict
    "conflict_client_id": (
        "Two connections use one client id; queues are assigned wrongly:",
        "两个连接使用同一个客户端 ID,队列分配会出错:",
    ),
    "conflict_subscriptions": (
        "Members of the group subscribe differently; messages may be lost:",
        "组内成员的订阅关系不一致,可能丢失消息:",
    ),
    # ---- accounts
    "accounts": ("Accounts", "访问账号"),
    "access_key": ("Access key", "访问密钥"),
    "secret_key": ("Secret key", "私有密钥"),
    "secret_kept": ("empty keeps the present one", "留空则保持不变"),
    "administrator": ("Administrator", "管理员"),
    "yes": ("yes", "是"),
    "no": ("no", "否"),
    "white_address": ("Trusted addresses", "白名单地址"),
    "global_white": ("Global white list", "全局白名单"),
    "topic_default": ("Topics, by default", "主题默认权限"),
    "group_default": ("Groups, by default", "消费组默认权限"),
    "topic_permissions": ("Topic permissions, one topic=PUB|SUB a line", "主题权限,每行一个 topic=PUB|SUB"),
    "group_permissions": ("Group permissions, one group=SUB a line", "消费组权限,每行一个 group=SUB"),
    "account_files": ("Account files", "账号文件"),
    "file": ("File", "文件"),
    "file_version": ("Version", "版本"),
    "changed": ("Changed", "修改时间"),
    "no_accounts": ("This broker gives no accounts: {reason}", "该节点未提供账号:{reason}"),
    "accounts_off": (
        "Access control is off on this broker, so it has no accounts: every client may do everything. To switch it on, give "
        "the broker aclEnable=true and conf/plain_acl.yml, and restart it.",
        "该节点未启用访问控制,没有账号:所有客户端都有全部权限。如需启用,请为节点设置 aclEnable=true 和 conf/plain_acl.yml 并重启。",
    ),
    "put_account": ("Create or change an account", "创建或修改账号"),
    "delete_account": ("Delete an account", "删除账号"),
    "change": ("Change", "修改"),
    "all_masters": ("Changes go to all masters of the cluster {cluster}.", "更改将应用于集群 {cluster} 的所有主节点。"),
    "partly": ("Not on every broker: {reason}", "部分节点失败:{reason}"),
    "show": ("Show", "查看"),
    # ---- DLedger groups
    "ledger": ("DLedger groups", "DLedger 组"),
    "ledger_none": ("No broker belongs to a DLedger group.", "没有节点属于 DLedger 组。"),
    "member": ("Member", "成员"),
    "term": ("Term", "任期"),
    "leader": ("Leader", "领导者"),
    "begin_index": ("First entry", "起始条目"),
    "end_index": ("Last entry", "末尾条目"),
    "committed_index": ("Committed", "已提交"),
    "durable_index": ("Durable", "已持久化"),
    "behind": ("Behind the leader", "落后领导者"),
    "failure": ("Failure", "故障"),
    "transfer": ("Transfer the leadership", "转移领导权"),
    "transfer_to": ("New leader", "新领导者"),
    "transfer_warning": (
        "Nothing is changed yet. Until the new leader has all entries and is elected, the group accepts no messages.",
        "尚未执行任何更改。在新领导者补齐所有条目并当选之前,该组不接受消息。",
    ),
    "transfer_unknown": (
        "The members of this group are not known: no broker gives dLegerPeers in its configuration.",
        "无法获知该组成员:没有节点在配置中提供 dLegerPeers。",
    ),
    "leads": ("leads", "领导"),
    # ---- producers
    "producers": ("Producers", "生产者"),
    "producer_group": ("Producer group", "生产组"),
    "producer_clients": ("Clients of a group for a topic", "某主题的生产者客户端"),
    "no_producers": (
        "No producer is connected. One is listed while its program runs.",
        "没有在线生产者。程序运行期间会列出其生产者。",
    ),
    "last_seen": ("Last heartbeat", "最近心跳"),
    # ---- NameServers
    "name_servers": ("NameServers", "名字服务器"),
    "known_brokers": ("Brokers known", "已知节点"),
    "connection": ("Connection", "连接"),
    "vip_channel": ("VIP channel", "VIP 通道"),
    "tls": ("TLS", "TLS 加密"),
    "on": ("on", "开"),
    "off": ("off", "关"),
    "switch": ("Change the connection", "修改连接"),
    "switch_hint": (
        "For all users of this console until its next start. Without an answer from the new addresses nothing is changed.",
        "对本控制台所有用户生效,直到下次启动。若新地址无响应,则不做更改。",
    ),
    "health_checks": ("Health checks", "健康检查"),
    "check_cluster": ("Every broker answers", "所有节点均有响应"),
    "check_one_broker": ("Topics on one broker only", "仅位于单个节点的主题"),
    # ---- traces
    "traces": ("Traces", "轨迹"),
    "id_or_key": ("Message id or key", "消息 ID 或业务键"),
    "trace_topic": ("Trace topic", "轨迹主题"),
    "no_trace": (
        "There is no trace. Clients send one if their trace is switched on.",
        "没有轨迹。客户端需开启轨迹功能。",
    ),
    "trace_incomplete": ("This trace is incomplete", "该轨迹不完整"),
    "gap_SEND": (
        "no record of the send: the producer did not trace, or its record was lost",
        "没有发送记录:生产者未开启轨迹,或记录已丢失",
    ),
    "gap_DECISION": (
        "a half message without a decision: it is pending, or the record was lost",
        "半消息没有事务结果:尚未决定,或记录已丢失",
    ),
    "gap_BEGIN": ("a delivery without a begin: the record was lost", "投递没有开始记录:记录已丢失"),
    "gap_END": (
        "a delivery without an end: it is in progress, or the record was lost",
        "投递没有结束记录:正在处理,或记录已丢失",
    ),
    "stored_at": ("Broker", "存储节点"),
    "begin": ("Begin", "开始"),
    "end": ("End", "结束"),
    "checked": ("transaction check", "事务回查"),
    "decided": ("transaction end", "事务结束"),
    # ---- transactions and delays
    "waiting": ("Held back", "待处理消息"),
    "undecided": ("Transactions without a decision", "未决事务"),
    "not_exact": (
        "The decisions cannot be read from every broker: messages decided since its last round of checks are listed, too.",
        "部分节点不允许读取决定记录:自上一轮回查以来已决的消息也会列出。",
    ),
    "age": ("Age", "已等待"),
    "checks": ("Checks", "回查次数"),
    "delayed": ("Delayed messages", "延时消息"),
    "level": ("Level", "级别"),
    "delay": ("Delay", "延时"),
    "next_due": ("Next delivery", "下次投递"),
    "timed": ("Messages with a delivery time", "定时消息"),
    "due": ("Delivery", "投递时间"),
    "timed_cut": (
        "Shown are {shown} of {count} messages, the next ones.",
        "仅显示最先投递的 {shown} 条,共 {count} 条。",
    ),
    "timed_cut_more": (
        "Shown are {shown} of more than {count} messages; a part of the waiting messages was not read.",
        "仅显示 {shown} 条,总数超过 {count} 条;部分待投递消息未读取。",
    ),
    "no_cancel": (
        "A waiting message cannot be cancelled: brokers have no request for it.",
        "待投递的消息无法取消:存储节点没有相应的请求。",
    ),
}
