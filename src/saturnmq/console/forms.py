"""Forms of pages: what a form was sent with, so that its page shows a refused one again with the typed values and the problem.

A handler raises `WrongField`; the page that the form is on is then rendered by its own function, with `Page.refused` set.
Templates describe each form by `form(action, ...)` and draw its fields by the macros of forms.html, which put the problem beside
its field; the field has the focus, so the browser scrolls to it. A problem of no visible field stands first in the form.

Requirements: UX-13, UX-16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from saturnmq.protocol.errors import ConfigError

SHOWN_ON: Final = "shown_on"  # hidden field: path and query of the page that a form is on
PROBLEM: Final = 'id="problem"'  # of the element with the problem, in pages that show a refused form


class WrongField(ConfigError):
    """Wrong input in one field of a form. field: its name."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class RefusedForm:
    """A form as it was sent. path: where to; values: (name, value); field: the wrong one, "" for a problem of the whole form."""

    path: str
    values: Sequence[tuple[str, str]]
    problem: str
    field: str


class Form:
    """One form of a page. action: address that it is sent to; hidden: values of hidden fields; refused: None on a first view."""

    def __init__(self, action: str, hidden: dict[str, str], refused: RefusedForm | None) -> None:
        self.action = action
        self.hidden = hidden
        self._refused = refused
        self._field = refused.field if refused is not None else ""

    @property
    def is_refused(self) -> bool:
        """Whether to open what the form is folded into."""
        return self._refused is not None

    @property
    def problem(self) -> str:
        """The problem, if it is of no field that users see."""
        is_of_form = self._refused is not None and (not self._field or self._field in self.hidden)
        return self._refused.problem if self._refused is not None and is_of_form else ""

    def problem_of(self, name: str) -> str:
        """The problem of a field; of several boxes with one name, the first one asked for has it."""
        if self._refused is None or name != self._field:
            return ""
        self._field = ""
        return self._refused.problem

    def typed(self, name: str, value: object) -> object:
        """The value to show in a field: what was typed, else that of the page."""
        if self._refused is None:
            return value
        return next((typed for sent, typed in self._refused.values if sent == name), value)

    def chosen(self, name: str, value: str, chosen: bool) -> bool:
        """Whether a box is checked: browsers send checked ones only."""
        return chosen if self._refused is None else (name, value) in self._refused.values


def form_of(refused: RefusedForm | None, action: str, *others: str, **hidden: str) -> Form:
    """A form by its address and hidden fields, by which forms with one address differ. others: addresses of further buttons."""
    is_refused = (
        refused is not None
        and refused.path in (unquote(address.partition("?")[0]) for address in (action, *others))
        and all(pair in refused.values for pair in hidden.items())
    )
    return Form(action, hidden, refused if is_refused else None)
