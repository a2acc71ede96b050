"""A form with wrong input: the page it is on is shown again, with what was typed and with the problem beside the field.

The field has the focus, so the browser scrolls to it. A problem that names no field of the form stands first in the form.

Requirements: UX-13, UX-16.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from html.parser import HTMLParser
from typing import Final
from urllib.parse import unquote

from saturnmq.protocol.errors import ConfigError

UNKEPT: Final = ("csrf", "password", "secret")  # fields that keep the value of the page
SHOWN_ON: Final = (
    "shown_on"  # field with the page of a form that was refused: the browser names the address it was sent to
)
PROBLEM_ID: Final = "problem"  # of the element with the problem
_FIELDS: Final = ("input", "select", "textarea")
_MARKS: Final = f'aria-invalid="true" aria-describedby="{PROBLEM_ID}" autofocus'  # of the wrong field
_TYPED: Final = ("text", "search", "number", "")  # types of inputs whose value a user types


@dataclass
class _Form:
    """A form of a page: the paths that it may be sent to, its hidden fields, and the names of the fields that users fill."""

    paths: set[str] = field(default_factory=set)
    hidden: set[tuple[str, str]] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)


class WrongField(ConfigError):
    """Wrong input in one field of a form. field: its name."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def with_problem(
    page: str, address: str, path: str, fields: Iterable[tuple[str, str]], problem: str, wrong: str = ""
) -> str | None:
    """The HTML of a page whose form was refused, with its values and the problem; None if no form of the page is sent to path.

    address: path of the page with its query; forms without an address are sent to this path. fields: as they were sent.
    wrong: name of the field that the problem is about; "" if it is not known.

    Of several forms the one with the most hidden fields of these values is taken.
    """
    values = list(fields)
    parser = _Forms(_path(address))
    parser.feed(page)
    fits = [at for at, form in enumerate(parser.forms) if path in form.paths]
    if not fits:
        return None
    best = max(fits, key=lambda at: len(parser.forms[at].hidden & set(values)))
    filler = _Filler(best, address, values, problem, wrong if wrong in parser.forms[best].fields else "")
    filler.feed(page)
    filler.close()
    return "".join(filler.out)


def _path(address: str | None) -> str:
    return unquote((address or "").partition("?")[0])


class _Forms(HTMLParser):
    """Finds the forms of a page."""

    def __init__(self, page_path: str) -> None:
        super().__init__()
        self._page_path = page_path
        self.forms: list[_Form] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a form, a button with an address of its own, a hidden field."""
        attributes = dict(attrs)
        if tag == "form":
            self.forms.append(_Form({_path(attributes.get("action")) or self._page_path}))
        elif self.forms and tag == "button" and "formaction" in attributes:
            self.forms[-1].paths.add(_path(attributes["formaction"]))
        elif self.forms and tag == "input" and attributes.get("type") == "hidden":
            self.forms[-1].hidden.add((attributes.get("name") or "", attributes.get("value") or ""))
        elif self.forms and tag in _FIELDS:
            self.forms[-1].fields.add(attributes.get("name") or "")


class _Filler(HTMLParser):
    """Copies a page; in one form it replaces values, and puts the problem beside its field, or first.

    Folded parts around the form are opened.
    """

    def __init__(self, form: int, address: str, fields: list[tuple[str, str]], problem: str, wrong: str) -> None:
        super().__init__(convert_charrefs=False)
        self.out: list[str] = []
        self._forms_before = form  # forms before the one that is filled
        self._values: dict[str, list[str]] = {}
        for name, value in fields:
            self._values.setdefault(name, []).append(value)
        self._wrong = wrong
        self._beside = f'<span class="bad problem" id="{PROBLEM_ID}" role="alert">{escape(problem)}</span>'
        first = f'<p class="bad wide" id="{PROBLEM_ID}" role="alert" tabindex="-1" autofocus>{escape(problem)}</p>'
        self._first = ("" if wrong else first) + f'<input type="hidden" name="{SHOWN_ON}" value="{escape(address)}">'
        self._label: int | None = None  # where the label is that is open
        self._pending = False  # the wrong field is copied, its problem is not
        self._inside = self._dropping = False
        self._select: list[str] | None = None  # chosen values of the select that is open
        self._folded: int | None = None  # where the details are that are open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Copy a tag, with the value that was typed."""
        text, attributes = self.get_starttag_text() or "", dict(attrs)
        if tag == "details":
            self._folded = len(self.out)
        if tag == "form":
            self._inside = self._forms_before == 0
            self._forms_before -= 1
            if self._inside:
                if self._folded is not None:
                    self.out[self._folded] = self.out[self._folded].replace("<details", "<details open", 1)
                text += self._first
        elif self._inside:
            text = self._filled(tag, text, attributes)
            if tag == "label":
                self._label = len(self.out)
            elif (
                tag in _FIELDS
                and self._wrong
                and attributes.get("name") == self._wrong
                and attributes.get("type") != "hidden"
            ):
                text = self._marked(tag, text)
        self.out.append(text)

    def _marked(self, tag: str, text: str) -> str:
        """The tag of the wrong field, with the focus; its problem follows it, or the label around it."""
        self._wrong = ""
        head, _, tag_end = text.partition(f"<{tag}")
        text = f"{head}<{tag} {_MARKS}{tag_end}"
        if self._label is None and tag == "input":
            return text + self._beside
        self._pending = True
        if self._label is not None:
            self.out[self._label] = '<div class="field">' + self.out[self._label]
        return text

    def _filled(self, tag: str, text: str, attributes: dict[str, str | None]) -> str:
        name = attributes.get("name") or ""
        values = self._values.get(name)
        if name in UNKEPT or (values is None and attributes.get("type") != "checkbox" and tag != "option"):
            return text
        if tag == "input" and attributes.get("type") == "checkbox":
            chosen = (attributes.get("value") or "on") in (values or ())
            return _tag(
                tag, {key: value for key, value in attributes.items() if key != "checked"}, "checked" if chosen else ""
            )
        if tag == "input" and (attributes.get("type") or "") in _TYPED and values:
            return _tag(tag, attributes | {"value": values[0]})
        if tag == "textarea" and values:
            self._dropping = True
            return text + "\n" + escape(values[0])
        if tag == "select":
            self._select = values
        elif tag == "option" and self._select is not None:
            chosen = (attributes.get("value") or "") in self._select
            return _tag(
                tag,
                {key: value for key, value in attributes.items() if key != "selected"},
                "selected" if chosen else "",
            )
        return text

    def handle_endtag(self, tag: str) -> None:
        """Copy an end tag."""
        if tag == "form":
            self._inside = False
        elif tag == "select":
            self._select = None
        elif tag == "textarea":
            self._dropping = False
        elif tag == "details":
            self._folded = None
        self.out.append(f"</{tag}>")
        if self._pending and (tag == "label" or (self._label is None and tag in _FIELDS)):
            self.out.append(self._beside + ("</div>" if tag == "label" else ""))
            self._pending = False
        if tag == "label":
            self._label = None

    def handle_data(self, data: str) -> None:
        """Copy text; the old content of a text area is dropped."""
        if not self._dropping:
            self.out.append(data)

    def handle_entityref(self, name: str) -> None:
        """Copy a character reference."""
        self.handle_data(f"&{name};")

    def handle_charref(self, name: str) -> None:
        """Copy a character reference."""
        self.handle_data(f"&#{name};")

    def handle_decl(self, decl: str) -> None:
        """Copy the document type."""
        self.out.append(f"<!{decl}>")


def _tag(name: str, attributes: dict[str, str | None], flag: str = "") -> str:
    parts = [key if value is None else f'{key}="{escape(value)}"' for key, value in attributes.items()]
    return f"<{' '.join([name, *parts, *([flag] if flag else [])])}>"
