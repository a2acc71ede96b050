#!/bin/sh
# deltalake: a table whose folder's name contains a percent-encoded character is read from the folder with the decoded name.
#
# Version      deltalake 1.6.6
# Expectation  `a%20b` and `a b` are two folders of a file system: a table in each, given by its path, has its own rows.
# Behaviour    The log of the table in `a%20b` is read from `a b`: with a table there its log is taken, and the data files it names are
#              looked for in `a%20b`; without one, a table that was just created cannot be opened. The same with Path.as_uri().
# Output seen  alone: DeltaError Kernel error: File not found: .../a b/t/_delta_log/00000000000000000000.json
#              beside `a b`: the table in `a%20b` names 0 of its own files and 1 of the other table's
# Exit         0 while this is so, 1 when it has changed
set -eu
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$WORK/venv"
"$WORK/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==21.0.0
cat > "$WORK/run.py" <<'RUN'
import os

import pyarrow
from deltalake import DeltaTable, write_deltalake

decoded, encoded = "a b/t", "a%20b/t"
try:
    write_deltalake(encoded, pyarrow.table({"n": [1]}))
    DeltaTable(encoded)
    alone = "opened"
except Exception as error:
    alone = f"{type(error).__name__} {str(error).splitlines()[0]}"
print("alone:", alone)
write_deltalake(decoded, pyarrow.table({"n": [1, 2, 3]}))
names = [os.path.basename(path) for path in DeltaTable(encoded).file_uris()]
own = len([name for name in names if os.path.exists(f"{encoded}/{name}")])
other = len([name for name in names if os.path.exists(f"{decoded}/{name}")])
print(f"beside `a b`: the table in `a%20b` names {own} of its own files and {other} of the other table's")
unchanged = alone != "opened" and (own, other) == (0, 1)
print("as described" if unchanged else "CHANGED")
raise SystemExit(0 if unchanged else 1)
RUN
cd "$WORK" && "$WORK/venv/bin/python" run.py
