"""What the handlers of all pages share: the services of the console, the session of a request, and how a page is rendered.

Requirements: UX-11, UX-13, UX-14.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Match

from saturnmq.admin import Admin
from saturnmq.console.alarms import Alarms
from saturnmq.console.bodies import Schemas
from saturnmq.console.charts import RANGES, line_chart, short, size, with_commas
from saturnmq.console.forms import PROBLEM, SHOWN_ON, Form, RefusedForm, WrongField, form_of
from saturnmq.console.jobs import Jobs
from saturnmq.console.state import ClusterState
from saturnmq.console.texts import LABELS, LANGUAGES, N_, texts_of
from saturnmq.console.users import Session, Sessions
from saturnmq.escaping import escaped, quoted
from saturnmq.history import History
from saturnmq.log_limit import LogLimit
from saturnmq.protocol.addresses import network_of
from saturnmq.protocol.codes import version_name
from saturnmq.protocol.errors import ConfigError, LocalProtocolError, SaturnError

audit: Final = logging.getLogger("saturnmq.console.audit")
audit.setLevel(logging.INFO)

COOKIE: Final = "saturnmq_session"
PAGE_ROWS: Final = 50
FIELDS_MAX: Final = 2100  # of a form of a user who is logged in
LOGGED_MAX: Final = 8000  # characters of a form in the audit log
NAVIGATION: Final = (
    (
        N_("Cluster"),
        (
            ("/", N_("Overview"), "viewer"),
            ("/brokers", N_("Brokers"), "viewer"),
            ("/ledger", N_("DLedger groups"), "viewer"),
            ("/name-servers", N_("NameServers"), "viewer"),
        ),
    ),
    (
        N_("Messages"),
        (
            ("/topics", N_("Topics"), "viewer"),
            ("/messages", N_("Find a message"), "viewer"),
            ("/search", N_("Search"), "viewer"),
            ("/traces", N_("Traces"), "viewer"),
            ("/dead-letters", N_("Dead letters"), "viewer"),
            ("/waiting", N_("Held back"), "viewer"),
        ),
    ),
    (
        N_("Clients"),
        (
            ("/groups", N_("Groups"), "viewer"),
            ("/producers", N_("Producers"), "viewer"),
            ("/graph", N_("Graph"), "viewer"),
        ),
    ),
    (
        N_("Operation"),
        (
            ("/alarms", N_("Alarms"), "viewer"),
            ("/accounts", N_("Accounts"), "admin"),
            ("/audit", N_("Audit log"), "admin"),
        ),
    ),
)  # headings of the navigation, and their links: path, label, role that may see it
UNLOGGED: Final = ("csrf", "password", "secret", "body", SHOWN_ON)  # fields of forms that the audit log leaves out
AUDIT_BYTES_MAX: Final = (
    10 * 1024 * 1024
)  # of a file of the audit log: a client that makes the console write fills no disk
AUDIT_FORMER: Final = 5  # former files: audit.log.1 is the newest
_audit_lock: Final = threading.Lock()
_REFUSED: Final = "saturnmq.refused"  # in the scope of a page that is rendered again: the form on it that was refused
Handler = Callable[[Request, "Page"], Awaitable[Response]]
T = TypeVar("T")


class AuditFile(RotatingFileHandler):
    """The file of the audit log, opened for one line, so that administrators may move it. A line that cannot be written raises."""

    def __init__(self, path: Path, bytes_max: int = AUDIT_BYTES_MAX) -> None:
        super().__init__(path, maxBytes=bytes_max, backupCount=AUDIT_FORMER, encoding="utf-8", delay=True)

    def handleError(self, record: logging.LogRecord) -> None:
        raise


@dataclass(frozen=True)
class Services:
    """What the pages work with. preview: the same cluster, but changes are not sent. audit_file: None for the log only.

    schemas: of topics whose bodies are Avro.
    """

    admin: Admin
    preview: Admin
    state: ClusterState
    sessions: Sessions
    history: History | None = None
    audit_file: Path | None = None
    jobs: Jobs = field(default_factory=Jobs)
    alarms: Alarms = field(default_factory=Alarms)
    schemas: Schemas | None = None
    refusals: LogLimit = field(default_factory=lambda: LogLimit(interval_seconds=60.0))

    def record(self, session: Session | None, peer: str, action: str, target: str, result: str) -> None:
        """Write one line about a change to the audit log."""
        user = session.user.name if session is not None else "-"
        line = (
            f"time={datetime.now(UTC).isoformat(timespec='milliseconds')} user={quoted(user)} peer={quoted(peer)} "
            f"action={action} target={quoted(target)} result={quoted(result)}"
        )
        audit.info("%s", line)
        if self.audit_file is not None:
            with _audit_lock, closing(AuditFile(self.audit_file)) as file:
                file.emit(logging.makeLogRecord({"msg": line}))

    async def refused(self, session: Session | None, peer: str, action: str, path: str, why: str) -> None:
        """Write a line about a change that is refused: one per minute and address, others are counted in the next one."""
        suppressed = self.refusals.suppressed(network_of(peer))
        if suppressed is not None:
            result = f"refused: {why}" + (f", {suppressed} more without a line" if suppressed else "")
            await asyncio.to_thread(self.record, session, peer, action, path, result)


@dataclass(frozen=True)
class Rows:
    """One page of a list: numbers start at 1."""

    items: Sequence[Any]
    page: int
    pages: int
    count: int


def paged(items: Sequence[T], text: str | None, rows: int = PAGE_ROWS) -> Rows:
    """The page that a query parameter asks for; the nearest one if there is none."""
    pages = max((len(items) + rows - 1) // rows, 1)
    page = min(max(int(text), 1), pages) if text and text.isdecimal() and len(text) < 9 else 1
    return Rows(items[(page - 1) * rows : page * rows], page, pages, len(items))


class Page:
    """One request of a user who is logged in, or of the login page (session None). refused: the form of the page to show again."""

    def __init__(self, services: Services, request: Request, session: Session | None) -> None:
        self.services = services
        self.request = request
        self.session = session
        self.refused: RefusedForm | None = request.scope.get(_REFUSED)
        cookie_language = request.cookies.get("saturnmq_language", "")
        self.language = (
            cookie_language
            if cookie_language in LANGUAGES
            else preferred_language(request.headers.get("accept-language", ""))
        )
        self.gettext = texts_of(self.language).gettext
        chosen = request.query_params.get("range", "")
        self.range = chosen if chosen in RANGES else next(iter(RANGES))
        now = int(time.time())
        self.span = now - RANGES[self.range], now

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        """A page, or only its content for a live update."""
        part = self.request.headers.get("hx-request") == "true" and "hx-boosted" not in self.request.headers
        shared = {
            "form": self.form,
            "language": self.language,
            "languages": LANGUAGES,
            "session": self.session,
            "path": self.request.url.path,
            "query": self.request.url.query,
            "frame": "part.html" if part else "page.html",
            "navigation": NAVIGATION,
            "range": self.range,
            "ranges": RANGES,
            "span": self.span,
            "stale_warning": self.stale_warning() if self.session is not None else "",
        }
        content = environment_of(self.language).get_template(template).render(shared | values)
        return HTMLResponse(content, status if self.refused is None else 400)

    def form(self, action: str, *others: str, method: str = "post", **hidden: str) -> Form:
        """A form of this page (see `form_of`). One that is posted names the page, so that it can be shown again."""
        form = form_of(self.refused, action, *others, *(() if action else (self.address,)), **hidden)
        if method == "post":
            form.hidden[SHOWN_ON] = self.address
        return form

    @property
    def address(self) -> str:
        """Path and query, as the browser sent them."""
        scope = self.request.scope
        return "?".join(
            filter(None, (scope["raw_path"].decode(errors="replace"), scope["query_string"].decode(errors="replace")))
        )

    def stale_warning(self) -> str:
        """What to say above a state of the cluster that is not that of now; empty if it is."""
        state = self.services.state
        if not state.is_stale:
            return ""
        reason = f" ({state.problem})" if state.problem else ""
        return self.gettext(
            "The cluster is not seen now{reason}: this is its state of {age} s ago.", reason=reason, age=state.view_age
        )

    def may(self, role: str) -> bool:
        """Whether the user has a role."""
        return self.session is not None and self.session.user.may(role)

    @property
    def user(self) -> str:
        """Name of the user; empty before the login."""
        return self.session.user.name if self.session is not None else ""

    @property
    def peer(self) -> str:
        """Address of the browser."""
        return self.request.client.host if self.request.client is not None else "-"


@cache
def environment_of(language: str) -> Environment:
    """The templates in a language. One environment each: texts are globals, which macros of other files see, too."""
    environment = Environment(
        loader=PackageLoader("saturnmq.console"), autoescape=select_autoescape(["html"]), undefined=StrictUndefined
    )
    texts = texts_of(language)
    environment.globals.update(
        _=texts.gettext,
        pgettext=texts.pgettext,
        labels=LABELS,
        chart=line_chart,
        short=short,
        with_commas=with_commas,
        size=size,
        safe_name=escaped,
        when=when,
        when_iso=when_iso,
        version_name=version_name,
    )
    return environment


def when(ms: int) -> Markup:
    """A time, which the script of the console shows in the zone of the browser, with UTC on hover; empty for none."""
    if not 0 < ms < 253_402_300_800_000:
        return Markup("")
    text = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return Markup(f'<time datetime="{text.replace(" ", "T")}Z" title="{text} UTC">{text}</time>')  # noqa: S704 - digits only


def when_iso(text: str) -> Markup:
    """A time of the audit log, as `when` shows it; empty if it is none."""
    try:
        return when(int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        return Markup("")


def preferred_language(header: str) -> str:
    """Chinese if the browser asks for it before English."""
    for part in header.split(","):
        code = part.split(";")[0].strip().lower()
        if code.startswith(("zh", "en")):
            return code[:2]
    return "en"


def viewing(
    services: Services, handler: Handler, role: str = "viewer", *, action: str = "", form_above: bool = False
) -> Callable[[Request], Awaitable[Response]]:
    """A route for users with a role; others are sent to the login page or refused. action: of a change, to log refusals.

    form_above: a preview, whose form is on the page above it.
    """

    async def route(request: Request) -> Response:
        session = services.sessions.find(request.cookies.get(COOKIE, ""))
        if session is None:
            if (
                request.headers.get("hx-request") == "true"
            ):  # htmx would follow a redirect and put the login into the page
                return Response(status_code=204, headers={"hx-redirect": "/login"})
            return RedirectResponse("/login", 303)
        page = Page(services, request, session)
        if not page.may(role):
            if action:
                await services.refused(session, page.peer, action, request.url.path, f"needs the role {role}")
            return page.render("message.html", 403, message=page.gettext("Your role does not allow this."))
        try:
            return await handler(request, page)
        except (ConfigError, LocalProtocolError) as error:  # of what was typed
            return await refused_form(request, page, error, above=form_above)
        except SaturnError as error:  # of what a server answered, or did not answer
            return page.render("message.html", 502, message=page.gettext("It failed: {reason}", reason=error.message))

    return route


def failure_pages(services: Services) -> dict[Any, Callable[[Request, Exception], Awaitable[Response]]]:
    """Handlers of paths that do not exist and of defects, as pages of the console."""

    async def missing_page(request: Request, error: Exception) -> Response:
        page = Page(services, request, services.sessions.find(request.cookies.get(COOKIE, "")))
        text = page.gettext(
            "There is no page {path}. It may be a link to something that was deleted.", path=request.url.path[:200]
        )
        return page.render("message.html", 404, heading=page.gettext("Page not found"), message=text)

    async def defect(request: Request, error: Exception) -> Response:
        page = Page(services, request, services.sessions.find(request.cookies.get(COOKIE, "")))
        return page.render(
            "message.html",
            500,
            heading=page.gettext("The page failed"),
            message=page.gettext("The console has a defect here; its log shows why. Other pages work."),
        )

    return {404: missing_page, 500: defect}


async def refused_form(request: Request, page: Page, error: SaturnError, *, above: bool) -> Response:
    """The page that a refused form is on, with the values and the problem; a page with the problem alone if it is not known.

    above: the form of this preview is on the page above it.
    """
    form = await request.form() if request.method == "POST" else request.query_params
    values = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
    # Without its query: a page whose form asks for the page itself would be refused again.
    own = page.address.partition("?")[0]
    address = dict(values).get(SHOWN_ON, "") if request.method == "POST" else own.rpartition("/")[0] if above else own
    wrong = error.field if isinstance(error, WrongField) else ""
    response = await _page_again(request, address, RefusedForm(request.scope["path"], values, error.message, wrong))
    return response or page.render("message.html", 400, message=error.message, alert=True)


async def _page_again(request: Request, address: str, refused: RefusedForm) -> Response | None:
    """The page of an address, by its own function, with a refused form; None for no page of ours, or one without that form."""
    path, _, query = address.partition("?")
    scope = {
        **request.scope, "method": "GET", "path": unquote(path), "raw_path": path.encode(),
        "query_string": query.encode(), _REFUSED: refused,
    }  # fmt: skip
    for route in request.app.state.pages if _REFUSED not in request.scope else ():
        match, child = route.matches(scope)
        if match is Match.FULL:
            response: Response = await route.endpoint(Request({**scope, **child}))
            return response if PROBLEM.encode() in bytes(response.body) else None
    return None


def changing(services: Services, action: str, handler: Handler, role: str) -> Callable[[Request], Awaitable[Response]]:
    """A route that changes something: the token of the session is required, and the change is logged, done or not."""

    async def checked(request: Request, page: Page) -> Response:
        form = await request.form(max_fields=FIELDS_MAX)
        # A session that ended since the page was shown has another token: a form of before does nothing.
        token, session = form.get("csrf"), page.session
        if session is None or not isinstance(token, str) or not same_token(token, session.csrf):
            await services.refused(session, page.peer, action, request.url.path, "without the token of the session")
            return page.render("message.html", 403, message=page.gettext("The form has expired. Load the page again."))
        target = request.url.path
        shown = " ".join(f"{name}={value}" for name, value in form.multi_items() if name not in UNLOGGED)[:LOGGED_MAX]
        try:
            response = await handler(request, page)
        except SaturnError as error:  # a change that failed may have been made in part
            await asyncio.to_thread(services.record, session, page.peer, action, f"{target} {shown}", error.message)
            raise
        await asyncio.to_thread(
            services.record, session, page.peer, action, f"{target} {shown}", f"{response.status_code}"
        )
        return response

    return viewing(services, checked, role, action=action)


def same_token(sent: str, expected: str) -> bool:
    """Compare two tokens in constant time."""
    from hmac import compare_digest

    return compare_digest(sent.encode(), expected.encode())
