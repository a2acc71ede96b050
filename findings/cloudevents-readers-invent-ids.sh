#!/bin/sh
# cloudevents (Python SDK): reading a message without id and time gives an event with a new id and the time of reading.
#
# Version      cloudevents 2.2.0
# Expectation  `id` is required and identifies an event with `source` (CloudEvents 1.0.2, section 3.1), so a message without one is no event;
#              `time` is optional, and an event without it has none.
# Behaviour    The class of events fills in both, for readers too: reading the same message twice gives two events that nothing shows to be the same.
# Output seen  ids differ: True, time of an event without one: datetime
# Exit         0 while it is so, 1 when it has changed
set -eu
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$WORK/venv"
"$WORK/venv/bin/pip" install --quiet --disable-pip-version-check cloudevents==2.2.0
cat > "$WORK/run.py" <<'RUN'
from cloudevents.core.formats.json import JSONFormat

body = b'{"specversion": "1.0", "source": "/shop", "type": "paid"}'
first, second = (JSONFormat().read(None, body) for _ in range(2))
differ = first.get_id() != second.get_id()
print(f"ids differ: {differ}, time of an event without one: {type(first.get_time()).__name__}")
raise SystemExit(not (differ and first.get_time() is not None))
RUN
"$WORK/venv/bin/python" "$WORK/run.py"
