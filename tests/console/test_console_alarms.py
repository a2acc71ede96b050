"""Alarms: findings of a survey, their begin and end, the file of rules, the pages, and what is sent."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from browsing import Times

from certificates import write_certificate
from mailserver import mail_server
from saturnmq.admin import Admin
from saturnmq.admin.mail import PASSWORD_VARIABLE, Mailer
from saturnmq.admin.survey import BrokerState, GroupState, Survey, TopicProgress, TopicState
from saturnmq.cli.commands import build_parser
from saturnmq.cli.console import mailer_of
from saturnmq.console.alarms import HISTORY_MAX, TRIES, AlarmEvent, Alarms, GroupRule, Rules, RulesFile, webhook
from saturnmq.console.app import build
from saturnmq.console.state import REFRESH_SECONDS
from saturnmq.protocol.bodies import TopicConfig
from saturnmq.protocol.errors import ConfigError
from waiting import until

Open = Callable[..., Any]
HOSTILE = '<script>alert("x")</script>\u202e'


def survey(
    *,
    lag: int = 0,
    disk: str = "0.1",
    slave: int = 100,
    dead: int = 0,
    problem: str = "",
    send: str = "20",
    pull: str = "0",
    lock: str = "30",
) -> Survey:
    runtime = {
        "commitLogDiskRatio": disk,
        "commitLogMaxOffset": "100",
        "sendThreadPoolQueueHeadWaitTimeMills": send,
        "pullThreadPoolQueueHeadWaitTimeMills": pull,
        "pageCacheLockTimeMills": lock,
    }
    master = BrokerState("C", "b", 0, "h:1", runtime, problem)
    follower = BrokerState("C", "b", 1, "h:2", {"commitLogMaxOffset": str(slave)})
    topics = {("C", "%DLQ%g"): TopicState("C", "%DLQ%g", dead, 0, {"b": TopicConfig("t")}, {"b": dead})}
    return Survey([master, follower], topics, {("C", "g"): GroupState("C", "g", {"t": TopicProgress(0, lag)})}, {})


def rules() -> Rules:
    limits = {"lag": 10, "disk": 85, "slave_bytes": 50, "dead_letters": 2, "head_wait": 20, "page_cache": 30}
    return Rules(limits, {"m": GroupRule(2, 0)})


@pytest.mark.spec("OPS-17")
@pytest.mark.parametrize(
    ("found", "rule", "value"),
    [
        ({"lag": 11}, "lag", "11"),
        ({"disk": "0.9"}, "disk", "90 %"),
        ({"slave": 10}, "slave", "90 B"),
        ({"problem": "no answer"}, "broker", "no answer"),
        ({"send": "21"}, "head_wait", "send 21 ms"),
        ({"pull": "30"}, "head_wait", "pull 30 ms"),
        ({"lock": "31"}, "page_cache", "31 ms"),
    ],
)
def test_alarm_begins_once_and_ends(
    found: dict[str, Any], rule: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    alarms = Alarms()
    alarms.rules = rules()
    for _ in range(2):
        alarms.look(survey(**found), {})
    assert [(one.rule, one.value, one.began) for one in alarms.events] == [(rule, value, True)]
    alarms.look(survey(), {})
    assert alarms.active == {} and not alarms.events[-1].began
    assert [text.partition(" what=")[0] for text in caplog.messages] == [
        f"alarm {state} rule={rule}" for state in ("began", "ended")
    ]


@pytest.mark.spec("CON-07", "OPS-17")
def test_members_dead_letters_and_masters_are_watched() -> None:
    clock = Times()
    alarms = Alarms(clock=clock)
    alarms.rules = rules()
    alarms.look(survey(), {"m": 1})
    assert list(alarms.active) == [("members", "m")]
    alarms.look(survey(), {"m": None})  # the brokers did not answer
    assert list(alarms.active) == [("members", "m")]
    alarms.look(survey(dead=1), {"m": 2})
    assert alarms.active == {}
    alarms.look(survey(dead=2), {"m": 2})
    assert alarms.active["dead_letters", "C/g"].value == "+2"
    clock.now += 601
    alarms.look(survey(dead=2), {"m": 2})
    assert alarms.active == {}
    lone = survey()
    alarms.look(Survey(lone.brokers[1:], {}, {}, {}), {"m": 2})
    assert list(alarms.active) == [("leader", "C/b")]
    alarms.look(survey(), {"m": 2})
    assert alarms.active == {}
    for _ in range(HISTORY_MAX):
        alarms.look(survey(), {"m": 0})
        alarms.look(survey(), {"m": 3})
    assert len(alarms.events) == HISTORY_MAX


def test_dead_letters_count_from_the_first_one_of_a_watched_broker() -> None:
    def seen(*totals: int | None, problem: str = "") -> Survey:
        brokers = [BrokerState("C", name, 0, f"{name}:1", {}) for name in "ab"]
        configs = {name: TopicConfig("t") for name, total in zip("ab", totals, strict=False) if total != 0}
        known = {name: total for name, total in zip("ab", totals, strict=False) if total}
        topics = {("C", "%DLQ%g"): TopicState("C", "%DLQ%g", 0, 0, configs, known)} if configs else {}
        return Survey(brokers, topics, {}, {"b:1": problem} if problem else {})

    def grown(*surveys: Survey) -> str:
        alarms = Alarms(clock=Times())
        for each in surveys:
            alarms.look(each, {})
        return alarms.active["dead_letters", "C/g"].value if alarms.active else ""

    assert grown(seen(7, 0)) == ""  # they were there before the console
    assert grown(seen(0, 0), seen(1, 0)) == "+1"
    assert grown(seen(7, 0), seen(7, 2), seen(9, 2)) == "+4"
    assert grown(seen(7, 0, problem="no answer"), seen(7, 5)) == ""  # what b had is not known
    assert grown(seen(7, 5), seen(7, 0, problem="no answer"), seen(7, 6)) == "+1"
    assert grown(seen(None, 0), seen(7, 0), seen(8, 0)) == "+1"  # its first total was not answered
    assert grown(seen(7, 0), seen(3, 0)) == "+3"  # deleted, and created again
    assert grown(seen(7, 0), seen(0, 0), seen(9, 0)) == "+9"  # as before, but seen in between


@pytest.mark.parametrize(
    ("found", "rule", "off"),
    [
        ({"lag": 10}, {"lag": 11}, "lag"),
        ({"disk": "0.85"}, {"disk": "0.851"}, "disk"),
        ({"slave": 50}, {"slave": 49}, "slave_bytes"),
        ({"send": "20"}, {"send": "21"}, "head_wait"),
        ({"pull": "20"}, {"pull": "21"}, "head_wait"),
        ({"lock": "30"}, {"lock": "31"}, "page_cache"),
    ],
)
def test_value_at_the_limit_is_allowed_and_zero_is_no_limit(
    found: dict[str, Any], rule: dict[str, Any], off: str
) -> None:
    alarms = Alarms()
    alarms.rules = rules()
    alarms.look(survey(**found), {})
    assert alarms.active == {}
    alarms.look(survey(**rule), {})
    assert len(alarms.active) == 1
    alarms.rules = Rules(rules().limits | {off: 0})
    alarms.look(survey(**rule), {})
    assert alarms.active == {}


def test_slave_is_compared_only_while_both_answer() -> None:
    def seen(master: str, slave: str) -> Survey:
        ends = {"commitLogMaxOffset": "1000"}, {"commitLogMaxOffset": "0"}
        return Survey([BrokerState("C", "b", 0, "h:1", ends[0], master), BrokerState("C", "b", 1, "h:2", ends[1], slave)],
                      {}, {}, {})  # fmt: skip

    def alarmed(master: str, slave: str) -> set[str]:
        alarms = Alarms()
        alarms.rules = rules()
        alarms.look(seen(master, slave), {})
        return {rule for rule, _ in alarms.active}

    assert alarmed("", "") == {"slave"}
    assert alarmed("silent", "") == alarmed("", "silent") == {"broker"}


def test_rule_of_a_group_overrides_the_limit_of_all() -> None:
    alarms = Alarms()
    for general, own, lag, alarmed in (
        (10, 100, 100, False), (10, 100, 101, True), (100, 10, 11, True), (100, 10, 10, False), (0, 10, 11, True),
        (10, 0, 11, True), (10, 0, 10, False), (0, 0, 10**9, False),
    ):  # fmt: skip
        alarms.rules = Rules({"lag": general, "dead_letters": 0}, {"g": GroupRule(0, own)})
        alarms.look(survey(lag=lag), {"g": 0})
        assert bool(alarms.active) is alarmed, (general, own, lag)


@pytest.mark.spec("CON-07")
async def test_limits_are_accepted_up_to_their_largest_value() -> None:
    alarms = Alarms()
    most = {"lag": 2**62, "disk": 100, "slave_bytes": 2**62, "dead_letters": 2**31, "head_wait": 2**31,
            "page_cache": 2**31}  # fmt: skip
    await alarms.change(Rules(most))
    assert alarms.rules.limits == most
    for name, value in most.items():
        await alarms.change(Rules({name: 0}))
        for wrong in (value + 1, -1):
            with pytest.raises(ConfigError, match=rf"{name} {wrong} must be in 0\.\.{value}"):
                await alarms.change(Rules({name: wrong}))
    with pytest.raises(ConfigError, match=r"speed 1 must be in 0\.\.0"):
        await alarms.change(Rules({"speed": 1}))
    groups = {f"g{number}": GroupRule(1, 0) for number in range(500)}
    await alarms.change(Rules({}, groups))
    with pytest.raises(ConfigError, match="501 groups have rules; at most 500 may"):
        await alarms.with_group("one more", GroupRule(1, 0))
    await alarms.with_group("g7", GroupRule(2, 3))
    assert alarms.rules.groups["g7"] == GroupRule(2, 3) and len(alarms.rules.groups) == 500
    assert Rules().limits == {"lag": 100_000, "disk": 85, "slave_bytes": 67_108_864, "dead_letters": 1,
                              "head_wait": 1000, "page_cache": 500}  # fmt: skip


async def test_rules_are_evaluated_each_minute_whatever_fails() -> None:
    class Surveys:
        problem = "refused"
        asked: ClassVar[list[float]] = []
        answers: ClassVar[list[Any]] = [
            None,
            ValueError("a defect"),
            Survey([], {}, {}, {}),
            survey(),
            survey(lag=10**9),
        ]

        async def recent(self, seconds: float) -> Survey | None:
            self.asked.append(seconds)
            answer = self.answers[len(self.asked) - 1]
            if isinstance(answer, Exception):
                raise answer
            assert answer is None or isinstance(answer, Survey)
            return answer

    slept: list[tuple[float, dict[tuple[str, str], str]]] = []
    counts: list[int] = []
    ended = asyncio.Event()
    alarms = Alarms(counted=lambda at, count: counts.append(count))

    async def sleep(seconds: float) -> None:
        slept.append((seconds, {key: event.value for key, event in alarms.active.items()}))
        if len(slept) == len(Surveys.answers):
            ended.set()
            await asyncio.Event().wait()

    async with Admin("127.0.0.1:1") as admin:
        watching = asyncio.ensure_future(alarms.run(Surveys(), admin, sleep))
        await ended.wait()
        watching.cancel()
        await asyncio.wait([watching])
        await asyncio.sleep(0)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    cluster = ("cluster", "127.0.0.1:1")
    assert slept == [
        (60.0, {cluster: "refused"}),
        (60.0, {cluster: "alarms not evaluated: ValueError('a defect')"}),
        (60.0, {cluster: "no broker is registered"}),
        (60.0, {}),
        (60.0, {("lag", "C/g"): "1000000000"}),
    ]
    assert Surveys.asked == [30.0] * 5 and counts == [1, 1, 0, 1]


async def test_event_is_tried_again_after_5_and_10_seconds() -> None:
    pauses: list[float] = []
    sent: list[str] = []
    failures = 2

    async def send(subject: str, document: dict[str, Any]) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise OSError("refused")
        assert subject == f"cluster began: {document['what']}" and document["event"] == "alarm"
        sent.append(document["what"])

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    alarms = Alarms(None, send)
    for count in range(201):
        alarms.unreachable([f"h:{count}"], "silent")
    assert alarms.unsent == 1, "200 wait at most"
    sending = asyncio.ensure_future(alarms._send(sleep))
    await until(lambda: len(sent) == 200)
    assert pauses == [5.0, 10.0] and alarms.unsent == 1
    failures = 3
    alarms.unreachable(["h:lost"], "silent")
    alarms.unreachable(["h:next"], "silent")
    await until(lambda: sent[-1] == "h:next")
    assert pauses == [5.0, 10.0] * 2 and alarms.unsent == 2 and "h:lost" not in sent
    sending.cancel()
    silent = Alarms()
    for count in range(300):
        silent.unreachable([f"h:{count}"], "silent")
    assert silent.unsent == 0, "without a receiver nothing is lost"


async def test_failed_evaluation_is_an_alarm() -> None:
    class Surveys:
        problem = ""

        async def recent(self, seconds: float) -> Survey:
            raise ValueError("a defect")

    alarms, slept = Alarms(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.set()
        await asyncio.Event().wait()

    async with Admin("127.0.0.1:1;127.0.0.1:2") as admin:
        watching = asyncio.ensure_future(alarms.run(Surveys(), admin, sleep))
        await slept.wait()
        watching.cancel()
    assert [(one.what, one.value) for one in alarms.listed()] == [
        ("127.0.0.1:1;127.0.0.1:2", "alarms not evaluated: ValueError('a defect')")
    ]


async def test_missing_broker_is_forgotten_with_a_form(console: Open) -> None:
    async with console("127.0.0.1:1") as one:
        await one.log_in()
        alarms = one.services.alarms
        for each in (survey(), *[Survey(survey().brokers[:1], {}, {}, {})] * 2):
            alarms.look(each, {})
        assert alarms.active["missing", "C/b"].value == "1 of 2"
        assert 'name="broker" value="C/b"' in (await one.browser.get("/alarms")).text
        form = {"csrf": await one.csrf_of("/alarms"), "broker": "C/b"}
        forgotten = await one.browser.post("/do/alarms/forget", data=form)
        assert (forgotten.status_code, forgotten.headers["location"]) == (303, "/alarms")
        assert alarms.active == {}
        assert (await one.browser.post("/do/alarms/forget", data=form)).status_code == 400


@pytest.mark.spec("CON-07")
async def test_rules_are_kept_with_the_version_before(tmp_path: Path) -> None:
    path = tmp_path / "alarms.json"
    alarms = Alarms(RulesFile(path))
    await alarms.with_group("g", GroupRule(2, 1000))
    assert json.loads(path.read_text())["groups"] == {"g": {"minCount": 2, "maxDiffTotal": 1000}}
    await alarms.with_group("g", GroupRule())
    assert Alarms(RulesFile(path)).rules.groups == {}
    assert "g" in json.loads((tmp_path / "alarms.json.bak").read_text())["groups"]
    with pytest.raises(ConfigError, match=r"disk 101 must be in 0\.\.100"):
        await alarms.change(Rules({"disk": 101}))
    for text in ("[]", "{", '{"limits": {"lag": []}, "groups": {}}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ConfigError, match="alarm rules"):
            RulesFile(path).read()


@pytest.mark.spec("CON-07")
async def test_page_shows_alarms_and_changes_rules(console: Open) -> None:
    async with console("127.0.0.1:1") as one:
        await one.log_in()
        alarms = one.services.alarms
        alarms.active["lag", HOSTILE] = AlarmEvent(1, True, "lag", HOSTILE, "5")
        alarms.events.append(alarms.active["lag", HOSTILE])
        page = (await one.browser.get("/alarms")).text
        assert page.count("&lt;script&gt;") == 2 and "\u202e" not in page
        csrf = await one.csrf_of("/alarms")
        form = {
            "csrf": csrf,
            "lag": "7",
            "disk": "80",
            "slave_bytes": "0",
            "dead_letters": "3",
            "head_wait": "9",
            "page_cache": "0",
        }
        changed = await one.browser.post("/do/alarms", data=form)
        assert (changed.status_code, changed.headers["location"]) == (303, "/alarms")
        assert alarms.rules.limits == {name: int(value) for name, value in form.items() if name != "csrf"}
        assert (await one.browser.post("/do/alarms", data=form | {"disk": "101"})).status_code == 400
        group = {"csrf": csrf, "group": HOSTILE, "minCount": "2", "maxDiffTotal": "9"}
        for wrong in ({"group": " "}, {"group": "g" * 256}, {"minCount": "-1"}):
            assert (await one.browser.post("/do/alarms/group", data=group | wrong)).status_code == 400
        changed = await one.browser.post("/do/alarms/group", data=group)
        assert (changed.status_code, changed.headers["location"]) == (303, "/alarms")
        assert alarms.rules.groups == {HOSTILE: GroupRule(2, 9)}
        await one.browser.post("/do/alarms/group", data={"csrf": csrf, "group": "g" * 255, "minCount": "1"})
        assert alarms.rules.groups == {HOSTILE: GroupRule(2, 9), "g" * 255: GroupRule(1, 0)}
        page = (await one.browser.get("/alarms", headers={"accept-language": "zh"})).text
        assert "<script>alert" not in page and "告警" in page
        assert "action=alarms_group" in (one.folder / "audit.log").read_text()


async def test_application_takes_surveys_and_watches_while_it_runs(
    console: Open, caplog: pytest.LogCaptureFixture
) -> None:
    async with console("127.0.0.1:1") as one:
        services = one.services
        async with build(services).router.lifespan_context(None):
            await until(lambda: services.alarms.active)
            assert services.alarms.listed()[0].value == services.state.problem
            caplog.clear()
            await until(lambda: caplog.text.count("no survey") >= 2, REFRESH_SECONDS * 3)
        assert [task.get_name() for task in asyncio.all_tasks() if "alarm" in repr(task) or "state" in repr(task)] == []


async def test_sending_is_tried_a_few_times_and_never_waited_for() -> None:
    tried = 0
    ended = asyncio.Event()

    async def fails(subject: str, document: dict[str, Any]) -> None:
        nonlocal tried
        tried += 1
        raise OSError("refused")

    async def works(subject: str, document: dict[str, Any]) -> None:
        assert document["rule"] == "lag" and document["event"] == "alarm"
        ended.set()

    class Surveys:
        problem = ""

        async def recent(self, seconds: float) -> Survey:
            return survey(lag=10**9)

    async def sleep(seconds: float) -> None:
        if seconds > 30:
            await asyncio.Event().wait()

    alarms = Alarms(None, fails, works)
    async with Admin("127.0.0.1:1") as admin:
        watching = asyncio.ensure_future(alarms.run(Surveys(), admin, sleep))
        await asyncio.wait_for(ended.wait(), 30)
    assert tried == TRIES and alarms.unsent == 1
    watching.cancel()


class Taking(http.server.BaseHTTPRequestHandler):
    """Keeps posted documents; redirects /moved."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.taken.append((self.path, self.headers["content-type"], body))  # type: ignore[attr-defined]
        self.send_response(302 if self.path == "/moved" else 200)
        self.send_header("location", "/other")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Nothing: the test looks at what was taken."""


@pytest.fixture
def receiver() -> Iterator[Any]:
    with http.server.HTTPServer(("127.0.0.1", 0), Taking) as server:
        server.taken = []  # type: ignore[attr-defined]
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server
        server.shutdown()
        serving.join()


@pytest.mark.realtime
def test_webhook_posts_json_and_follows_no_redirect(receiver: Any) -> None:
    url = f"http://127.0.0.1:{receiver.server_port}"
    asyncio.run(webhook(url)("", {"rule": "lag"}))
    with pytest.raises(urllib.error.HTTPError):
        asyncio.run(webhook(f"{url}/moved")("", {"rule": "lag"}))
    assert [taken[1:] for taken in receiver.taken] == [("application/json", b'{"rule": "lag"}')] * 2
    with pytest.raises(ConfigError, match="--webhook"):
        webhook("file:///etc/passwd")


@pytest.mark.realtime
def test_mail_has_no_lines_of_a_hostile_name() -> None:
    with mail_server() as server:
        mailer = Mailer(server.address, "a@b", "c@d,e@f")
        asyncio.run(mailer.send("lag began: x\r\nBcc: evil@b", {"what": "x\r\nBcc: evil@b"}))
    letter = server.raw[0].decode()
    assert "Subject: [SaturnMQ] lag began: x" in letter and "\nBcc" not in letter
    for server_text, to in (("nowhere", "a@b"), ("h:99999", "a@b"), ("h:25", "a"), ("h:25", "a@b\nBcc: c@d")):
        with pytest.raises(ConfigError, match="--mail"):
            Mailer(server_text, "a@b", to)


def mailer(*words: str) -> Mailer | None:
    return mailer_of(build_parser().parse_args(["console", *words]))


@pytest.mark.realtime
def test_options_of_the_console_give_tls_and_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = write_certificate(tmp_path, "mail")
    password = tmp_path / "password"
    password.write_text("s3cret\n")
    with mail_server(certificate, accounts={"mq": "s3cret"}) as server:
        words = (
            "--mail-server",
            server.address,
            "--mail-to",
            "a@b",
            "--mail-ca",
            str(certificate[0]),
            "--mail-user",
            "mq",
        )
        for more in (("--mail-password-file", str(password)), ()):
            made = mailer(*words, *more)
            assert made is not None
            asyncio.run(made.send("lag began: billing", {}))
            password.unlink(missing_ok=True)
            monkeypatch.setenv(PASSWORD_VARIABLE, "s3cret")
            words = (*words[:6], "--mail-tls", "starttls", "--mail-user", "mq")
    assert server.senders == [("mq", True)] * 2


def test_options_of_mail_that_have_no_effect_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert mailer() is None
    for words, message in (
        (("--mail-tls", "none", "--mail-user", "mq"), "--mail-tls, --mail-user without effect: no --mail-server"),
        (("--mail-server", "h:25"), "belong together"),
        (("--mail-server", "h:25", "--mail-to", "a@b", "--mail-password-file", "f"), "f needs --mail-user NAME"),
    ):
        with pytest.raises(ConfigError, match=message):
            mailer(*words)
    mailer("--mail-server", "h:25", "--mail-to", "a@b", "--mail-tls", "none")
    mailer("--mail-server", "h:25", "--mail-to", "a@b", "--mail-skip-verify")
    mailer("--mail-server", "127.0.0.1:25", "--mail-to", "a@b")
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2 and "clear text" in warnings[0] and "--mail-skip-verify" in warnings[1]
