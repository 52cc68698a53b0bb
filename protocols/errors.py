"""
The three ways to say no.

=============  ==========================================  ==========================
error          who is at fault                             what ends
=============  ==========================================  ==========================
PeerError      the peer broke its protocol                 its connection
Refused        nobody: a well-formed request we decline    that request
ConfigError    the operator's file                         the start, or the reload
=============  ==========================================  ==========================

A fault of ours is an assertion. ``Code`` has the names and numbers of
``apache.rocketmq.v2.Code`` (rocketmq-apis, definition.proto); adapters translate the code,
never the text.
"""

from enum import IntEnum
from typing import Final

import msgspec


class Code(IntEnum):
    """Outcome of a request, in the words of ``apache.rocketmq.v2.Code``."""

    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_ACCESS_POINT = 40001
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    ILLEGAL_OFFSET = 40019
    UNAUTHORIZED = 40100
    PAYMENT_REQUIRED = 40200
    FORBIDDEN = 40300
    NOT_FOUND = 40400
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    OFFSET_NOT_FOUND = 40404
    REQUEST_TIMEOUT = 40800
    PAYLOAD_TOO_LARGE = 41300
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    PRECONDITION_FAILED = 42800
    TOO_MANY_REQUESTS = 42900
    LITE_TOPIC_QUOTA_EXCEEDED = 42901  # a number is at its limit: a light queue's, open connections
    REQUEST_HEADER_FIELDS_TOO_LARGE = 43100
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_ERROR = 50000
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    PROXY_TIMEOUT = 50400
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402
    UNSUPPORTED = 50500
    VERSION_UNSUPPORTED = 50501
    VERIFY_FIFO_MESSAGE_UNSUPPORTED = 50502
    FAILED_TO_CONSUME_MESSAGE = 60000


MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises of bytes from a peer that are not what they should be."""


class GatewayError(Exception):
    """Base of everything Tidegate raises on purpose."""


class PeerError(GatewayError):
    """The peer broke its protocol. Its connection ends; ours does not."""


class Refused(GatewayError):
    """A well-formed request that we decline: counted and answered, logged without a traceback."""

    def __init__(self, code: Code, subject: str, hint: str) -> None:
        super().__init__(f"{code.name} for {subject}: {hint}")
        self.code = code  # adapters translate this, never the text
        self.subject = subject  # topic, group or principal, safe to log
        self.hint = hint  # what the operator or client can do about it


class ConfigError(GatewayError):
    """One or more mistakes in the configuration, each a line an operator can act on."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems  # "routing.yaml:14:9 routes[2].to[0].cluster: 'uz' is no cluster"
