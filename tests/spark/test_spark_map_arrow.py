"""Option mapArrow: only functions that the program has permitted are imported."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark import register
from saturnmq.spark.options import parse_options
from saturnmq.spark.registration import mapper_name
from saturnmq.testing import SyncEmbeddedBroker

GIVEN = {"nameServer": "h:1", "topic": "T"}


@pytest.mark.parametrize("mapper", ["os:remove", "antigravity:geohash", "jobs:narrow ", "jobs:other", "jobs"])
def test_map_arrow_refuses_what_is_not_permitted(mapper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATURNMQ_SPARK_MAPPERS", "jobs:narrow,jobs")
    before = set(sys.modules)
    with pytest.raises(ConfigError, match="option mapArrow="):
        parse_options(GIVEN | {"mapArrow": mapper})
    assert not {"antigravity", "jobs"} & (set(sys.modules) - before), "nothing is imported before the check"
    assert parse_options(GIVEN | {"mapArrow": "jobs:narrow"}).map_arrow == "jobs:narrow"


def test_only_importable_functions_can_be_permitted() -> None:
    assert mapper_name(copy.copy) == "copy:copy"
    assert mapper_name("jobs.mapping:narrow") == "jobs.mapping:narrow"
    for mapper in (lambda batch: batch, copy.Error().with_traceback):
        with pytest.raises(ConfigError, match="top level of a module"):
            mapper_name(mapper)


@pytest.mark.spark
def test_session_runs_permitted_functions_only(spark: Any, server: SyncEmbeddedBroker, send: Any) -> None:
    send("mapped", 20)

    def read(mapper: str) -> Any:
        made = spark.read.format("rocketmq").options(nameServer=server.name_servers, topic="mapped", columns="body")
        return made.option("mapArrow", mapper).schema("body binary").load()

    try:
        register(spark, mappers=[copy.copy])
        assert read("copy:copy").count() == 20
        for refused in ("copy:deepcopy", "os:remove"):
            with pytest.raises(Exception, match="is not permitted: name it in register"):
                read(refused).count()
            with pytest.raises(Exception, match="is not permitted: name it in register"):
                spark.sql(
                    f"create or replace temporary view forged (body binary) using rocketmq options (nameServer "
                    f"'{server.name_servers}', topic 'mapped', columns 'body', mapArrow '{refused}')"
                )
                spark.sql("select * from forged").count()
    finally:
        register(spark)
    with pytest.raises(Exception, match="is not permitted"):
        read("copy:copy").count()
