#!/bin/sh
# pyarrow 26.0.1, fs.S3FileSystem: leaving `with open_output_stream(...)` by an exception completes the upload.
#
# Expected: an upload that its writer did not finish is aborted, so that no object appears: a multipart upload has a call for that, and the
# `with` statement hands the exception to the stream.
# Seen: NativeFile.__exit__ calls close(), which completes the upload. The object exists afterwards with what was written until then, and
# replaces an older one of that name. Nothing distinguishes it from a whole one. Output:
#
#     the writer failed: half way
#     in the bucket: 12582912 bytes, as readers see the object
#
# The stream has no method that aborts.
#
# Needs python3 (3.11 or newer) and installs pyarrow and moto, a server of S3 in Python, into a temporary folder. Exit 0: behaves as above.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "pyarrow==${PYARROW:-26.0.1}" 'moto[s3]==5.2.5' flask flask-cors
cat > "$folder/writes.py" <<'PROGRAM'
import logging
import os

import boto3
from moto.server import ThreadedMotoServer
from pyarrow import fs

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
os.environ |= {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="logs")
system, path = fs.FileSystem.from_uri("s3://logs/file")
try:
    with system.open_output_stream(path) as out:
        out.write(bytes(12 << 20))
        raise RuntimeError("half way")
except RuntimeError as error:
    print("the writer failed:", error)
info = system.get_file_info(path)
print(f"in the bucket: {info.size} bytes, as readers see the object")
assert info.size == 12 << 20, info
server.stop()
PROGRAM
if "$folder/venv/bin/python" "$folder/writes.py"; then
    echo "behaves as described"
else
    echo "the behaviour has changed" >&2
    exit 1
fi
