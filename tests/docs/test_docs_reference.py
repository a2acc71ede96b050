"""The reference of the API has every public name, with an example and without requirements."""

from __future__ import annotations

import importlib
import inspect
import re
from enum import Enum

import pytest

import docs_reference
import saturnmq

LISTED = [name for _, _, names in docs_reference.API.values() for name in names.split()]
# A property's name, and a union of types.
NOT_LISTED = {"OUTBOX_ID"}


def test_every_public_name_is_in_the_reference() -> None:
    assert set(docs_reference.MODULES) - set(LISTED) == NOT_LISTED
    assert len(LISTED) == len(set(LISTED))


@pytest.mark.parametrize("name", [name for name in LISTED if not name.islower() or name in docs_reference.MODULES])
def test_public_name_has_an_example(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    subject = getattr(importlib.import_module(module), attribute) if module else getattr(saturnmq, name)
    if not isinstance(subject, type) or issubclass(subject, (BaseException, Enum)):
        return
    assert re.search(r"^ *Example:|^ {4,}\S", subject.__doc__ or "", re.MULTILINE), name


def test_examples_become_blocks_of_code_and_requirements_are_left_out() -> None:
    docstring = inspect.cleandoc("""Send (SND-01).

    Example:
        await out.send()

    Requirements: API-01,
    API-02.
    """)
    assert docs_reference.markdown(docstring) == "Send.\n\n\n```python\nawait out.send()\n```"
