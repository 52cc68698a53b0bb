"""
Who a request is from and whether it may: the cluster's credential, or a user of this store.

The cluster's credential may do everything; a connection whose HELLO it signed is a gateway's and
need not sign again. Users come in where ``store.auth`` says so: they sign each request, never use
private codes, and do what their rights allow. What is refused is answered NO_PERMISSION.
"""

from typing import Final

from protocols.addresses import host_of
from protocols.errors import PeerError
from protocols.remoting import acl
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import HeaderError
from protocols.remoting.private import PrivateCode
from protocols.remoting.signing import ACCESS_KEY, is_signed_by
from store.handlers.connection import Connection
from store.handlers.context import Context
from store.handlers.needs import needs_of
from store.handlers.users import find_acl, find_user

PRIVATE_CODES: Final = range(20000, 21000)
NO_CREDENTIAL: Final = "this store asks for the cluster's credential"
WRONG_SIGNATURE: Final = "check signature failed."


def refusal(context: Context, connection: Connection, command: RemotingCommand) -> str:
    """Why the request is refused; empty: it may."""
    if connection.has_access:
        return ""
    name = command.fields.get(ACCESS_KEY, "")
    takes_users = context.config.auth.authentication
    if not name:
        return "username cannot be null." if takes_users else NO_CREDENTIAL
    if not takes_users or name == context.access_key:
        if not is_signed_by(command, context.secret):
            return WRONG_SIGNATURE if takes_users else NO_CREDENTIAL
        connection.has_access = command.code == PrivateCode.HELLO
        connection.is_super = True
        return ""
    return _refusal_of_user(context, connection, command, name)


def _refusal_of_user(
    context: Context, connection: Connection, command: RemotingCommand, name: str
) -> str:
    user = find_user(context, name)
    if user is None:
        return f"User:{name} is not found."
    if user.user_status == acl.DISABLED:
        return f"User:{name} is disabled."
    if not is_signed_by(command, user.password):
        return WRONG_SIGNATURE
    if command.code in PRIVATE_CODES:
        return "private codes are for gateways"
    connection.is_super = user.user_type == acl.SUPER
    if connection.is_super or not context.config.auth.authorization:
        return ""
    return _lacking(context, connection, command, name)


def _lacking(context: Context, connection: Connection, command: RemotingCommand, name: str) -> str:
    """The first need that the user's rights do not cover, as Apache's brokers tell it."""
    rights = find_acl(context, name) or acl.AclInfo()
    source_ip = host_of(connection.address)
    try:
        needs = needs_of(context, command)
    except (PeerError, HeaderError) as error:
        return str(error)
    for need in needs:
        if not acl.may(rights, need, source_ip):
            return f"User:{name} has no permission to access {need.resource} from {source_ip}"
    return ""
