"""Command lines on brokers and clusters that are compared with mqadmin's."""

from __future__ import annotations

from admin_compare import Line

VALUE = ((r"(: ).*$", r"\1..."),)
HOUR = ((r" +\d+\.\d\d +0\.\d{4}", " hour space"), (r"\d+\.\d\d\(", "tps("))
RT = (
    (r"rt=\d+ms", "rt=ms"),
    (r"queueOffset=\d+", "queueOffset="),
    (r"[0-9A-F]{32,}|ID {30}[0-9A-F]*", "id"),
    (r"queueId=\d", "queueId="),
)
CQ = "queryCq -t Printed -q 1"

LINES = (
    Line("getBrokerConfig -b {broker}", rows_sorted=True),
    Line("getBrokerConfig -c DefaultCluster", rows_sorted=True),
    Line("getBrokerConfig -c Nowhere", code=1),
    Line("getBrokerConfig"),
    Line("getBrokerConfig -b 127.0.0.1:1", code=4),
    Line("brokerStatus -b 127.0.0.1:1", code=4),
    Line("brokerStatus -b {broker}", masks=VALUE),
    Line("brokerStatus -c DefaultCluster", masks=VALUE),
    Line("brokerStatus -c Nowhere", code=1),
    Line("brokerStatus"),
    Line("brokerConsumeStats -b {broker}", rows_sorted=True),
    Line("brokerConsumeStats -b {broker} -l 1 -t 3000 -o true", rows_sorted=True),
    Line(f"{CQ} -i 0"),
    Line(f"{CQ} -i 1 -c 1 -b {{broker}}"),
    Line(f"{CQ} -i 0 -c 1 -g printed-group"),
    Line(f"{CQ} -i 999", kinds=("saturn",)),
    Line(f"{CQ} -i 999", name="queryCq of an index that Apache's broker has not", kinds=("apache",), code=1),
    Line("queryCq -t Printed -q 77 -i 0", code=1),
    Line("queryCq -t Nowhere -q 0 -i 0", code=1),
    Line("clusterList", masks=HOUR),
    Line("clusterList -m", masks=((r"\d+", "n"), (r" +", " "))),
    Line("sendMsgStatus -b broker-a -c 3", writes=True, masks=RT),
    Line("sendMsgStatus -b broker-a -c 1 -s 300", writes=True, masks=RT),
    Line("updateBrokerConfig -b {broker} -k fileReservedTime -v 71", writes=True),
    Line("updateBrokerConfig -c DefaultCluster -k fileReservedTime -v 72", writes=True),
    Line("updateBrokerConfig -c Nowhere -k fileReservedTime -v 72", writes=True, code=1),
    Line("updateBrokerConfig -k fileReservedTime -v 72", writes=True, code=1),
    Line("cleanExpiredCQ -b {broker}", writes=True),
    Line("cleanExpiredCQ -c DefaultCluster", writes=True),
    Line("cleanExpiredCQ", writes=True),
    Line("cleanExpiredCQ -c Nowhere", writes=True, code=1),
    Line("deleteExpiredCommitLog -b {broker}", writes=True),
    Line("deleteExpiredCommitLog -c DefaultCluster", writes=True),
    Line("deleteExpiredCommitLog", writes=True),
    Line("deleteExpiredCommitLog -c Nowhere", writes=True, code=1),
    Line("cleanUnusedTopic -b {broker}", writes=True),
    Line("cleanUnusedTopic -c DefaultCluster", writes=True),
    Line("cleanUnusedTopic", writes=True),
    Line("cleanUnusedTopic -c Nowhere", writes=True, code=1),
)
