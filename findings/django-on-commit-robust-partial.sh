#!/bin/sh
# Django: a functools.partial that fails in transaction.on_commit(robust=True) raises AttributeError instead of being logged.
#
# Version      Django 5.2.19
# Expectation  With robust=True an exception of the function is logged, and the functions registered after it still run (documentation of
#              on_commit). The documentation recommends functools.partial for arguments.
# Behaviour    The log line reads func.__qualname__, which a partial has not: AttributeError leaves the atomic block, and the functions registered
#              after it do not run. The function's own exception is its context only.
# Output seen  inside a transaction: AttributeError, later function did not run
#              outside of one: AttributeError
# Exit         0 while it is so, 1 when it has changed
set -eu
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$WORK/venv"
"$WORK/venv/bin/pip" install --quiet --disable-pip-version-check django==5.2.19
cat > "$WORK/run.py" <<'RUN'
import functools
import logging

import django
from django.conf import settings
from django.db import transaction

logging.disable()
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
django.setup()
ran = []


def fail(number):
    raise ValueError(number)


def outcome(work):
    try:
        work()
    except Exception as error:
        return type(error).__name__
    return "logged"


def inside():
    with transaction.atomic():
        transaction.on_commit(functools.partial(fail, 1), robust=True)
        transaction.on_commit(lambda: ran.append("later"), robust=True)


first = outcome(inside)
print(f"inside a transaction: {first}, later function {'ran' if ran else 'did not run'}")
second = outcome(lambda: transaction.on_commit(functools.partial(fail, 2), robust=True))
print(f"outside of one: {second}")
unchanged = (first, ran, second) == ("AttributeError", [], "AttributeError")
print("as described" if unchanged else "CHANGED")
raise SystemExit(0 if unchanged else 1)
RUN
"$WORK/venv/bin/python" "$WORK/run.py"
