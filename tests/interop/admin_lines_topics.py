"""Command lines on topics that are compared with mqadmin's."""

from __future__ import annotations

from admin_compare import Allowed, Line

NEW = "updateTopic -c DefaultCluster -t"
UNKNOWN_CLUSTER = Allowed(r"correct\.[^\n]+", "correct.", "ours stops there, with exit code 1, and claims no success")

LINES = (
    Line("topicList", rows_sorted=True),
    Line("topicList -c", rows_sorted=True),
    Line("topicRoute -t Printed"),
    Line("topicRoute -t Nowhere", code=1),
    Line("topicRoute -t Printed -l"),
    Line("topicStatus -t Printed"),
    Line("topicStatus -t Nowhere", code=1),
    Line("topicClusterList -t Printed"),
    Line("topicClusterList -t Nowhere", code=1),
    Line("allocateMQ -t Printed -i ip1"),
    Line("allocateMQ -t BenchmarkTest -i ip1,10.0.0.2,c,ip4,ip-five"),
    Line("allocateMQ -t Printed -i c,a,c,b,e,d"),
    Line("updateTopic -t Missing", code=1),
    Line("updateTopic -c DefaultCluster -t {side}Plain", writes=True),
    Line("updateTopic -b {broker} -t {side}OnBroker -r 2 -w 3 -p 4 -u true -s true", writes=True),
    Line("updateTopic -b {broker} -t {side}Ordered -o true", writes=True),
    Line("updateTopic -c DefaultCluster -t {side}Ordered2 -o TRUE -w 5 -p 2", writes=True),
    Line("updateTopic -c Nowhere -t {side}Lost", writes=True, allowed=(UNKNOWN_CLUSTER,), code=1),
    Line("updateTopic -c DefaultCluster -t bad!name", writes=True, code=1),
    Line("updateTopicPerm -t {side}P1 -b {broker} -p 4", writes=True, before=(f"{NEW} {{side}}P1",)),
    Line("updateTopicPerm -t {side}P2 -b {broker} -p 6", writes=True, before=(f"{NEW} {{side}}P2",)),
    Line("updateTopicPerm -t {side}P3 -c DefaultCluster -p 2", writes=True, before=(f"{NEW} {{side}}P3 -r 3",)),
    Line("updateTopicPerm -t {side}P4 -b 127.0.0.1:1 -p 2", writes=True, before=(f"{NEW} {{side}}P4",), code=1),
    Line("updateTopicPerm -t Printed -p 4", writes=True, code=1),
    Line("updateTopicPerm -t Nowhere -p 4 -c DefaultCluster", writes=True, code=1),
    Line("updateTopicPerm -t Printed -p 4 -c Nowhere", writes=True, code=1),
    Line("updateOrderConf -t {side}O1 -m put -v broker-a:3;broker-b:4", writes=True),
    Line("updateOrderConf -t {side}O2 -m put", writes=True, code=1),
    Line("updateOrderConf -t {side}O3 -m other", writes=True, code=1),
    Line(
        "updateOrderConf -t {side}O4 -m get",
        writes=True,
        before=("updateOrderConf -t {side}O4 -m put -v broker-a:3",),
    ),
    Line("updateOrderConf -t {side}O5 -m get", writes=True, code=1),
    Line(
        "updateOrderConf -t {side}O6 -m delete",
        writes=True,
        before=("updateOrderConf -t {side}O6 -m put -v broker-a:3",),
    ),
    Line("deleteTopic -c DefaultCluster -t {side}D1", writes=True, before=(f"{NEW} {{side}}D1",)),
    Line(
        "deleteTopic -c Nowhere -t {side}D2",
        writes=True,
        allowed=(UNKNOWN_CLUSTER, Allowed(r"^delete .*\n", "", "")),
        code=1,
    ),
)
