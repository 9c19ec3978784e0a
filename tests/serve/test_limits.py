import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.serve.batching import Limits, Refused, check_address, is_loopback

TOKEN = "abcdefghijklmnop"


def test_a_refusal_has_status_sentence_and_headers():
    refused = Refused(503, "The queue is full.", {"Retry-After": "2"})
    assert (refused.status, str(refused), refused.headers) == (
        503, "The queue is full.", {"Retry-After": "2"},
    )  # fmt: skip
    assert Refused(400, "No.").headers == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_body", 0), ("queue", -1), ("timeout", 0.0), ("body_timeout", float("nan")),
     ("timeout", float("inf")), ("connections", 0)],
)  # fmt: skip
def test_limits_are_positive(field, value):
    with pytest.raises(InputError, match=field):
        Limits(**{field: value})


def test_the_queue_holds_the_largest_request():
    with pytest.raises(InputError, match="may have 9 texts, but the queue holds only 8"):
        Limits(max_rows=9, queue=8)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("localhost", True),
     ("LocalHost", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("", False),
     ("localhost.evil.example", False), ("127.0.0.1.evil.example", False)],
)  # fmt: skip
def test_loopback(host, expected):
    assert is_loopback(host) is expected


def test_an_address_that_others_reach_needs_a_token():
    check_address("127.0.0.1", None)
    check_address("0.0.0.0", TOKEN)
    with pytest.raises(InputError, match="T5X_LITE_TOKEN or by --token-file"):
        check_address("0.0.0.0", None)


@pytest.mark.parametrize("token", ["", "short", "abcdefghijklmno p", "abcdefghijklmno\xe9"])
def test_tokens_that_are_refused(token):
    with pytest.raises(InputError, match="the access token"):
        check_address("127.0.0.1", token)
