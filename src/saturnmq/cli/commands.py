"""The command table: name, help, example, options and function of every command, each shared option defined once.

Requirements: CLI-01, CLI-05, CLI-06, CLI-08, CLI-10.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from saturnmq.cli.shard_settings import SHARDS_MAX, shard_count
from saturnmq.cli.table import CliCommand, Parser, flag, option, parser_of, port_number, quantity, whole_number
from saturnmq.protocol.codes import SIGNATURES
from saturnmq.spark.pipelines import EXAMPLES, SUMMARIES

DESCRIPTION: Final = "A message broker compatible with Apache RocketMQ 4.9.7, in Python."

COMMON: Final = (
    flag("--json", help="results and errors as one JSON document each"),
    flag("--quiet", help="no progress, warnings only"),
    flag("--debug", help="log everything, show tracebacks"),
)
VERSION: Final = flag("--version", help="version, commit, Python, implementation, event loop, protocol")

# ---- shared options

DAY_MS: Final = 86_400_000
count: Final = whole_number(1, 1_000_000_000)
concurrency: Final = whole_number(1, 4096)

SETTINGS: Final = (
    option("-c", "--config", type=Path, metavar="FILE", help="properties file with RocketMQ's own key names"),
    option("--set", action="append", default=[], metavar="KEY=VALUE", help="one key; overrides the file"),
    flag("--strict-config", help="an unknown key is an error, not a warning"),
)
SERVER: Final = (
    *SETTINGS,
    flag("-p", "--print-config", help="print every key, value and origin, and exit (not the port)"),
)
HOST: Final = option("--host", metavar="ADDRESS", help="address to listen on (default 127.0.0.1)")
BROKER_PORT: Final = option("--port", type=port_number, metavar="PORT", help="broker port (default 10911)")
FOLDER: Final = "folder of messages and state (storePathRootDir)"
PROFILE: Final = option(
    "--profile", choices=("production",), help="production: do not start without access control, TLS and the like"
)
SHARDS: Final = (
    option(
        "--shards", type=shard_count, metavar="N",
        help="run N brokers of this configuration, one process each: NAME-0 to NAME-(N-1), ports 10 apart; auto: one per processor",
    ),
    option(
        "--shard", type=whole_number(0, SHARDS_MAX - 1), metavar="I",
        help="run the shard I of --shards alone, in this process, as a service manager may",
    ),
)  # fmt: skip
DATA: Final = option("--data", type=Path, metavar="DIR", help=FOLDER)
DATA_REQUIRED: Final = option("--data", type=Path, metavar="DIR", required=True, help=FOLDER)
GROUP: Final = option("-g", "--group", required=True, metavar="NAME", help="the group: brokerName, dLegerGroup")
NODE_FILE: Final = option(
    "-c", "--config", type=Path, metavar="FILE", help="a node's configuration file: its tls.* keys apply"
)
TOOLS_YML: Final = option(
    "--tools-yml", type=Path, metavar="FILE",
    help="accessKey and secretKey, the file of the Java tools (default: $ROCKETMQ_HOME/conf/tools.yml, if it exists)",
)  # fmt: skip
NAME_SERVERS: Final = option(
    "-n", "--name-servers", metavar="HOST:PORT;...",
    help="NameServers (default: SATURNMQ_URL, NAMESRV_ADDR or 127.0.0.1:9876)",
)  # fmt: skip
CLUSTER: Final = (NAME_SERVERS, TOOLS_YML, NODE_FILE)
SIGNATURE: Final = option(
    "--signature", choices=SIGNATURES, default="v1", help="how requests are signed; v2: SaturnMQ only (default v1)"
)
SIGNING_FILE: Final = option(
    "-c", "--config", type=Path, metavar="FILE",
    help="a node's configuration file: its tls.* keys apply, and dledger.clusterSecret signs "
    "(otherwise that in SATURNMQ_CLUSTER_SECRET)",
)  # fmt: skip
PEERS: Final = option("-p", "--peers", required=True, metavar="ID-HOST:PORT;...", help="dLegerPeers")
CHANGE: Final = (GROUP, SIGNING_FILE, PEERS, flag("--dry-run", help="check the change, and do not make it"))
LEDGERS: Final = option("folders", nargs="+", type=Path, metavar="FOLDER", help="folder dledger-ID of a member's store")
STORE: Final = (DATA, *SETTINGS)

# ---- the table

SERVERS: Final = (
    CliCommand(
        "standalone",
        "a NameServer and a broker in one process",
        "saturnmq standalone --data ./data",
        "saturnmq.cli.servers:run_standalone",
        (
            *SERVER, DATA_REQUIRED, HOST, BROKER_PORT, *SHARDS,
            option("--namesrv-port", type=port_number, metavar="PORT", default=9876, help="NameServer port (default 9876)"),
            flag("--console", help="serve the console, too; its files are in the folder console of the data"),
            option(
                "--console-port", type=port_number, metavar="PORT", default=8080, help="port of the console (default 8080)"
            ),
            TOOLS_YML,
        ),
    ),
    CliCommand(
        "namesrv",
        "a NameServer",
        "saturnmq namesrv --port 9876",
        "saturnmq.cli.servers:run_namesrv",
        (
            *SERVER, HOST, PROFILE,
            option("--port", type=port_number, metavar="PORT", help="port to listen on (default 9876)"),
            option(
                "-n", "--name-servers", dest="ignored", metavar="HOST:PORT",
                help="accepted as by mqnamesrv, without effect",
            ),
        ),
    ),
    CliCommand(
        "broker",
        "a broker",
        "saturnmq broker -c broker.conf -n 127.0.0.1:9876",
        "saturnmq.cli.servers:run_broker",
        (
            *SERVER, DATA, HOST, BROKER_PORT, *SHARDS, PROFILE,
            flag("-m", "--print-important", help="as -p, but only the keys that `mqbroker -m` prints"),
            option("-n", "--name-servers", metavar="HOST:PORT;...", help="NameServers to register with"),
        ),
    ),
)  # fmt: skip

HISTORY_FILE: Final = option(
    "--data", type=Path, metavar="FILE", default=Path("history.db"), help="history file, SQLite (default history.db)"
)
CONSOLE_FOLDER: Final = option(
    "--folder", type=Path, metavar="DIR", default=Path("console"),
    help="users, audit log and history of the console (default ./console)",
)  # fmt: skip
USER: Final = option("user", metavar="NAME", help="name of the user")
HISTORY: Final = (
    CliCommand(
        "console",
        "web pages for operators: brokers, topics, groups, their history and changes",
        "saturnmq console -n 127.0.0.1:9876 --folder ./console",
        "saturnmq.cli.console:run_console",
        (
            NAME_SERVERS,
            HOST,
            option("--port", type=port_number, metavar="PORT", default=8080, help="port of the pages (default 8080)"),
            CONSOLE_FOLDER,
            option(
                "--hosts", metavar="NAME,...", default="",
                help="further host names under which browsers ask for the pages; loopback names always do",
            ),
            option("--certificate", type=Path, metavar="FILE", help="TLS certificate, PEM; with --certificate-key"),
            option("--certificate-key", type=Path, metavar="FILE", help="key of the certificate, PEM"),
            option("--webhook", metavar="URL", default="", help="address to which alarms are posted as JSON"),
            option("--mail-server", metavar="HOST:PORT", default="", help="SMTP server for alarms; with --mail-to"),
            option("--mail-to", metavar="ADDRESS,...", default="", help="who gets alarms by e-mail"),
            option(
                "--mail-from", metavar="ADDRESS", default="saturnmq@localhost",
                help="sender of e-mails (default saturnmq@localhost)",
            ),
            option(
                "--mail-tls", choices=("starttls", "implicit", "none"), default="",
                help="TLS to the SMTP server (default: implicit on port 465, none on loopback without a login, otherwise "
                "starttls, which the server must offer)",
            ),
            option("--mail-ca", type=Path, metavar="FILE", help="certificates trusted for it, PEM (default: the system's)"),
            flag("--mail-skip-verify", help="accept any certificate of the SMTP server"),
            option("--mail-user", metavar="NAME", default="", help="login at the SMTP server"),
            option(
                "--mail-password-file", type=Path, metavar="FILE",
                help="file with the password of the login (default: that in SATURNMQ_MAIL_PASSWORD)",
            ),
            NODE_FILE, TOOLS_YML, SIGNATURE,
        ),
    ),
    CliCommand(
        "console user",
        "add, remove or list users of the console; a running console sees the change at once",
        "saturnmq console user list --folder ./console",
    ),
    CliCommand(
        "console user add",
        "add a user of the console, or change role and password of one",
        "saturnmq console user add ann --role viewer --folder ./console",
        "saturnmq.cli.console:run_user_add",
        (
            USER, CONSOLE_FOLDER,
            option("--role", choices=("viewer", "operator", "admin"), required=True, help="what the user may do"),
            flag("--password-stdin", help="read the password from standard input (default: ask for it twice)"),
        ),
    ),
    CliCommand(
        "console user remove",
        "remove a user of the console, which ends its sessions",
        "saturnmq console user remove ann --folder ./console",
        "saturnmq.cli.console:run_user_remove",
        (USER, CONSOLE_FOLDER),
    ),
    CliCommand(
        "console user list",
        "list users of the console with their roles",
        "saturnmq console user list --folder ./console",
        "saturnmq.cli.console:run_user_list",
        (CONSOLE_FOLDER,),
    ),
    CliCommand(
        "collect",
        "keep the history of a cluster: counts of topics, groups and brokers, every minute",
        "saturnmq collect -n 127.0.0.1:9876 --data history.db",
        "saturnmq.cli.servers:run_collect",
        (
            NAME_SERVERS,
            HISTORY_FILE, NODE_FILE, TOOLS_YML, SIGNATURE,
            flag("--once", help="collect now and once, then end"),
        ),
    ),
    CliCommand(
        "history",
        "rate and lag of a topic or a group over time, from a history file",
        "saturnmq history --data history.db --topic orders --since 2h",
        "saturnmq.cli.history:run_history",
        (
            HISTORY_FILE,
            option("--topic", metavar="NAME", help="a topic; with --group: the progress of the group in it"),
            option("--group", metavar="NAME", help="a consumer group, with --topic"),
            option("--cluster", metavar="NAME", default="DefaultCluster", help="cluster (default DefaultCluster)"),
            option(
                "--since", type=quantity("duration", 0, 2**63 - 1), metavar="AGE", default="1h",
                help="how far back, such as 30min, 2h, 7d (default 1h)"),
        ),
    ),
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
            NAME_SERVERS, TOOLS_YML,
            option(
                "-c", "--config", type=Path, metavar="FILE",
                help="a broker's configuration file: it is checked, and its namesrvAddr and tls.* keys apply",
            ),
            option("--data", type=Path, metavar="DIR", help="folder of the store (default: that of -c, or the current folder)"),
            flag("--quick", help="less than 2 s: short timeouts, few measurements"),
        ),
    ),
    CliCommand(
        "deploy",
        "check that clients can use a cluster where it is deployed",
        "saturnmq deploy check -n 127.0.0.1:9876",
    ),
    CliCommand(
        "deploy check",
        "check that NameServers and brokers answer at the addresses that clients are given; changes nothing",
        "saturnmq deploy check -n 127.0.0.1:9876",
        "saturnmq.cli.everyday.doctor:run_deploy_check",
        CLUSTER,
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

STORE_TOOLS: Final = (
    CliCommand("store", "verify, rebuild, repair or save a store, or show a record of it", "saturnmq store verify --data ./data"),
    CliCommand(
        "store verify",
        "read a whole store and report damage; changes nothing",
        "saturnmq store verify --data ./data",
        "saturnmq.cli.store:run_verify",
        (*STORE, flag("--force", help="even while a broker uses the store: what it writes meanwhile may look damaged")),
    ),
    CliCommand(
        "store rebuild",
        "rebuild consume queues and index from the commit log",
        "saturnmq store rebuild --data ./data",
        "saturnmq.cli.store:run_rebuild",
        STORE,
    ),
    CliCommand(
        "store snapshot",
        "save a store to a new folder, also while a broker serves from it",
        "saturnmq store snapshot /backup/monday --data ./data",
        "saturnmq.cli.store:run_snapshot",
        (
            option("target", type=Path, metavar="FOLDER", help="is created; complete files are hard links on the same file system"),
            *STORE,
        ),
    ),
    CliCommand(
        "store restore",
        "make a store from a snapshot, and verify it",
        "saturnmq store restore /backup/monday --data ./data",
        "saturnmq.cli.store:run_restore",
        (option("source", type=Path, metavar="FOLDER", help="a folder made by `store snapshot`"), DATA_REQUIRED),
    ),
    CliCommand(
        "store dump",
        "show one record",
        "saturnmq store dump 4096 --data ./data",
        "saturnmq.cli.store:run_dump",
        (
            *STORE,
            option("offset", type=int, nargs="?", metavar="OFFSET", help="offset in the commit log, bytes"),
            option("--topic", metavar="T", help="with --queue and --queue-offset: the record at a queue offset"),
            option("--queue", type=int, metavar="Q", help="queue id"),
            option("--queue-offset", type=int, metavar="N", help="offset in the queue"),
            option("--file", type=Path, metavar="F", help="with --at: the record in a commit log file"),
            option("--at", type=int, metavar="BYTE", help="position in the file, bytes"),
            flag("--hex", exclusive="form", help="the body in hex, even if it is text"),
            flag("--raw", exclusive="form", help="only the bytes of the body as stored, on stdout"),
        ),
    ),
    CliCommand(
        "store repair",
        "truncate the commit log at its first damaged record; what is removed is kept in a folder",
        "saturnmq store repair --data ./data --yes",
        "saturnmq.cli.store:run_repair",
        (
            *STORE,
            option(
                "--at", type=int, metavar="OFFSET", help="truncate at this record, not at the first damaged one"
            ),
            flag("--yes", help="do it; without this option only the loss is shown"),
        ),
    ),
)  # fmt: skip

ADMIN: Final = (
    CliCommand(
        "admin",
        "the commands of mqadmin, and the state of DLedger groups",
        "saturnmq admin topicList -n 127.0.0.1:9876",
    ),
    CliCommand(
        "admin ledgerStatus",
        "role, term, log and watermarks of each broker of a DLedger group",
        "saturnmq admin ledgerStatus -n 127.0.0.1:9876 -g RaftNode00",
        "saturnmq.cli.admin:run_status",
        (
            option(
                "-n", "--name-servers", required=True, metavar="HOST:PORT;...",
                help="NameServers at which the group is registered",
            ),
            GROUP, NODE_FILE,
            TOOLS_YML, SIGNATURE,
        ),
    ),
    CliCommand(
        "admin ledgerTransfer",
        "transfer the leadership of a DLedger group to a member",
        "saturnmq admin ledgerTransfer -g RaftNode00 -p 'n0-127.0.0.1:40911;n1-127.0.0.1:40912' -t n1",
        "saturnmq.cli.admin:run_transfer",
        (
            GROUP,
            SIGNING_FILE,
            PEERS,
            option("-t", "--to", required=True, metavar="ID", help="the new leader"),
        ),
    ),
    CliCommand(
        "admin ledgerAddLearner",
        "add a member that copies a DLedger group and does not vote yet",
        "saturnmq admin ledgerAddLearner -g RaftNode00 -p 'n0-127.0.0.1:40911;n1-127.0.0.1:40912' -m n2-127.0.0.1:40913",
        "saturnmq.cli.admin:run_add_learner",
        (*CHANGE, option("-m", "--member", required=True, metavar="ID-HOST:PORT", help="the new member")),
    ),
    CliCommand(
        "admin ledgerPromote",
        "make a learner of a DLedger group a voter, when it has copied nearly all",
        "saturnmq admin ledgerPromote -g RaftNode00 -p 'n0-127.0.0.1:40911;n1-127.0.0.1:40912' -m n2",
        "saturnmq.cli.admin:run_promote",
        (*CHANGE, option("-m", "--member", required=True, metavar="ID", help="the learner")),
    ),
    CliCommand(
        "admin ledgerRemove",
        "remove a member from a DLedger group; its id cannot be used again",
        "saturnmq admin ledgerRemove -g RaftNode00 -p 'n0-127.0.0.1:40911;n1-127.0.0.1:40912' -m n0",
        "saturnmq.cli.admin:run_remove",
        (*CHANGE, option("-m", "--member", required=True, metavar="ID", help="the member to be removed")),
    ),
    CliCommand(
        "admin ledgerVerify",
        "read the whole ledgers of stopped members and report damage; changes nothing",
        "saturnmq admin ledgerVerify ./store/dledger-n0",
        "saturnmq.cli.admin:run_verify",
        (LEDGERS,),
    ),
    CliCommand(
        "admin ledgerCompare",
        "find the first entry at which the ledgers of stopped members differ",
        "saturnmq admin ledgerCompare ./n0/dledger-n0 ./n1/dledger-n1",
        "saturnmq.cli.admin:run_compare",
        (LEDGERS,),
    ),
)  # fmt: skip

SPARK: Final = (
    CliCommand(
        "spark",
        "a pipeline on Spark",
        "saturnmq spark --check",
        "saturnmq.cli.spark:run_check",
        (flag("--check", help="report Java, Python and Spark, and whether a worker works"),),
    ),
    CliCommand(
        "spark archive",
        "closed commit log files to a bucket, and back",
        "saturnmq spark archive s3://logs/broker-a --from ./data/store",
        "saturnmq.cli.spark:run_pipeline",
        delegates=True,
    ),
    CliCommand(
        "spark pack",
        "pack what executors of a cluster need into one file",
        "saturnmq spark pack env.tar.gz --needed",
        "saturnmq.cli.spark:run_pipeline",
        delegates=True,
    ),
    *(
        CliCommand(f"spark {name}", summary, EXAMPLES[name], "saturnmq.cli.spark:run_pipeline", delegates=True)
        for name, summary in SUMMARIES.items()
    ),
)

COMMANDS: Final = (
    *SERVERS, *HISTORY, *MESSAGES, *CHECKS, *VIEWS, *BENCHMARKS, *STORE_TOOLS, *ADMIN, *SPARK,
)  # fmt: skip


def build_parser(argv: Sequence[str] | None = None) -> Parser:
    """Build the parser of the command line; with argv, only of the commands that these words name."""
    return parser_of(DESCRIPTION, COMMANDS, COMMON, (VERSION,), argv)
