"""Keys given by environment variables."""

from __future__ import annotations

import pytest

from saturnmq.cli.settings import broker_classes
from saturnmq.config.environment import EnvironmentKey, read_environment, variable_of
from saturnmq.config.settings import keys_of
from saturnmq.namesrv.settings import NameServerSettings
from saturnmq.protocol.errors import ConfigError

BROKER_KEYS = sorted({name for cls in broker_classes().values() for name in keys_of(cls)})


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("brokerName", "SATURNMQ_BROKER_NAME"),
        ("brokerIP1", "SATURNMQ_BROKER_IP1"),
        ("checkCRCOnRecover", "SATURNMQ_CHECK_CRC_ON_RECOVER"),
        ("tls.server.certPath", "SATURNMQ_TLS_SERVER_CERT_PATH"),
        ("enableDLegerCommitLog", "SATURNMQ_ENABLE_D_LEGER_COMMIT_LOG"),
    ],
)
def test_variable_is_the_key_in_upper_snake_case(name: str, variable: str) -> None:
    assert variable_of(name) == variable
    assert read_environment([name], {variable: "x"}) == ([EnvironmentKey(variable, name, "x")], [])


def test_every_key_has_a_variable_of_its_own() -> None:
    for names in (BROKER_KEYS, sorted(keys_of(NameServerSettings))):
        variables = {variable_of(name): "x" for name in names}
        assert len(variables) == len(names)
        given, unknown = read_environment(names, variables)
        assert (sorted(each.name for each in given), unknown) == (names, [])


def test_case_and_underscores_are_free_but_two_variables_for_a_key_are_an_error() -> None:
    for variable in ("SATURNMQ_BROKERNAME", "SATURNMQ_brokerName", "SATURNMQ_BROKER_NAME"):
        assert [each.name for each in read_environment(BROKER_KEYS, {variable: "a"})[0]] == ["brokerName"]
    with pytest.raises(ConfigError, match="SATURNMQ_BROKERNAME and SATURNMQ_BROKER_NAME both set brokerName"):
        read_environment(BROKER_KEYS, {"SATURNMQ_BROKERNAME": "a", "SATURNMQ_BROKER_NAME": "a"})


def test_variables_that_are_no_keys_are_ignored() -> None:
    others = dict.fromkeys(
        ("SATURNMQ_LOOP", "SATURNMQ_URL", "SATURNMQ_PORT_9876_TCP", "SATURNMQ_SERVICE_HOST", "HOME"), "x"
    )
    assert read_environment(BROKER_KEYS, others) == ([], [])
    assert read_environment(BROKER_KEYS, {"SATURNMQ_BROKER_NAM": "x"}) == ([], ["SATURNMQ_BROKER_NAM"])
