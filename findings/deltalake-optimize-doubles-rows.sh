#!/bin/sh
# deltalake: optimize.compact() doubles the rows of files whose path in the log has a letter outside ASCII, as Spark writes it.
#
# Version      deltalake 1.6.6 (logs with such paths: Delta 4.4.0 on PySpark 4.2.1, for a partition value such as `ü`)
# Expectation  OPTIMIZE changes no row: every file that it merges is removed in the same commit.
# Behaviour    delta-rs percent-encodes the paths of its remove actions (`tag=%C3%BC/...`). The log names the files `tag=ü/...`; both
#              are compared as texts, so nothing is removed, and the merged file is added: its rows are in the table twice. The
#              same with a RemoveAction in create_write_transaction. No error; the returned metrics count the files as removed.
# Output seen  before 4 rows in 2 files, after 8 rows in 3 files, 2 files reported as removed
# Exit         0 while this is so, 1 when it has changed
set -eu
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$WORK/venv"
"$WORK/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==21.0.0
cat > "$WORK/run.py" <<'RUN'
import json
import os

import pyarrow
from deltalake import DeltaTable
from pyarrow import parquet

os.makedirs("t/_delta_log")
os.makedirs("t/tag=ü")
field = '{{"name":"{}","type":"{}","nullable":true,"metadata":{{}}}}'
schema = f'{{"type":"struct","fields":[{field.format("n", "long")},{field.format("tag", "string")}]}}'
actions = [
    {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
    {"metaData": {"id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9", "format": {"provider": "parquet", "options": {}},
                  "schemaString": schema, "partitionColumns": ["tag"], "configuration": {}, "createdTime": 0}},
]
for name in ("1.parquet", "2.parquet"):
    path = f"tag=ü/{name}"  # in the log as Spark's Delta writes it
    parquet.write_table(pyarrow.table({"n": [1, 2]}), f"t/{path}")
    actions.append({"add": {"path": path, "partitionValues": {"tag": "ü"}, "size": os.path.getsize(f"t/{path}"),
                            "modificationTime": 0, "dataChange": True, "stats": '{"numRecords": 2}'}})
with open("t/_delta_log/00000000000000000000.json", "w", encoding="utf-8") as log:
    log.write("".join(json.dumps(action, ensure_ascii=False) + "\n" for action in actions))


def state():
    table = DeltaTable("t")
    return table.to_pyarrow_table().num_rows, len(table.file_uris())


before = state()
removed = DeltaTable("t").optimize.compact()["numFilesRemoved"]
after = state()
print("before {} rows in {} files, after {} rows in {} files,".format(*before, *after), f"{removed} files reported as removed")
unchanged = (before, after, removed) == ((4, 2), (8, 3), 2)
print("as described" if unchanged else "CHANGED")
raise SystemExit(0 if unchanged else 1)
RUN
cd "$WORK" && "$WORK/venv/bin/python" run.py
