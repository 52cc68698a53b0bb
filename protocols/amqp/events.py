"""What an AMQP connection tells its owner."""

from typing import NamedTuple

from protocols.amqp.codec import Ack, Call, Oversize, Publish
from protocols.amqp.fields import Table


class LoginRequested(NamedTuple):
    """Answer with ``accept_login`` or ``refuse_login``."""

    user: str
    password: bytes
    client_properties: Table
    is_external: bool = False
    """Neither name nor password was said: the certificate says who it is."""


class OpenRequested(NamedTuple):
    """Answer with ``accept_open`` or ``close``."""

    virtual_host: str


class SecretRenewed(NamedTuple):
    """Answer with ``accept_secret`` or ``close``."""

    secret: bytes


class ChannelOpened(NamedTuple):
    channel: int


class ChannelEnded(NamedTuple):
    """The client closed it: give back what it holds, then call ``end_channel``."""

    channel: int


class Ended(NamedTuple):
    """No more events will come; *reason* is for the log, empty when all went well."""

    reason: str


Event = (
    LoginRequested
    | OpenRequested
    | SecretRenewed
    | ChannelOpened
    | ChannelEnded
    | Ended
    | Publish
    | Ack
    | Call
    | Oversize
)
