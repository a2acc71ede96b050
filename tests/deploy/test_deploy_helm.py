"""The Helm chart: accepted by helm and the schemas of Kubernetes, and its pods' commands form a group of three that serves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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


class Pods:
    """One process per pod with its command, variables and configuration; only addresses, ports and folders are others."""

    def __init__(self, objects: dict[tuple[str, str], dict[str, Any]], folder: Path) -> None:
        words = [word.replace("/data", str(folder)) for word in container(objects, "namesrv")["args"]]
        self.running = {"namesrv": Server(*words, "--port", "0")}
        self.name_server = f"127.0.0.1:{self.running['namesrv'].facts['namesrv'].rpartition(':')[2]}"
        self._folder = folder
        self._described = container(objects, "broker")
        ledger = dict(zip("012", free_ports(3), strict=True))
        text = objects["ConfigMap", "mq-broker"]["data"]["broker.conf"]
        text = re.sub(rf"{NAME.pattern}:40911", lambda match: f"127.0.0.1:{ledger[match[2]]}", text)
        text = re.sub(r"namesrvAddr=.*", f"namesrvAddr={self.name_server}", text)
        text = text.replace("listenPort=10911", "listenPort=0").replace("metricsPort=5557", "metricsPort=0")
        for index in ledger:
            (folder / index).mkdir()
            (folder / index / "broker.conf").write_text(text.replace("/data", str(folder / index)))

    def start(self, index: str) -> None:
        env = environment(self._described["env"], index)
        host = NAME.fullmatch(env["SATURNMQ_ADVERTISED_HOST"])
        assert host is not None and host[2] == index
        assert env["SATURNMQ_DLEDGER_CLUSTER_SECRET"] == "secret of saturnmq-secret"
        env["SATURNMQ_ADVERTISED_HOST"] = "127.0.0.1"
        words = (word.replace("/etc/saturnmq", str(self._folder / index)) for word in self._described["args"])
        self.running[index] = Server(*words, env=env)

    def stop(self) -> None:
        for server in self.running.values():
            server.stop()


@pytest.fixture
def pods(objects: dict[tuple[str, str], dict[str, Any]], tmp_path: Path) -> Iterator[Pods]:
    started = Pods(objects, tmp_path)
    try:
        for index in "012":
            started.start(index)
        yield started
    finally:
        started.stop()


@pytest.mark.realtime
@pytest.mark.spec("INT-17")
def test_rolling_restart_of_the_pods_loses_nothing_acknowledged(pods: Pods) -> None:
    acknowledged = []
    with Client.from_url(f"rmq://{pods.name_server}") as client, client.producer("orders-p") as out:

        def send(bodies: Iterable[bytes]) -> None:
            for body in bodies:
                receipt = out.send("orders", body, timeout=30)
                assert receipt.durable, receipt
                acknowledged.append(body)

        send([b"first"])
        for index in ("2", "1", "0"):  # the order of a StatefulSet
            assert pods.running[index].stop() == 0
            send(b"without %s: %d" % (index.encode(), number) for number in range(10))
            pods.start(index)
            send(b"with %s: %d" % (index.encode(), number) for number in range(10))
        with client.consumer("billing", start="first") as inbox:
            inbox.subscribe("orders")
            missing = set(acknowledged)
            while missing:
                message = inbox.recv(timeout=60)
                missing.discard(message.body)
                message.ack()
