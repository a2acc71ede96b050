"""The calls of rocketmq-dashboard 1.0.0 and of the exporter, through the tools library in the versions that they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import javatools
import pytest
import saturn

pytestmark = [pytest.mark.interop_full, pytest.mark.timeout(600)]

DASHBOARD, EXPORTER = "4.9.0", "4.9.4"  # of rocketmq-tools: dashboard 1.0.0, exporter 0.0.3
CONSUMED_ONCE = {
    "cluster": "1", "runtime": "true", "config": "broker-a", "createTopic": "true", "createGroup": "true",
    "topics": "true", "topicConfig": "4", "topicStats": "4", "route": "1", "consumedBy": "true", "groups": "true",
    "progress": "true", "progressOfTopic": "4", "consumers": "1", "running": "true", "producers": "1", "rates": "true",
    "view": "one", "viewByOffsetId": "dashboard-topic", "byKey": "1", "track": "1", "consumeDirectly": "CR_SUCCESS",
    "byTime": "1", "reset": "4", "resetOffline": "4", "deleteGroup": "false", "deleteTopic": "false",
}  # fmt: skip


@pytest.mark.spec("CON-16", "ADM-10", "EXP-01")
@pytest.mark.parametrize("version", [DASHBOARD, EXPORTER])
def test_every_call_of_the_dashboard_is_answered(version: str, tmp_path: Path) -> None:
    home = javatools.write_home(tmp_path / "home")
    with saturn.SaturnCluster() as cluster:
        arguments = [
            "dashboard", f"namesrv={cluster.name_servers}", "cluster=DefaultCluster", f"broker=127.0.0.1:{cluster.broker_port}",
        ]  # fmt: skip
        done = javatools.run_java("interop.Interop", arguments, home=home, timeout_s=180, version=version).check()
    found: dict[str, Any] = {one["call"]: one.get("result", one.get("error")) for one in done.results if "call" in one}
    assert found == CONSUMED_ONCE
    assert next(one["version"] for one in done.results if "version" in one) == "V" + version.replace(".", "_")
