"""Archives of commit log files in buckets and folders: what goes in comes back byte for byte, whatever is interrupted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from deltalake import DeltaTable
from lake_batches import QUERY, Frame, rows_of
from test_spark_files import make_log, read

from saturnmq.protocol.errors import ConfigError, CorruptRecord, SaturnError, StoreError
from saturnmq.spark import lake_sink
from saturnmq.spark.lake_sink import target_of
from saturnmq.spark.log_archive import ArchivedFile, archived_files
from saturnmq.spark.log_scan import log_files, pieces_of
from saturnmq.spark.pipelines import archive, main, running

SECRET = "secret/of+the.bucket"
LEFT_OUT = 1  # the file that a broker writes to
SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()  # until the tests end
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URL of a server of S3, in a process of its own: deltalake holds the interpreter's lock while it waits for one."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        server.kill()


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The URL of a new bucket, to which the environment has the key."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "archive-tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:60]
    boto3.client("s3").create_bucket(Bucket=name)
    return f"s3://{name}"


def quietly(_line: str) -> None:
    """Report of no line."""


def store_at(folder: Path, messages: int = 40, ledger: bool = False) -> list[Path]:
    """Make a store of several files; return those that are closed."""
    log = folder / "dledger-n0" / "data" if ledger else folder / "commitlog"
    make_log(log, [b"m%d" % n * 20 for n in range(messages)], ledger=ledger)
    return sorted(log.iterdir())[:-LEFT_OUT]


def offsets(path: Any, **options: Any) -> list[int]:
    return [row["queueOffset"] for row in read(path, **options)]


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_archive_in_bucket_is_read_and_fetched_again(bucket: str, tmp_path: Path, compression: str) -> None:
    closed = store_at(tmp_path / "store")
    content = [path.read_bytes() for path in closed]
    url = f"{bucket}/a/broker-a"
    before = archive.put(str(tmp_path / "store" / "commitlog"), url, compression, quietly)
    assert [(file.base, file.content_bytes) for file in before] == [(int(path.name), 2000) for path in closed]
    assert archive.put(str(tmp_path / "store"), url, compression, quietly) == [], "a second run adds nothing"
    for path in (tmp_path / "store" / "commitlog").iterdir():
        path.unlink()  # years later

    assert archived_files(url) == before
    rows = offsets(url)
    assert rows == list(range(len(rows))) and len(rows) == sum(file.records for file in before) > 20
    assert [len(pieces_of(file)) for file in log_files(url)] == [1] * len(before)
    archive.fetch(url, before, tmp_path / "again", quietly)
    archive.fetch(url, before, tmp_path / "again", quietly)  # completes a run that was killed: nothing to do here
    assert [path.read_bytes() for path in sorted((tmp_path / "again" / "commitlog").iterdir())] == content
    assert offsets(tmp_path / "again") == rows


def test_only_files_with_times_in_range_are_fetched(tmp_path: Path) -> None:
    url = str(tmp_path / "archive")
    store_at(tmp_path / "store")
    first, second, third, *_ = archive.put(str(tmp_path / "store"), url, "none", quietly)
    assert (first.first_ms, first.last_ms) == (1000, second.first_ms - 1)
    for file in (first, third):
        (tmp_path / "archive" / "files" / file.name).unlink()
    times = {"startingTimestamp": second.first_ms + 1, "endingTimestamp": third.first_ms}
    assert offsets(url, **times) == list(range(first.records + 1, first.records + second.records))


@pytest.mark.parametrize("ledger", [False, True])
def test_interrupted_upload_is_not_read_and_completed_later(
    tmp_path: Path, ledger: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/archive"
    closed = store_at(tmp_path / "store", ledger=ledger)

    def killed(_file: ArchivedFile) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ArchivedFile, "encode", killed)
        archive.put(str(tmp_path / "store"), url, "zstd", quietly)
    assert not any((tmp_path / "archive" / "manifest").iterdir())
    (half,) = (tmp_path / "archive" / "files").iterdir()
    assert half.name == f"{closed[0].name}.zst" and archived_files(url) == []
    with pytest.raises(ConfigError, match="holds no archive of saturnmq spark archive"):
        read(url)
    half.write_bytes(half.read_bytes()[:50])
    files = archive.put(str(tmp_path / "store"), url, "zstd", quietly)
    assert len(files) == len(closed) and offsets(url) == list(range(sum(file.records for file in files)))
    archive.fetch(url, files, tmp_path / "again", quietly)
    assert offsets(tmp_path / "again") == offsets(url)


def test_file_of_a_local_archive_is_durable_before_its_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_at(tmp_path / "store")
    synced: list[tuple[str, bool]] = []
    manifest = tmp_path / "archive" / "manifest"

    def noted(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        synced.append((str(path.relative_to(tmp_path / "archive")), any(manifest.glob("*.json"))))

    monkeypatch.setattr(os, "fsync", noted)
    (file, *_) = archive.put(str(tmp_path / "store"), str(tmp_path / "archive"), "none", quietly)
    assert synced[:4] == [
        (f"files/{file.name}", False),
        ("files", False),
        (f"manifest/{file.base:020d}.json.new", False),
        ("manifest", True),
    ]


def test_empty_description_is_an_interrupted_upload(bucket: str, tmp_path: Path) -> None:
    store_at(tmp_path / "store")
    files = archive.put(str(tmp_path / "store"), bucket, "none", quietly)
    key = f"manifest/{files[0].base:020d}.json"
    boto3.client("s3").put_object(Bucket=bucket.removeprefix("s3://"), Key=key, Body=b"")
    assert archived_files(bucket) == files[1:]
    assert archive.put(str(tmp_path / "store"), bucket, "none", quietly) == files[:1]
    assert archived_files(bucket) == files


def test_damage_in_archive_is_named(tmp_path: Path) -> None:
    url = str(tmp_path / "archive")
    store_at(tmp_path / "store")
    plain, *_ = archive.put(str(tmp_path / "store"), url, "none", quietly)
    path = tmp_path / "archive" / "files" / plain.name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # in the filler, which no reader of records looks at
    path.write_bytes(content)
    for work in (lambda: offsets(url), lambda: archive.fetch(url, [plain], None, quietly)):
        with pytest.raises(CorruptRecord, match=f"files/{plain.name}: its content does not have the checksum"):
            work()
    description = tmp_path / "archive" / "manifest" / f"{plain.base:020d}.json"
    for text in ("{", json.dumps(json.loads(description.read_text()) | {"name": "../../etc/passwd"}), '{"format": 2}'):
        description.write_text(text)
        with pytest.raises(CorruptRecord, match=r"manifest/0{20}\.json: is no description of an archived file"):
            archived_files(url)


def test_retention_shows_first_and_deletes_then(bucket: str, tmp_path: Path) -> None:
    store_at(tmp_path / "store")
    files = archive.put(str(tmp_path / "store"), bucket, "gzip", quietly)
    limit_ms = files[2].last_ms
    lines: list[str] = []
    assert (
        archive.expire(bucket, limit_ms, delete=False, report=lines.append) == files[:2] == archived_files(bucket)[:2]
    )
    assert [line.split(" bytes=")[0] for line in lines] == [f"would delete {file.name}" for file in files[:2]]
    assert archive.expire(bucket, limit_ms, delete=True, report=quietly) == files[:2]
    assert archived_files(bucket) == files[2:] and offsets(bucket)[0] == files[0].records + files[1].records
    assert archive.expire(bucket, limit_ms, delete=True, report=quietly) == []


def test_retention_deletes_what_killed_runs_left(tmp_path: Path) -> None:
    store_at(tmp_path / "store")
    folder = tmp_path / "archive"
    archive.put(str(tmp_path / "store"), str(folder), "none", quietly)
    half = folder / "files" / f"{8000:020d}.zst"
    half.write_bytes(b"half")
    limit_ms = int(time.time() * 1000) - 3_600_000
    lines: list[str] = []
    archive.expire(str(folder), limit_ms, delete=True, report=lines.append)
    assert half.exists(), "an upload that may still run"
    os.utime(half, (limit_ms / 1000 - 60,) * 2)
    archive.expire(str(folder), limit_ms, delete=True, report=lines.append)
    assert not half.exists() and lines[-1].endswith(f"{half.name}: an interrupted upload")


def test_each_broker_has_its_own_archive(tmp_path: Path) -> None:
    url = str(tmp_path / "archive")
    (first, *_) = store_at(tmp_path / "store")
    archive.put(str(tmp_path / "store"), url, "none", quietly)
    content = first.read_bytes()
    first.write_bytes(content.replace(b"m0", b"n0"))
    with pytest.raises(ConfigError, match=r"holds another log, its 0{20} is not .*each broker has its own folder"):
        archive.put(str(tmp_path / "store"), url, "none", quietly)


def test_uncommitted_entries_of_a_group_are_not_archived(tmp_path: Path) -> None:
    first, *more = store_at(tmp_path / "store", ledger=True)
    entries = sum(
        file.records for file in archive.put(str(tmp_path / "store"), str(tmp_path / "all"), "none", quietly)[:2]
    )
    (tmp_path / "store" / "dledger-n0" / "checkpoint").write_text(f"committedIndex={entries - 2}\n")
    files = archive.put(str(tmp_path / "store"), str(tmp_path / "archive"), "none", quietly)
    assert [file.name for file in files] == [first.name] and files[0].ledger and more


@pytest.mark.spec("FMD-03")
@pytest.mark.parametrize("place", ["", "/commitlog"])
def test_copied_log_is_read_from_any_file_system(tmp_path: Path, place: str) -> None:
    """As `aws s3 sync` copies it; here of fsspec. Files elsewhere are one task each, with the end of the last one found."""
    import fsspec

    store_at(tmp_path / "store")
    url = f"memory://copied{place.replace('/', '-')}"
    fsspec.filesystem("memory").put(f"{tmp_path}/store/commitlog", f"{url}{place}", recursive=True)
    assert offsets(url) == offsets(tmp_path / "store") == list(range(40))
    assert [file.last for file in log_files(url)].count(True) == 1


def test_errors_of_buckets_are_one_line_without_secrets(bucket: str, s3: str, tmp_path: Path) -> None:
    store_at(tmp_path / "store")
    store = str(tmp_path / "store")
    keys = f"s3://archive-tests:{SECRET}@logs/a"
    user = boto3.client("iam").create_user(UserName="visitor")["User"]["UserName"]
    pair = boto3.client("iam").create_access_key(UserName=user)["AccessKey"]
    messages = []

    def failed(kind: type[SaturnError], *arguments: str) -> None:
        with pytest.raises(kind) as caught:
            main(["archive", *arguments])
        messages.append(str(caught.value))

    failed(StoreError, "s3://missing-bucket/a", "--from", store)
    failed(ConfigError, keys, "--from", store)
    failed(ConfigError, f"{bucket}?region=eu-west-1", "--verify")
    failed(ConfigError, "ftx://host/a", "--from", store)
    failed(ConfigError, bucket, "--from", store, "--verify")
    for work in (
        lambda: read(keys),
        lambda: target_of("delta", keys, ()),
        lambda: running.parsed("--lake", keys, archive.path_or_url),
    ):
        with pytest.raises(ConfigError) as caught:
            work()
        messages.append(str(caught.value))
    with pytest.raises(StoreError, match="there is no bucket missing-bucket"):
        read("s3://missing-bucket/a")
    environment = {"AWS_ACCESS_KEY_ID": pair["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": pair["SecretAccessKey"]}

    def check_rights(yes: bool) -> None:
        body, headers = b"0" if yes else b"inf", {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(f"{s3}/moto-api/reset-auth", body, headers)).close()

    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        check_rights(True)
        try:
            failed(StoreError, bucket, "--from", store)
        finally:
            check_rights(False)
    patterns = [
        r"s3://missing-bucket/a: .*",
        r"option URL=s3://\*+@logs/a: a URL is shown in plans and logs: set credentials in the environment, such as AWS_.*",
        r"option URL=.*: has options behind a question mark; set them in the environment, such as AWS_ENDPOINT_URL",
        r"ftx://host/a: pyarrow has no file system of this scheme, and fsspec neither: .*",
        r"give one of --from, --older-than, --verify and --get; .*",
        r"option path='s3://\*+@logs/a': a URL is shown .*",
        r"s3://\*+@logs/a: a URL is shown .*",
        r"option --lake=s3://\*+@logs/a: a URL is shown .*",
        rf"{bucket}: ListObjectsV2: ACCESS_DENIED, .*: its credentials do not have this right",
    ]
    for message, pattern in zip(messages, patterns, strict=True):
        assert re.fullmatch(pattern, message), message
        assert SECRET not in message and pair["SecretAccessKey"] not in message


def test_command_archives_lists_verifies_fetches_and_deletes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, store = str(tmp_path / "archive"), str(tmp_path / "store")
    closed = store_at(tmp_path / "store")

    def ran(*arguments: str) -> tuple[list[str], dict[str, Any]]:
        assert main(["archive", url, *arguments]) == 0
        *lines, row = capsys.readouterr().out.splitlines()
        return lines, json.loads(row)

    lines, row = ran("--from", store)
    assert len(lines) == len(closed) + 1 and (row["files"], row["bytes"]) == (len(closed), 2000 * len(closed))
    assert (
        lines[0].startswith(f"archived {closed[0].name}.zst bytes=2000 records=")
        and " from=1970-01-01T00:00:01.000+00:00 " in lines[0]
    )
    assert ran("--since", "1970-01-01T00:00:01.010Z", "--until", "1011")[1]["files"] == 1
    assert ran("--verify")[0][-1] == f"verified: {len(closed)} files, {2000 * len(closed)} bytes"
    assert ran("--get", str(tmp_path / "again"), "--quiet")[0] == ran("--verify", "--quiet")[0]
    assert [path.read_bytes() for path in sorted((tmp_path / "again" / "commitlog").iterdir())] == [
        path.read_bytes() for path in closed
    ]
    assert ran("--older-than", "365d")[0][-1].startswith(f"would delete: {len(closed)} files")
    assert ran("--older-than", "365d", "--delete")[1]["files"] == len(closed) and archived_files(url) == []
    assert main(["archive", url, "--json"]) == 0 and json.loads(capsys.readouterr().out)["rows"][0]["files"] == 0


def test_delta_table_in_bucket_gets_each_batch_once(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a stream's driver writes it by to_lake: the workers' files by pyarrow, the commits by deltalake."""
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    target = target_of("delta", f"{bucket}/orders", ("tag",))
    assert target is not None
    for batch in (0, 1, 1):
        lake_sink.append(target, Frame(rows_of(batch)), QUERY, batch)  # type: ignore[arg-type]
    rows = DeltaTable(f"{bucket}/orders").to_pyarrow_table().select(["n", "tag", "at"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == sorted([*rows_of(0), *rows_of(1)], key=lambda row: row[0])
