"""The signature's test vectors; signed frames of the Java clients verify by the same rules."""

from orbitmq.protocol.command import Command
from orbitmq.protocol.signing import Credentials, sign, signature


def test_signs_the_values_in_the_order_of_their_names_and_the_body() -> None:
    request = Command(105, fields={"topic": "T"}, body=b"body")
    sign(request, Credentials("rocketmq", "12345678"))
    assert request.fields == {
        "topic": "T",
        "AccessKey": "rocketmq",
        "Signature": "gd1YxFZ+Q6AYp3hBk6Hlvtx/86s=",
    }


def test_a_security_token_is_sent_and_signed() -> None:
    request = Command(310, fields={"a": "G", "b": "T"})
    sign(request, Credentials("ak", "sk", "tk"))
    assert request.fields["SecurityToken"] == "tk"
    assert request.fields["Signature"] == "Ll44lVHMgoidPYd569kOkX5t7aA="


def test_signing_twice_gives_the_same_signature() -> None:
    request = Command(10, fields={"b": "x", "A": "y"}, body=b"z")
    sign(request, Credentials("ak", "sk"))
    first = request.fields["Signature"]
    sign(request, Credentials("ak", "sk"))
    assert request.fields["Signature"] == first


def test_a_field_can_be_left_out_as_old_servers_do() -> None:
    assert signature({"a": "1", "_UNIQUE_KEY_QUERY": "true"}, b"", "sk", ("_UNIQUE_KEY_QUERY",)) == signature(
        {"a": "1"}, b"", "sk"
    )


def test_credentials_keep_their_secrets_out_of_logs() -> None:
    assert "sk" not in repr(Credentials("ak", "sk", "token"))
    assert "token" not in repr(Credentials("ak", "sk", "token"))
