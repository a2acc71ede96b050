"""Command lines on messages that are compared with mqadmin's."""

from __future__ import annotations

from admin_compare import Line
from prepared import GROUP, TOPIC

# Tools pull messages of a topic; what one side sends is masked, so that neither sees the other's.
_IDS = ((r"\b[0-9A-F]{56}\b", "ID".ljust(32)),)
_TIMES = ((r"(?m)\d+$", "n"), (r"Avg RT: [\d.]+", "Avg RT: n"))

LINES = (
    Line("queryMsgById -i {offset_id}"),
    Line("queryMsgById -i {offset_id},{offset_id}", name="queryMsgById twice"),
    Line("queryMsgById -i nonsense", code=1),
    Line("queryMsgById -i {offset_id} -s false"),
    Line(f"queryMsgByKey -t {TOPIC} -k key-3", rows_sorted=True),
    Line(f"queryMsgByKey -t {TOPIC} -k nothing", code=1),
    Line("queryMsgByKey -t Nowhere -k key-3", code=1),
    Line(f"queryMsgByUniqueKey -t {TOPIC} -i {{unique_id}}"),
    Line(f"queryMsgByUniqueKey -t {TOPIC} -i {{unique_id}} -a"),
    Line(f"queryMsgByOffset -t {TOPIC} -b broker-a -i 1 -o 2"),
    Line(f"queryMsgByOffset -t {TOPIC} -b broker-a -i 1 -o 99"),
    Line("queryMsgTraceById -i {traced_id}"),
    Line("QUERYMSGTRACEBYID -i {traced_id} -t RMQ_SYS_TRACE_TOPIC"),
    Line("queryMsgTraceById -i nothing", code=1),
    Line(f"printMsg -t {TOPIC}"),
    Line(f"printMsg -t {TOPIC} -d false -s TagA||TagB -c GBK"),
    Line(f"printMsg -t {TOPIC} -b 2020-01-01#00:00:00:000 -e 2020-01-02#00:00:00:000"),
    Line("printMsg -t Nowhere", code=1),
    Line(f"printMsgByQueue -t {TOPIC} -a broker-a -i 1"),
    Line(f"printMsgByQueue -t {TOPIC} -a broker-a -i 1 -p true"),
    Line(f"printMsgByQueue -t {TOPIC} -a broker-a -i 1 -p true -d true -f true -b 0"),
    Line(f"consumeMessage -t {TOPIC}"),
    Line(f"consumeMessage -t {TOPIC} -c 3"),
    Line(f"consumeMessage -t {TOPIC} -b broker-a -i 1 -c 2"),
    Line(f"consumeMessage -t {TOPIC} -b broker-a -i 1 -o 3 -g {GROUP} -s 0 -e 1"),
    Line(f"consumeMessage -t {TOPIC} -b broker-a -i 1 -o 99"),
    Line(f"consumeMessage -t {TOPIC} -c 0", code=1),
    Line(f"consumeMessage -t {TOPIC} -i 1", code=1),
    Line(f"consumeMessage -t {TOPIC} -o 1", code=1),
    Line(f"consumeMessage -t {TOPIC} -s 9999999999999", code=1),
    Line(f"consumeMessage -t {TOPIC} -e 9999999999999", code=1),
    Line(f"consumeMessage -t {TOPIC} -s 2 -e 1", code=1),
    Line("sendMessage -t ToDelete -p hello -k {side} -c TagS -b broker-a -i 2", writes=True, masks=_IDS),
    Line("sendMessage -t ToDelete -p hello -i 2", code=1),
    Line("checkMsgSendRT -t ToDelete -a 5 -s 10", writes=True, masks=_TIMES),
)
