"""Commands of mqadmin on NameServers: configuration, keys and values, write permission."""

from __future__ import annotations

import pytest
from admincli import AdminCli

from saturnmq.cli.mqadmin.run import main
from saturnmq.testing import SyncEmbeddedBroker


def permission(admin_cli: AdminCli) -> int:
    (row,) = admin_cli.json("topicRoute", "-t", "BenchmarkTest")["rows"]
    found: int = row["queue_datas"][0]["perm"]
    return found


@pytest.mark.spec("C-21", "UPG-13")
def test_wipe_write_perm_counts_topics_and_warns(admin_cli: AdminCli) -> None:
    server = admin_cli.server.name_servers
    code, out, err = admin_cli.run("wipeWritePerm", "-b", "broker-a")
    (row,) = admin_cli.json("wipeWritePerm", "-b", "broker-a")["rows"]
    assert (code, out) == (0, f"wipe write perm of broker[broker-a] in name server[{server}] OK, {row['topics']}\n")
    assert row["topics"] > 0 and "forget" in err and "updateBrokerConfig" in err
    assert permission(admin_cli) == 4
    assert admin_cli.text("wipeWritePerm", "-b", "unknown").endswith("] OK, 0\n")
    assert admin_cli.run("wipeWritePerm")[0] == 1


@pytest.mark.spec("C-22")
def test_add_write_perm_gives_read_and_write(admin_cli: AdminCli) -> None:
    admin_cli.text("wipeWritePerm", "-b", "broker-a")
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "n-read", "-p", "4")
    code, out, err = admin_cli.run("addWritePerm", "-b", "broker-a")
    (row,) = admin_cli.json("addWritePerm", "-b", "broker-a")["rows"]
    server = admin_cli.server.name_servers
    assert (code, err) == (0, f"saturnmq: cluster: NameServer {server} (option -n)\n")
    assert out == f"add write perm of broker[broker-a] in name server[{server}] OK, {row['topics']}\n"
    assert permission(admin_cli) == 6
    (row,) = admin_cli.json("topicRoute", "-t", "n-read")["rows"]
    assert row["queue_datas"][0]["perm"] == 6


@pytest.mark.spec("C-21", "C-22")
@pytest.mark.parametrize("what", ["wipe", "add"])
def test_write_perm_at_a_name_server_that_does_not_answer(
    admin_cli: AdminCli, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    server = admin_cli.server.name_servers
    assert main([f"{what}WritePerm", "-b", "unknown", "-n", f"127.0.0.1:1;{server}"]) == 1
    printed = capsys.readouterr()
    start = f"{what} write perm of broker[unknown] in name server"
    assert printed.out == f"{start}[127.0.0.1:1] Failed\n{start}[{server}] OK, 0\n"
    assert "127.0.0.1:1" in printed.err


@pytest.mark.spec("C-46")
def test_get_namesrv_config(admin_cli: AdminCli) -> None:
    lines = admin_cli.text("getNamesrvConfig").splitlines()
    assert lines[0] == f"============{admin_cli.server.name_servers}============"
    assert f"{'orderMessageEnable':<50}=  false" in lines and lines[1:] == sorted(lines[1:])
    rows = admin_cli.json("getNamesrvConfig")["rows"]
    assert {"name_server": admin_cli.server.name_servers, "key": "orderMessageEnable", "value": "false"} in rows


@pytest.mark.spec("C-47")
def test_update_namesrv_config(admin_cli: AdminCli) -> None:
    text = admin_cli.text("updateNamesrvConfig", "-k", "topicsMax", "-v", " 4321 ")
    assert text == f"update name server config success![{admin_cli.server.name_servers}]\ntopicsMax : 4321\n"
    assert f"{'topicsMax':<50}=  4321" in admin_cli.text("getNamesrvConfig").splitlines()
    code, out, err = admin_cli.run("updateNamesrvConfig", "-k", "kvConfigPath", "-v", "x")
    assert (code, out) == (1, "") and "Can not update config path" in err
    assert admin_cli.run("updateNamesrvConfig", "-k", "topicsMax")[0] == 1


@pytest.mark.spec("C-47")
def test_update_namesrv_config_of_the_environment_names_no_servers(
    admin_cli: AdminCli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", admin_cli.server.name_servers)
    assert main(["updateNamesrvConfig", "-k", "topicsMax", "-v", "4322"]) == 0
    assert capsys.readouterr().out == "update name server config success!\ntopicsMax : 4322\n"


@pytest.mark.spec("C-21", "C-22", "C-46", "C-47", "C-48", "C-49")
def test_every_name_server_is_asked(admin_cli: AdminCli) -> None:
    with SyncEmbeddedBroker() as other:
        servers = [admin_cli.server, other]
        names = [server.name_servers for server in servers]

        def text(*words: str) -> str:
            code, out, err = admin_cli.run_bare(*words, "-n", ";".join(names))
            assert code == 0, err
            return out

        def configured(values: str) -> bool:
            return all(values in read() for read in files)

        rule = "=" * 12
        heads = [line for line in text("getNamesrvConfig").splitlines() if line.startswith("=")]
        assert sorted(heads) == sorted(f"{rule}{name}{rule}" for name in names)
        changed = text("updateNamesrvConfig", "-k", "topicsMax", "-v", "4444").splitlines()
        assert changed[0] == f"update name server config success![{', '.join(names)}]"
        assert text("getNamesrvConfig").splitlines().count(f"{'topicsMax':<50}=  4444") == 2
        files = [(server.inner.data / "namesrv" / "kvConfig.json").read_text for server in servers]  # type: ignore[operator]
        text("updateKvConfig", "-s", "space", "-k", "each", "-v", "both")
        assert [read().count("both") for read in files] == [1, 1]
        text("deleteKvConfig", "-s", "space", "-k", "each")
        assert [read().count("both") for read in files] == [0, 0]
        for command in ("wipe", "add"):
            lines = text(f"{command}WritePerm", "-b", "broker-a").splitlines()
            done = [line.partition(" in name server")[2].partition(" OK, ") for line in lines]
            assert [server for server, _, _ in done] == [f"[{name}]" for name in names]
            assert [int(count) for _, _, count in done] == [
                sum("broker-a" in brokers for brokers in server.inner.namesrv.routes.topics.values())
                for server in servers
            ]


@pytest.mark.spec("C-48", "C-49")
def test_keys_and_values_are_set_persisted_and_deleted(admin_cli: AdminCli) -> None:
    text = admin_cli.text("updateKvConfig", "-s", "space", "-k", "name", "-v", " text ")
    assert text == "create or update kv config to namespace success.\n"
    file = admin_cli.server.inner.data / "namesrv" / "kvConfig.json"  # type: ignore[operator]
    assert '"name":"text"' in file.read_text().replace(" ", "")
    for _ in range(2):  # a key that does not exist is deleted, too
        text = admin_cli.text("deleteKvConfig", "-s", "space", "-k", "name")
        assert text == "delete kv config from namespace success.\n"
    assert '"name":"text"' not in file.read_text().replace(" ", "")
    for words in (("-s", "a", "-k", "b"), ("-s", "a", "-v", "b"), ("-k", "a", "-v", "b")):
        assert admin_cli.run("updateKvConfig", *words)[0] == 1
    assert admin_cli.run("deleteKvConfig", "-s", "a")[0] == 1
