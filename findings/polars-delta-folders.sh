#!/bin/sh
# polars: scan_delta reads a Delta table by the names of folders: it misses files below a blank, and takes partition values from folders.
#
# Version      polars 2.1.0, deltalake 1.6.6
# Expectation  A path with a blank is a path like others. The values of partition columns are what the log says (the protocol of Delta:
#              `partitionValues` of an add action); folders have no meaning.
# Behaviour    1. A table below a folder with a blank in its name cannot be read: polars opens the texts of DeltaTable.file_uris(),
#              which are neither paths nor URIs: paths without a scheme, percent-encoded.
#              2. A file in folder `tag=a_b` whose partition value is `a b` in the log has `a_b` in polars; deltalake has `a b`.
# Output seen  blank: FileNotFoundError; deltalake counts 3
#              partition: polars ['a_b'], deltalake ['a b']
# Exit         0 while both are so, 1 when one has changed
set -eu
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$WORK/venv"
"$WORK/venv/bin/pip" install --quiet --disable-pip-version-check polars==2.1.0 deltalake==1.6.6 pyarrow==21.0.0
cat > "$WORK/run.py" <<'RUN'
import os

import polars
import pyarrow
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction
from pyarrow import parquet

write_deltalake("a b/t", pyarrow.table({"n": [1, 2, 3]}))
try:
    blank = str(polars.scan_delta("a b/t").collect().height)
except Exception as error:
    blank = type(error).__name__
counted = DeltaTable("a b/t").to_pyarrow_table().num_rows
print(f"blank: {blank}; deltalake counts {counted}")

schema = pyarrow.schema([("n", pyarrow.int64()), ("tag", pyarrow.string())])
table = DeltaTable.create("t", Schema.from_arrow(schema), partition_by=["tag"])
os.makedirs("t/tag=a_b")
parquet.write_table(pyarrow.table({"n": [1]}), "t/tag=a_b/1.parquet")
size = os.path.getsize("t/tag=a_b/1.parquet")
add = AddAction("tag=a_b/1.parquet", size, {"tag": "a b"}, 0, True, '{"numRecords": 1}')
table.create_write_transaction([add], "append", Schema.from_arrow(schema), ["tag"])
by_polars = polars.scan_delta("t").collect()["tag"].to_list()
by_deltalake = DeltaTable("t").to_pyarrow_table()["tag"].to_pylist()
print(f"partition: polars {by_polars}, deltalake {by_deltalake}")
unchanged = (blank, counted, by_polars, by_deltalake) == ("FileNotFoundError", 3, ["a_b"], ["a b"])
print("as described" if unchanged else "CHANGED")
raise SystemExit(0 if unchanged else 1)
RUN
cd "$WORK" && "$WORK/venv/bin/python" run.py
