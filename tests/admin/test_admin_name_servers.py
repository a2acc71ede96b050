"""Operations on NameServers: configuration, keys and values, write permission."""

from __future__ import annotations

import pytest
from admincluster import DEAD, AdminCluster, admin_cluster

from saturnmq.admin import Admin
from saturnmq.config.settings import parse_properties, property_line
from saturnmq.protocol.errors import ResponseError, SaturnError


async def test_write_permission_is_counted_per_name_server() -> None:
    async with admin_cluster() as c, Admin([c.server.name_servers, DEAD]) as both:
        wiped = await both.name_servers.wipe_write_permission("broker-a")
        assert isinstance(wiped[c.server.name_servers], int) and wiped[c.server.name_servers] > 0
        assert isinstance(wiped[DEAD], SaturnError)
        assert (await c.admin.topics.route("BenchmarkTest")).queue_datas[0].perm == 4
        assert (await c.admin.name_servers.add_write_permission("broker-a")) == {
            c.server.name_servers: wiped[c.server.name_servers]
        }
        assert (await c.admin.topics.route("BenchmarkTest")).queue_datas[0].perm == 6
        assert await c.admin.name_servers.wipe_write_permission("unknown") == {c.server.name_servers: 0}


async def test_keys_and_values(cluster: AdminCluster) -> None:
    servers = cluster.admin.name_servers
    await servers.set_value("space", "key", "a=b;c")
    assert await servers.value("space", "key") == "a=b;c"
    await servers.delete_value("space", "key")
    with pytest.raises(ResponseError) as refused:
        await servers.value("space", "key")
    assert refused.value.code == 22


async def test_configuration_of_name_servers(cluster: AdminCluster) -> None:
    await cluster.admin.name_servers.update_configuration("topicsMax", "4321")
    found = await cluster.admin.name_servers.configuration()
    assert found[cluster.server.name_servers]["topicsMax"] == "4321"
    with pytest.raises(ResponseError, match="Can not update config path"):
        await cluster.admin.name_servers.update_configuration("kvConfigPath", "/tmp/x")


@pytest.mark.parametrize("value", ["", "plain", "a\\b", "line\nother=1", "tab\t!#=:", "x\r\f"])
def test_a_property_line_is_read_as_written(value: str) -> None:
    assert parse_properties(property_line("a key=:#!\\", value)) == {"a key=:#!\\": value}
