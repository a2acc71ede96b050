"""Exception classes and numeric codes of the protocol (docs/spec/00 section 6, API-30)."""

from __future__ import annotations

import pytest

from saturnmq.protocol import errors
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import ResponseError, SaturnError, response_error


@pytest.mark.spec("API-30")
def test_response_code_maps_to_one_class_and_keeps_remark() -> None:
    seen = set()
    for code in ResponseCode:
        error = response_error(code, "why", broker="b", hint="do this")
        assert (error.code, error.remark, error.broker) == (code, "why", "b")
        assert str(error) == "why. do this"
        if type(error) is not ResponseError:
            assert type(error).response_code == code
            assert type(error) not in seen
            seen.add(type(error))
    assert len(seen) >= 24


def test_unknown_code_yields_plain_response_error() -> None:
    error = response_error(4711)
    assert type(error) is ResponseError
    assert (error.code, str(error), error.retryable) == (4711, "response code 4711", False)


def test_second_class_for_one_code_is_rejected() -> None:
    with pytest.raises(RuntimeError):
        errors._define("Again", ResponseCode.SYSTEM_BUSY, "doc")


@pytest.mark.spec("PR-16")
def test_retryable_codes_match_java_producer() -> None:
    retried = {code for code in ResponseCode if response_error(code).retryable}
    assert retried >= {
        ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_BUYER_ID, ResponseCode.NOT_IN_CURRENT_UNIT,
    }  # fmt: skip
    assert ResponseCode.MESSAGE_ILLEGAL not in retried
    assert response_error(ResponseCode.TOPIC_NOT_EXIST).refresh_route


@pytest.mark.spec("REM-08")
def test_missing_field_message_matches_apache() -> None:
    error = errors.MissingField("queueId")
    assert str(error) == "the custom field <queueId> is null"
    assert error.field == "queueId"


def test_peer_errors_derive_from_remote_protocol_error() -> None:
    for cls in (errors.FrameError, errors.HeaderError, errors.MissingField, errors.MessageError, errors.BodyError):
        assert issubclass(cls, errors.RemoteProtocolError)
    assert not issubclass(errors.LocalProtocolError, errors.RemoteProtocolError)
    assert issubclass(errors.RemoteProtocolError, SaturnError)


def test_config_error_carries_all_problems() -> None:
    assert errors.ConfigError(["a", "b"]).problems == ["a", "b"]
    assert str(errors.ConfigError(["a", "b"])) == "a; b"
    assert errors.ConfigError("a").problems == ["a"]


def test_invariant_raises_when_condition_is_false() -> None:
    errors.invariant(True, "never")
    with pytest.raises(errors.InvariantBroken, match="because"):
        errors.invariant(0, "because")


def test_request_codes_match_4_9_7() -> None:
    of_5x = {RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, RequestCode.LITE_PULL_MESSAGE}
    assert len(set(RequestCode) - of_5x) == 96
    assert (RequestCode(310).name, RequestCode(329).name) == ("SEND_MESSAGE_V2", "DELETE_EXPIRED_COMMITLOG")
