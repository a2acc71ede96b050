"""Rows of the command table for the everyday commands.

Requirements: CLI-01, CLI-05, CLI-06.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from saturnmq.cli.table import CliCommand, flag, option, quantity, whole_number

DAY_MS: Final = 86_400_000
count: Final = whole_number(1, 1_000_000_000)
concurrency: Final = whole_number(1, 4096)


CLUSTER: Final = (
    option(
        "-n", "--name-servers", metavar="HOST:PORT;...",
        help="NameServers (default: SATURNMQ_URL, NAMESRV_ADDR or 127.0.0.1:9876)",
    ),
    option(
        "--tools-yml", type=Path, metavar="FILE",
        help="accessKey and secretKey, the file of the Java tools (default: $ROCKETMQ_HOME/conf/tools.yml, if it exists)",
    ),
    option("-c", "--config", type=Path, metavar="FILE", help="a node's configuration file: its tls.* keys apply"),
)  # fmt: skip
TOPIC: Final = option("topic", metavar="TOPIC", help="the topic; of a group, %%RETRY%%GROUP or %%DLQ%%GROUP")
FILTER: Final = (
    option("--tag", metavar="EXPRESSION", exclusive="filter", help="only messages with these tags: 'paid || refunded'"),
    option("--sql", metavar="EXPRESSION", exclusive="filter", help="only messages whose properties match, as SQL92"),
    option("--grep", metavar="PATTERN", help="only messages whose body contains this regular expression; on this side"),
)
FORMAT: Final = option(
    "--format", choices=("text", "json", "hex"), default="text",
    help="text: one line each, off a terminal only the body, control characters escaped; json: one document each, complete; "
    "hex: the body (default text)",
)  # fmt: skip
COUNT: Final = option("--count", type=count, metavar="N", help="end after this many messages")

MESSAGES: Final = (
    CliCommand(
        "send",
        "send a message, or one per line of standard input",
        "saturnmq send orders 'hello' --tag paid --key order-1",
        "saturnmq.cli.everyday.send:run_send",
        (
            TOPIC,
            option("body", nargs="?", metavar="BODY", help="the body; - or nothing: one message per line of standard input"),
            option("--tag", metavar="TAG", help="the tag"),
            option("--key", action="append", default=[], metavar="KEY", help="a key of the index; may be repeated"),
            option("--property", action="append", default=[], metavar="NAME=VALUE", help="a property; may be repeated"),
            option(
                "--delay", type=quantity("duration", 0, 2**63 - 1), metavar="DURATION",
                help="deliver after this time, such as 90s",
            ),
            option("--count", type=count, metavar="N", default=1, help="send each message this many times (default 1)"),
            option(
                "--format", choices=("text", "json", "hex"), default="text",
                help="of the body or line; json: what tail --format json prints, or an object with body, tag, keys, properties "
                "(default text)",
            ),
            flag("--whole", help="all of standard input is one message"),
            *CLUSTER,
        ),
    ),
    CliCommand(
        "tail",
        "print the messages of a topic as they arrive; without a group, nothing is consumed",
        "saturnmq tail orders --from 10m --tag paid",
        "saturnmq.cli.everyday.tail:run_tail",
        (
            TOPIC,
            option(
                "--from", dest="start", metavar="WHERE", default="last",
                help="first, last, an offset of every queue, a duration before now such as 10m, or an ISO 8601 time (default last)",
            ),
            *FILTER, FORMAT, COUNT,
            flag("--no-follow", help="end at the newest message"),
            *CLUSTER,
        ),
    ),
    CliCommand(
        "consume",
        "print messages as a member of a consumer group, or what a group would get next",
        "saturnmq consume orders --group billing --peek",
        "saturnmq.cli.everyday.tail:run_consume",
        (
            TOPIC,
            option("-g", "--group", required=True, metavar="NAME", help="the consumer group"),
            flag("--ack", exclusive="mode", help="join the group, print and acknowledge: others do not get these messages"),
            flag("--peek", exclusive="mode", help="print what the group has not consumed, and change nothing"),
            *FILTER, FORMAT, COUNT,
            option(
                "--idle", type=quantity("duration", 1, DAY_MS, "above 0 and at most 24h"), metavar="DURATION",
                 help="with --ack: end when no message arrives for so long, such as 10s"),
            *CLUSTER,
        ),
    ),
)  # fmt: skip

CHECKS: Final = (
    CliCommand(
        "doctor",
        "check this machine, a configuration file and a cluster, and say what to do; changes nothing",
        "saturnmq doctor -n 127.0.0.1:9876 --data ./data",
        "saturnmq.cli.everyday.doctor:run_doctor",
        (
            *CLUSTER[:2],
            option(
                "-c", "--config", type=Path, metavar="FILE",
                help="a broker's configuration file: it is checked, and its namesrvAddr and tls.* keys apply",
            ),
            option("--data", type=Path, metavar="DIR", help="folder of the store (default: that of -c, or the current folder)"),
            flag("--quick", help="less than 2 s: short timeouts, few measurements"),
        ),
    ),
)  # fmt: skip

BENCH_TOPIC: Final = option(
    "topic", nargs="?", metavar="TOPIC", default="BenchmarkTest", help="the topic (default BenchmarkTest)"
)
BENCH: Final = (
    option("--count", type=count, metavar="N", help="end after this many messages"),
    option(
        "--duration",
        type=quantity("duration", 1, DAY_MS),
        metavar="DURATION",
        default="10s",
        help="end after this time (default 10s)",
    ),
    *CLUSTER,
)
SIZE: Final = option(
    "--size", type=quantity("size", 1, 2**22), metavar="SIZE", default="128",
    help="of a body, such as 128 or 4KiB (default 128)",
)  # fmt: skip
CONCURRENCY: Final = option(
    "--concurrency", type=concurrency, metavar="N", default=64, help="sends at a time, 1..4096 (default 64)"
)
BENCHMARKS: Final = (
    CliCommand("bench", "rates and latencies of a cluster, seen from here", "saturnmq bench send --duration 10s"),
    CliCommand(
        "bench send",
        "rate and latency of concurrent sends",
        "saturnmq bench send --size 1KiB --concurrency 64",
        "saturnmq.cli.everyday.bench:run_send",
        (
            BENCH_TOPIC, SIZE, CONCURRENCY,
            option("--batch", type=concurrency, metavar="N", default=1, help="messages per request, 1..4096 (default 1)"),
            *BENCH,
        ),
    ),
    CliCommand(
        "bench consume",
        "rate of reading what is stored, and latency of a pull; without a group, nothing is consumed",
        "saturnmq bench consume orders --count 1000000",
        "saturnmq.cli.everyday.bench:run_consume",
        (BENCH_TOPIC, *BENCH),
    ),
    CliCommand(
        "bench e2e",
        "latency from a send to a waiting reader, at a fixed rate",
        "saturnmq bench e2e --rate 500",
        "saturnmq.cli.everyday.bench:run_e2e",
        (
            BENCH_TOPIC, SIZE, CONCURRENCY,
            option("--rate", type=count, metavar="N", default=1000, help="messages per second (default 1000)"),
            *BENCH,
        ),
    ),
)  # fmt: skip

VIEWS: Final = (
    CliCommand(
        "top",
        "brokers, topics by rate and groups by lag, as they change",
        "saturnmq top -n 127.0.0.1:9876 --interval 2s",
        "saturnmq.cli.everyday.top:run_top",
        (
            option(
                "--interval", type=quantity("duration", 500, 3_600_000, "in 500ms..1h"), metavar="DURATION", default="5s",
                 help="between two looks at the cluster (default 5s)"),
            option("--rows", type=count, metavar="N", default=20, help="of topics and of groups, at most (default 20)"),
            flag("--once", help="print one view and end"),
            flag("--system", help="also topics and groups of the brokers: retry, dead letters, traces, internal ones"),
            *CLUSTER,
        ),
    ),
    CliCommand(
        "completion",
        "the script that completes commands, options, topics and groups in a shell",
        "saturnmq completion bash > ~/.local/share/bash-completion/completions/saturnmq",
        "saturnmq.cli.everyday.completion:run_completion",
        (
            option("shell", choices=("bash", "zsh", "fish"), help="the shell"),
            option("--line", metavar="TEXT", help="print what may follow this line instead of the script"),
            *CLUSTER,
        ),
    ),
    CliCommand(
        "launchers",
        "write mqbroker, mqnamesrv and mqshutdown into a folder, for scripts that call Apache RocketMQ's programs",
        "saturnmq launchers ./bin",
        "saturnmq.cli.launchers:run_launchers",
        (option("folder", type=Path, metavar="DIR", help="the folder; files there that are not ours are kept"),),
    ),
)  # fmt: skip

EVERYDAY: Final = (*MESSAGES, *CHECKS, *VIEWS, *BENCHMARKS)
