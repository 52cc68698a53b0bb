"""Signatures over field values and body."""

from protocols.remoting.command import RemotingCommand
from protocols.remoting.signing import is_signed_by, sign, signed_content


def test_content_is_values_by_name_then_body() -> None:
    """Names order the values and are not signed themselves (``combineRequestContent``)."""
    fields = {"b": "2", "a": "1", "Signature": "x", "AccessKey": "k"}
    assert signed_content(fields, b"body") == b"k12body"


def test_old_clients_leave_the_query_flag_out() -> None:
    fields = {"_UNIQUE_KEY_QUERY": "true", "a": "1"}
    assert signed_content(fields, version=395) == b"1"
    assert signed_content(fields, version=409) == b"true1"


def test_sign_and_verify() -> None:
    """The right secret verifies; another secret, a changed value or body does not."""
    command = RemotingCommand(310, {"b": "topic"}, b"body")
    assert not is_signed_by(command, "secret")
    sign(command, "key", "secret")
    # base64(HMAC-SHA1("secret", "keytopicbody")) by openssl
    assert command.fields["Signature"] == "QtwJwZ/UFZbwSmQBTpJIo/VTmgU="
    assert is_signed_by(command, "secret")
    assert not is_signed_by(command, "other")
    command.body = b"Body"
    assert not is_signed_by(command, "secret")
