"""
Users and their rights (3001-3010), as ``mqadmin createUser`` and its like keep them.

They are settings of this store, in its log; tools write them to each store of a cluster. Whether
anybody must show them is another matter: ``store.auth``. (RocketMQ 5.4: ``AdminBrokerProcessor``,
``AuthenticationMetadataManagerImpl``, ``AuthorizationMetadataManagerImpl``.)
"""

from functools import lru_cache
from typing import Final

import msgspec

from protocols import clock
from protocols.errors import Code, Refused
from protocols.remoting import acl
from protocols.remoting.acl import AclInfo, UserInfo
from protocols.remoting.bodies import decode_body
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import text_field
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler

USERS_TABLE: Final = "user"
ACLS_TABLE: Final = "acl"
"""Tables of the engine's settings: user name → JSON."""

USERS_MAX: Final = 100_000
NAME_BYTES_MAX: Final = 255


# ── what is known ───────────────────────────────────────────────────────────────────────


def find_user(context: Context, name: str) -> UserInfo | None:
    found = context.engine.catalog.settings(USERS_TABLE).get(name)
    return _user_of(found) if found is not None else None


def find_acl(context: Context, name: str) -> AclInfo | None:
    found = context.engine.catalog.settings(ACLS_TABLE).get(name)
    return _acl_of(found) if found is not None else None


@lru_cache(maxsize=4096)
def _user_of(text: bytes) -> UserInfo:
    return msgspec.json.decode(text, type=UserInfo)


@lru_cache(maxsize=4096)
def _acl_of(text: bytes) -> AclInfo:
    return msgspec.json.decode(text, type=AclInfo)


def _known(context: Context, name: str) -> UserInfo:
    user = find_user(context, name)
    if user is None:
        raise Refused(Code.FORBIDDEN, name[:80], "The user is not exist")
    return user


# ── users ───────────────────────────────────────────────────────────────────────────────


def create_user(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    name = _name(request)
    told = decode_body(UserInfo, request.body)
    if not told.password:
        raise Refused(Code.FORBIDDEN, name, "password can not be blank")
    users = context.engine.catalog.settings(USERS_TABLE)
    if name in users or name == context.access_key:
        raise Refused(Code.FORBIDDEN, name, "The user is existed")
    if len(users) >= USERS_MAX:
        raise Refused(Code.BAD_REQUEST, name, f"more than {USERS_MAX} users")
    return _put_user(context, connection, request, _with(UserInfo(username=name), told))


def update_user(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """What the body leaves out stays."""
    old = _known(context, _name(request))
    _check_super(connection, old)
    return _put_user(context, connection, request, _with(old, decode_body(UserInfo, request.body)))


def _with(old: UserInfo, told: UserInfo) -> UserInfo:
    kind, status = told.user_type or old.user_type, told.user_status or old.user_status
    return UserInfo(
        username=old.username,
        password=told.password or old.password,
        user_type=acl.SUPER if kind.lower() == acl.SUPER.lower() else acl.NORMAL,
        user_status=acl.DISABLED if status.lower() == acl.DISABLED else acl.ENABLED,
    )


def _put_user(
    context: Context, connection: Connection, request: RemotingCommand, user: UserInfo
) -> RemotingCommand | None:
    _check_super(connection, user)
    value = msgspec.json.encode(user)
    return _put(context, connection, request, USERS_TABLE, user.username, value)


def _check_super(connection: Connection, user: UserInfo) -> None:
    """Who is no super user makes none, and changes none."""
    if user.user_type == acl.SUPER and not connection.is_super:
        raise Refused(Code.FORBIDDEN, user.username, "only a super user may do that")


def delete_user(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """And what it was allowed; one that is not there is deleted already."""
    name = text_field(request.fields, "username")
    user = find_user(context, name)
    if user is None:
        return request.answer()
    _check_super(connection, user)
    if find_acl(context, name) is not None:
        context.engine.catalog.put_setting(ACLS_TABLE, name, None, clock.read())
    return _put(context, connection, request, USERS_TABLE, name, None)


def get_user(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    user = find_user(context, _name(request))
    return request.answer(body=b"" if user is None else msgspec.json.encode(user))


def list_users(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    wanted = text_field(request.fields, "filter", "")
    users = context.engine.catalog.settings(USERS_TABLE)
    found = [_user_of(users[name]) for name in sorted(users) if wanted in name]
    return request.answer(body=msgspec.json.encode(found) if found else b"")


def _name(request: RemotingCommand) -> str:
    name = text_field(request.fields, "username", "")
    if not name.strip() or len(name.encode()) > NAME_BYTES_MAX:
        raise Refused(Code.BAD_REQUEST, name[:80], "The username is blank")
    return name


# ── rights ──────────────────────────────────────────────────────────────────────────────


def put_acl(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Create and update (3006, 3007): entries are added, those of the same resource replaced."""
    subject = text_field(request.fields, "subject")
    name = acl.user_name_of(subject)
    _known(context, name)
    told = acl.checked(decode_body(AclInfo, request.body))
    old = find_acl(context, name) or AclInfo(subject=subject)
    return _put_acl(context, connection, request, name, acl.merged(old, told))


def delete_acl(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """All of a user's rights, or those to one resource."""
    name = acl.user_name_of(text_field(request.fields, "subject"))
    _known(context, name)
    old = find_acl(context, name)
    if old is None:
        raise Refused(Code.FORBIDDEN, name, "The acl is not exist.")
    resource = text_field(request.fields, "resource", "")
    if not resource:
        return _put(context, connection, request, ACLS_TABLE, name, None)
    kind = text_field(request.fields, "policyType", "") or acl.CUSTOM
    left = acl.without(old, kind.capitalize(), acl.canonical_resource(resource))
    return _put_acl(context, connection, request, name, left)


def _put_acl(
    context: Context, connection: Connection, request: RemotingCommand, name: str, rights: AclInfo
) -> RemotingCommand | None:
    value = msgspec.json.encode(rights) if rights.policies else None
    return _put(context, connection, request, ACLS_TABLE, name, value)


def get_acl(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    name = acl.user_name_of(text_field(request.fields, "subject"))
    _known(context, name)
    found = find_acl(context, name)
    return request.answer(body=b"" if found is None else msgspec.json.encode(found))


def list_acls(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Of users whose subject has the one text in it, entries whose resource has the other."""
    wanted = text_field(request.fields, "subjectFilter", "")
    resource = text_field(request.fields, "resourceFilter", "")
    acls = context.engine.catalog.settings(ACLS_TABLE)
    found: list[AclInfo] = []
    for name in sorted(acls):
        rights = _acl_of(acls[name])
        if wanted in rights.subject and (shown := acl.about(rights, resource)).policies:
            found.append(shown)
    return request.answer(body=msgspec.json.encode(found) if found else b"")


def _put(
    context: Context,
    connection: Connection,
    request: RemotingCommand,
    table: str,
    name: str,
    value: bytes | None,
) -> RemotingCommand | None:
    pending = context.engine.catalog.put_setting(table, name, value, clock.read())
    context.when_durable(connection, request, pending, lambda _: request.answer())
    return None


HANDLERS: dict[int, Handler] = {
    RequestCode.AUTH_CREATE_USER: create_user,
    RequestCode.AUTH_UPDATE_USER: update_user,
    RequestCode.AUTH_DELETE_USER: delete_user,
    RequestCode.AUTH_GET_USER: get_user,
    RequestCode.AUTH_LIST_USER: list_users,
    RequestCode.AUTH_CREATE_ACL: put_acl,
    RequestCode.AUTH_UPDATE_ACL: put_acl,
    RequestCode.AUTH_DELETE_ACL: delete_acl,
    RequestCode.AUTH_GET_ACL: get_acl,
    RequestCode.AUTH_LIST_ACL: list_acls,
}
