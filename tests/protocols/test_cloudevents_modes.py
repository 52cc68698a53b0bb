"""The codec, the mapping, the filters and the verdicts: pure functions."""

import base64
import json
import zlib
from typing import Any

import pytest

from protocols.canonical import StoredMessage
from protocols.cloudevents import mapping
from protocols.cloudevents.filters import compile_filters
from protocols.cloudevents.modes import (
    BATCH,
    STRUCTURED,
    BadEvent,
    Event,
    decode_request,
    encode_batch,
    encode_binary,
    encode_structured,
)
from protocols.cloudevents.problems import Problem
from protocols.cloudevents.verdicts import Fate, backoff_ms, has_consent, judge, retry_after_ms

REQUIRED = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
HEADERS = [(f"ce-{name}", value) for name, value in REQUIRED.items()]


def decode(content_type: str, body: bytes, headers: list[tuple[str, str]]) -> list[Event]:
    return decode_request(content_type, headers, body, batch_max=10)


def structured(**more: Any) -> Event:
    (event,) = decode(STRUCTURED, json.dumps(REQUIRED | more).encode(), [])
    return event


# ── modes ───────────────────────────────────────────────────────────────────────────────


def test_binary_keeps_bytes_and_decodes_headers_once() -> None:
    """One round of percent-decoding after the quotes; the body as it is."""
    more = [("CE-Subject", "a%20b%2520"), ("ce-note", '"x \\" y"')]
    (event,) = decode("application/json", b'{"a":1.10}', HEADERS + more)
    assert event.attributes["subject"] == "a b%20"
    assert event.attributes["note"] == 'x " y'
    assert (event.content_type, event.data) == ("application/json", b'{"a":1.10}')


def test_content_type_alone_decides_the_mode() -> None:
    """ce- headers next to a structured body do not win."""
    body = json.dumps(REQUIRED | {"id": "body"}).encode()
    (event,) = decode("Application/CloudEvents+JSON; charset=utf-8", body, HEADERS)
    assert event.attributes["id"] == "body"


@pytest.mark.parametrize(
    ("members", "data", "content_type"),
    [
        ({}, None, ""),
        ({"data": None}, b"null", "application/json"),
        ({"data": {"a": [1, 2]}}, b'{"a": [1, 2]}', "application/json"),
        ({"data": "x", "datacontenttype": "text/plain"}, b"x", "text/plain"),
        ({"data": "x", "datacontenttype": "application/json"}, b'"x"', "application/json"),
        ({"data_base64": "AAE="}, b"\x00\x01", ""),
    ],
)
def test_structured_data(members: dict[str, Any], data: bytes | None, content_type: str) -> None:
    """The data's own bytes, by the rules of the JSON format."""
    event = structured(**members)
    assert (event.data, event.content_type) == (data, content_type)


def test_structured_attribute_types() -> None:
    """Booleans and integers become canonical strings; null is absent."""
    event = structured(flag=True, count=-5, nothing=None)
    assert (event.attributes["flag"], event.attributes["count"]) == ("true", "-5")
    assert "nothing" not in event.attributes


@pytest.mark.parametrize(
    ("content_type", "body", "headers", "attribute", "status"),
    [
        ("text/plain", b"x", [], "Content-Type", 415),
        ("text/plain", b"x", HEADERS[:3], "type", 400),
        ("text/plain", b"x", [*HEADERS, ("ce-datacontenttype", "a")], "ce-datacontenttype", 400),
        ("text/plain", b"x", [*HEADERS, ("ce-x", "%C0%A0")], "ce-x", 400),
        ("text/plain", b"x", [*HEADERS, ("ce-time", "soon")], "time", 400),
        (STRUCTURED, b"{", [], "body", 400),
        (
            STRUCTURED,
            b'{"specversion":"0.3","id":"1","source":"s","type":"t"}',
            [],
            "specversion",
            400,
        ),
        (
            STRUCTURED,
            json.dumps(REQUIRED | {"data": 1, "data_base64": ""}).encode(),
            [],
            "data_base64",
            400,
        ),
        (STRUCTURED, json.dumps(REQUIRED | {"data_base64": "?"}).encode(), [], "data_base64", 400),
        (STRUCTURED, json.dumps(REQUIRED | {"n": 1.5}).encode(), [], "n", 400),
        (STRUCTURED, b'{"id":' + b"[" * 9999 + b"]" * 9999 + b"}", [], "body", 400),
        (
            STRUCTURED,
            json.dumps(REQUIRED | {"datacontenttype": "a\nb"}).encode(),
            [],
            "datacontenttype",
            400,
        ),
        ("application/cloudevents+xml", b"", [], "Content-Type", 415),
        (BATCH, b"{}", [], "body", 400),
        (BATCH, b"[" + b",".join([b"{}"] * 11) + b"]", [], "body", 413),
        (BATCH, b"[{}]", [], "[0].specversion", 400),
    ],
)
def test_faults_name_the_attribute(
    content_type: str, body: bytes, headers: list[tuple[str, str]], attribute: str, status: int
) -> None:
    """What is wrong, and with which status."""
    with pytest.raises(BadEvent) as bad:
        decode(content_type, body, headers)
    assert (bad.value.attribute, bad.value.status) == (attribute, status)


@pytest.mark.parametrize(
    "event",
    [
        Event(attributes=REQUIRED | {"subject": 'ü "%"'}, content_type="text/plain", data=b"x"),
        Event(attributes=REQUIRED, content_type="application/json", data=b'{"a":  1.10}'),
        Event(attributes=REQUIRED, content_type="application/json", data=b"not json"),
        Event(attributes=REQUIRED, content_type="image/png", data=bytes(range(256))),
        Event(attributes=REQUIRED),
    ],
)
def test_round_trips(event: Event) -> None:
    """Binary, structured and batch mode give back what went in, data byte for byte."""
    headers, body = encode_binary(event)
    assert decode(headers.get("Content-Type", ""), body, list(headers.items())) == [event]
    (again,) = decode(STRUCTURED, encode_structured(event), [])
    assert again == event
    assert decode(BATCH, encode_batch([event, event]), []) == [event, event]


# ── mapping ─────────────────────────────────────────────────────────────────────────────


def stored(body: bytes, *, sys_flag: int = 0, **properties: str) -> StoredMessage:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return StoredMessage(
        record=b"",
        topic="up",
        body=body,
        properties_text=text.encode(),
        queue_id=0,
        queue_offset=0,
        log_position=7,
        born_ms=1_763_000_000_123,
        store_ms=0,
        sys_flag=sys_flag,
    )


def test_event_to_message() -> None:
    """Attributes become CE_ properties; subject, partitionkey, expirytime and id their own."""
    event = structured(
        subject="s/7", partitionkey="k", expirytime="2026-11-21T10:00:00Z", data={"x": 1}
    )
    heads = mapping.Heads()
    message = mapping.to_message(event, "up", heads)
    assert (message.head.subject, message.head.topic) == ("up/s/7", "up")
    assert (message.head.order_key, message.head.is_fifo) == ("k", True)
    assert message.expires_at_ms == 1_795_255_200_000
    assert ("CE_id", "1") in message.properties
    assert ("CE_contenttype", "application/json") in message.properties
    assert message.keys == "1"
    assert mapping.to_message(event, "up", heads).head is message.head


@pytest.mark.parametrize("data", [None, b"x"])
def test_events_come_back_as_they_were(data: bytes | None) -> None:
    """No data is one NUL byte in the store, and no data again outside."""
    event = Event(attributes=REQUIRED | {"ext": "1"}, content_type="text/plain", data=data)
    message = mapping.to_message(event, "up", mapping.Heads())
    assert message.body == (data or b"\x00")
    assert mapping.from_stored(stored(message.body, **dict(message.properties))) == event


def test_messages_of_other_protocols_are_events_too() -> None:
    """Source, type, subject, time; user properties whose names allow it are extensions."""
    event = mapping.from_stored(
        stored(
            b"21.5",
            UNIQ_KEY="AB",
            TG_SUBJECT="plants/1/temp",
            TG_PROTOCOL="mqtt",
            TG_CLIENT="dev-7",
            TG_CONTENT_TYPE="text/plain",
            Color="red",
            mqtt_qos="1",
        )
    )
    assert event.attributes == {
        "specversion": "1.0",
        "id": "AB",
        "source": "/mqtt/clients/dev-7",
        "type": "tidegate.message",
        "subject": "plants/1/temp",
        "time": "2025-11-13T02:13:20.123Z",
        "color": "red",
    }
    assert (event.content_type, event.data) == ("text/plain", b"21.5")


def test_a_structured_event_of_another_protocol_is_one() -> None:
    """Its content type says so; a body that is none is told as a message."""
    names = {"UNIQ_KEY": "AB", "TG_CONTENT_TYPE": "application/cloudevents+json; charset=utf-8"}
    event = mapping.from_stored(stored(json.dumps(REQUIRED | {"data": [1]}).encode(), **names))
    assert (event.attributes, event.data) == (REQUIRED, b"[1]")
    for body in (b"{}", b"\xff"):
        assert mapping.from_stored(stored(body, **names)).attributes["type"] == mapping.MESSAGE_TYPE


def test_requests_and_answers_cross_over() -> None:
    """Where an answer goes and what it answers are fields of MQTT 5 and AMQP, extensions here."""
    event = structured(correlationid="c", replyto="r/t")
    message = mapping.to_message(event, "up", mapping.Heads())
    fields = {"TG_CORRELATION_ID": "c", "TG_REPLY_TO": "r/t"}
    assert fields.items() <= dict(message.properties).items()
    told = mapping.from_stored(stored(b"x", UNIQ_KEY="AB", TG_PRIORITY="7", **fields)).attributes
    assert {"correlationid": "c", "replyto": "r/t", "priority": "7"}.items() <= told.items()
    own = dict(message.properties) | {"TG_REPLY_TO": "other", "CE_priority": "1"}
    assert mapping.from_stored(stored(b"x", **own)).attributes["replyto"] == "r/t"


def test_compressed_bodies_are_inflated() -> None:
    """A remoting producer's zlib body is told plain; a wrong flag changes nothing."""
    assert mapping.from_stored(stored(zlib.compress(b"long"), sys_flag=1)).data == b"long"
    assert mapping.from_stored(stored(b"plain", sys_flag=1)).data == b"plain"


# ── filters ─────────────────────────────────────────────────────────────────────────────

FILTERED = Event(attributes=REQUIRED | {"subject": "eu/1"}, content_type="application/json")


@pytest.mark.parametrize(
    ("filters", "is_wanted"),
    [
        ([], True),
        ([{"exact": {"type": "t"}}], True),
        ([{"exact": {"type": "t", "subject": "x"}}], False),
        ([{"prefix": {"subject": "eu/"}}, {"suffix": {"subject": "/1"}}], True),
        ([{"exact": {"absent": "x"}}], False),
        ([{"not": {"exact": {"absent": "x"}}}], True),
        ([{"any": [{"exact": {"type": "x"}}, {"exact": {"id": "1"}}]}], True),
        ([{"all": [{"exact": {"type": "x"}}, {"exact": {"id": "1"}}]}], False),
        ([{"exact": {"datacontenttype": "application/json"}}], True),
    ],
)
def test_filters(filters: list[Any], is_wanted: bool) -> None:
    """The dialects of the Subscriptions API."""
    assert compile_filters(filters)(FILTERED) is is_wanted


@pytest.mark.parametrize(
    "filters",
    [{}, [1], [{}], [{"sql": "x"}], [{"exact": {}}], [{"exact": {"a": ""}}], [{"any": []}]],
)
def test_bad_filters(filters: Any) -> None:
    """An unknown dialect or an empty argument is refused when the subscription is made."""
    with pytest.raises(ValueError, match="filters"):
        compile_filters(filters)


def test_deep_filters_are_refused() -> None:
    """Nesting is bounded."""
    nested: Any = {"exact": {"a": "b"}}
    for _ in range(40):
        nested = {"not": nested}
    with pytest.raises(ValueError, match="nested"):
        compile_filters([nested])


# ── verdicts ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "attempt", "fate"),
    [
        (200, 1, Fate.DONE),
        (204, 9, Fate.DONE),
        (301, 1, Fate.BURY),
        (400, 1, Fate.BURY),
        (415, 1, Fate.BURY),
        (410, 1, Fate.RETIRE),
        (404, 1, Fate.AGAIN),
        (429, 1, Fate.AGAIN),
        (500, 2, Fate.AGAIN),
        (0, 1, Fate.AGAIN),
        (0, 3, Fate.BURY),
        (503, 3, Fate.BURY),
    ],
)
def test_verdicts(status: int, attempt: int, fate: Fate) -> None:
    """What a sink's answer means for the event."""
    assert judge(status, {}, attempt=attempt, attempts_max=3, now_ms=0).fate is fate


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("3", 3000),
        ("99999999", 3_600_000),
        ("Thu, 01 Jan 1970 00:00:10 GMT", 5000),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after(text: str, wanted: int | None) -> None:
    """Seconds or a date, bounded; nonsense is ignored."""
    assert retry_after_ms(text, now_ms=5000) == wanted


def test_backoff() -> None:
    """Doubles from half a second to ten minutes."""
    assert [backoff_ms(attempt) for attempt in (1, 2, 3, 99)] == [500, 1000, 2000, 600_000]


@pytest.mark.parametrize(
    ("headers", "is_given"),
    [
        ({}, False),
        ({"WebHook-Allowed-Origin": "*"}, True),
        ({"WebHook-Allowed-Origin": "GW.example.com"}, True),
        ({"WebHook-Allowed-Origin": "other"}, False),
    ],
)
def test_consent(headers: dict[str, str], is_given: bool) -> None:
    """Only our origin or * is consent."""
    assert has_consent(headers, "gw.example.com") is is_given


def test_base64_of_binary_data() -> None:
    """Data that is no JSON or text goes as data_base64."""
    document = json.loads(encode_structured(Event(attributes=REQUIRED, data=b"\xff")))
    assert document["data_base64"] == base64.b64encode(b"\xff").decode()


@pytest.mark.parametrize(
    ("name", "value"),
    [("id", b'"\xb1"'), ("data", b'{"a":"\xb1"}'), ("data_base64", b'"\xb1"')],
)
def test_members_that_are_no_text_are_refused(name: str, value: bytes) -> None:
    """Found by mutation: what is kept as it stands is not looked into before."""
    members = json.dumps({key: item for key, item in REQUIRED.items() if key != name}).encode()
    body = b'%s,"%s":%s}' % (members[:-1], name.encode(), value)
    for kind, text in ((STRUCTURED, body), (BATCH, b"[" + body + b"]")):
        with pytest.raises(BadEvent) as bad:
            decode(kind, text, [])
        assert bad.value.attribute.endswith(name)


def test_a_problem_quotes_bytes_that_are_no_text() -> None:
    problem = Problem(415, "application/\udcad", attribute="\udcad")
    found = json.loads(problem.body())
    assert (found["detail"], found["attribute"]) == ("application/\\udcad", "\\udcad")
