"""The Helm chart: accepted by helm and the schemas of Kubernetes, and its pods' commands form a group of three that serves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from realtools import checked_by
from serverprocess import Server

from boards import DEPLOY
from ports import free_ports
from saturnmq.sync import Client

CHART = DEPLOY / "helm"
KUBERNETES = "1.33.0"
NAME = re.compile(r"mq-(\w+)-(\d)\.mq-\1\.shop\.svc\.cluster\.local")


def rendered() -> str:
    return checked_by("helm", "template", "mq", CHART, "--namespace", "shop", "--kube-version", KUBERNETES)


@pytest.fixture
def objects() -> dict[tuple[str, str], dict[str, Any]]:
    """The objects of release `mq` in namespace `shop`, by kind and name."""
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(rendered())}


def container(objects: dict[tuple[str, str], dict[str, Any]], role: str) -> dict[str, Any]:
    (found,) = objects["StatefulSet", f"mq-{role}"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_chart_is_accepted_by_helm() -> None:
    checked_by("helm", "lint", "--strict", "--kube-version", KUBERNETES, CHART)


def test_objects_are_accepted_by_the_schemas_of_kubernetes(tmp_path: Path) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(rendered())
    checked_by("kubernetes-validate", "--strict", "--kubernetes-version", KUBERNETES.rpartition(".")[0], file)


@pytest.mark.spec("INT-17")
def test_group_of_even_size_is_refused_by_the_chart() -> None:
    with pytest.raises(AssertionError, match="a group has an odd number of members"):
        checked_by("helm", "template", "mq", CHART, "--kube-version", KUBERNETES, "--set", "broker.replicas=2")


@pytest.mark.spec("INT-17")
@pytest.mark.parametrize(("role", "replicas"), [("broker", 3), ("namesrv", 2)])
def test_pods_have_stable_names_budgets_and_a_read_only_root(
    objects: dict[tuple[str, str], dict[str, Any]], role: str, replicas: int
) -> None:
    pods = objects["StatefulSet", f"mq-{role}"]["spec"]
    assert (pods["replicas"], pods["serviceName"]) == (replicas, f"mq-{role}")
    labels = pods["template"]["metadata"]["labels"]
    assert objects["PodDisruptionBudget", f"mq-{role}"]["spec"] == {
        "maxUnavailable": 1, "selector": {"matchLabels": labels},
    }  # fmt: skip
    service = objects["Service", f"mq-{role}"]["spec"]
    assert (service["clusterIP"], service["selector"]) == ("None", labels)
    template = pods["template"]["spec"]
    assert template["securityContext"]["runAsNonRoot"] and not template["enableServiceLinks"]
    for each in [*template.get("initContainers", []), *template["containers"]]:
        assert each["securityContext"]["readOnlyRootFilesystem"]
    assert {"readinessProbe", "livenessProbe"} <= container(objects, role).keys()
    assert [claim["metadata"]["name"] for claim in pods["volumeClaimTemplates"]] == ["data"]


def environment(described: list[dict[str, Any]], index: str) -> dict[str, str]:
    """The variables of pod `index`; a secret has the value `secret of NAME`."""
    values: dict[str, str] = {}
    for each in described:
        source = each.get("valueFrom", {})
        if "secretKeyRef" in source:
            values[each["name"]] = f"secret of {source['secretKeyRef']['name']}"
        elif "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "metadata.labels['apps.kubernetes.io/pod-index']"
            values[each["name"]] = index
        else:
            values[each["name"]] = re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], each["value"])
    return values


@pytest.fixture
def started() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*words: str, env: dict[str, str] | None = None) -> Server:
        servers.append(Server(*words, env=env))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.mark.realtime
@pytest.mark.spec("INT-17")
def test_commands_of_the_pods_form_a_group_that_serves(
    objects: dict[tuple[str, str], dict[str, Any]], tmp_path: Path, started: Callable[..., Server]
) -> None:
    """One process per pod with its command, variables and configuration; only addresses, ports and folders are others."""
    ledger = dict(zip("012", free_ports(3), strict=True))
    words = [word.replace("/data", str(tmp_path)) for word in container(objects, "namesrv")["args"]]
    name_server = f"127.0.0.1:{started(*words, '--port', '0').facts['namesrv'].rpartition(':')[2]}"
    text = objects["ConfigMap", "mq-broker"]["data"]["broker.conf"]
    text = re.sub(rf"{NAME.pattern}:40911", lambda match: f"127.0.0.1:{ledger[match[2]]}", text)
    text = re.sub(r"namesrvAddr=.*", f"namesrvAddr={name_server}", text)
    text = text.replace("listenPort=10911", "listenPort=0").replace("metricsPort=5557", "metricsPort=0")
    described = container(objects, "broker")
    for index in ledger:
        folder = tmp_path / index
        folder.mkdir()
        (folder / "broker.conf").write_text(text.replace("/data", str(folder)))
        env = environment(described["env"], index)
        host = NAME.fullmatch(env["SATURNMQ_ADVERTISED_HOST"])
        assert host is not None and host[2] == index
        assert env["SATURNMQ_DLEDGER_CLUSTER_SECRET"] == "secret of saturnmq-secret"
        env["SATURNMQ_ADVERTISED_HOST"] = "127.0.0.1"
        started(*(word.replace("/etc/saturnmq", str(folder)) for word in described["args"]), env=env)
    with Client.from_url(f"rmq://{name_server}") as client, client.producer("orders-p") as out:
        receipt = out.send("orders", b"one", timeout=30)
        assert receipt.durable, receipt
