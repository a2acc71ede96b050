"""Command lines on groups, clients and offsets that are compared with mqadmin's."""

from __future__ import annotations

from admin_compare import Allowed, Line
from prepared import GROUP, TOPIC

_UNKNOWN_CLUSTER = Allowed(
    r"(name server connected to is correct\.)SubscriptionGroupConfig.*",
    r"\1",
    "nothing was created, so nothing is printed",
)

LINES = (
    Line("consumerProgress", rows_sorted=True, masks=((r" \d+ +(-?\d+)$", r" tps \1"),)),
    Line(f"consumerProgress -g {GROUP}", masks=((r"TPS: [\d.]+", "TPS: n"),)),
    Line(f"consumerProgress -g {GROUP} -s true", masks=((r"TPS: [\d.]+", "TPS: n"),)),
    Line("consumerProgress -g unknown", code=1),
    Line(f"getConsumerConfig -g {GROUP}"),
    Line("getConsumerConfig -g unknown"),
    Line("consumerConnection -g unknown", code=1),
    Line(f"consumerConnection -g {GROUP} -b {{broker}}", code=1),
    Line("producerConnection -g unknown -t " + TOPIC, code=1),
    Line("producer -b {broker}", masks=((r"(?m)^producer group .*\n?", ""),)),
    Line(
        "updateSubGroup -b {broker} -g {side}-broker -s false -m true -d true -q 2 -r 3 -i 1 -w 0 -a false", writes=True
    ),
    Line("updateSubGroup -c DefaultCluster -g {side}-cluster", writes=True),
    Line("updateSubGroup -c Nowhere -g x", allowed=(_UNKNOWN_CLUSTER,), code=1),
    Line("updateSubGroup -g x", code=1),
    Line(
        "deleteSubGroup -b {broker} -g {side}-gone",
        before=("updateSubGroup -b {broker} -g {side}-gone",),
        writes=True,
    ),
    Line(
        "deleteSubGroup -c DefaultCluster -g {side}-gone -r true",
        before=("updateSubGroup -b {broker} -g {side}-gone",),
        writes=True,
    ),
    Line(f"cloneGroupOffset -s {GROUP} -d {{side}}-clone -t {TOPIC}", writes=True),
    Line(
        f"resetOffsetByTime -g {{side}}-now -t {TOPIC} -s now",
        before=(f"cloneGroupOffset -s {GROUP} -d {{side}}-now -t {TOPIC}",),
        writes=True,
    ),
    Line(
        f"resetOffsetByTime -g {{side}}-first -t {TOPIC} -s 0 -f false",
        before=(f"cloneGroupOffset -s {GROUP} -d {{side}}-first -t {TOPIC}",),
        writes=True,
    ),
    Line(
        f"resetOffsetByTime -g {{side}}-date -t {TOPIC} -s 2020-01-01#00:00:00:000",
        before=(f"cloneGroupOffset -s {GROUP} -d {{side}}-date -t {TOPIC}",),
        writes=True,
    ),
    Line(
        f"skipAccumulatedMessage -g {{side}}-skip -t {TOPIC}",
        before=(f"cloneGroupOffset -s {GROUP} -d {{side}}-skip -t {TOPIC}",),
        writes=True,
    ),
    Line("resetOffsetByTime -g x -t Nowhere -s now", code=1),
    Line("statsAll", masks=((r" \d+\.\d\d +(\d+\.\d\d)?.*$", " rates"),)),
    Line("statsAll -t " + TOPIC, masks=((r" \d+\.\d\d +(\d+\.\d\d)?.*$", " rates"),)),
)
