"""
Who published a retained value, kept with it where a listener asks for that.

A value outlives the right of its publisher; with ``checks_retained_source`` it goes to no new
subscriber once that right is gone. (Mosquitto: ``check_retain_source``.)
"""

from functools import lru_cache
from typing import Final

import msgspec

from protocols.canonical import Call, Identity, Properties
from protocols.mqtt.rendering import stored_value
from protocols.pipeline import Permission

PUBLISHER: Final = "TG_PUBLISHER"


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """What the rules look at."""

    listener: str
    tenant: str
    client_id: str
    identity: str
    roles: tuple[str, ...] = ()
    is_anonymous: bool = False
    certificate_name: str = ""
    peer: str = ""


def source_properties(call: Call) -> Properties:
    """What is stored with each retained publish of this client; a token's rights end with it."""
    if call.identity.rights is not None:
        return ()
    source = Source(
        listener=call.listener,
        tenant=call.tenant,
        client_id=call.client_id,
        identity=call.identity.name,
        roles=call.identity.roles,
        is_anonymous=call.identity.is_anonymous,
        certificate_name=call.certificate_name,
        peer=call.peer,
    )
    return ((PUBLISHER, msgspec.json.encode(source).decode()),)


def is_allowed_still(permission: Permission, properties_text: bytes, subject: str) -> bool:
    """Whether the publisher may publish there now; one who is not known may."""
    value = stored_value(properties_text, PUBLISHER.encode())
    call = _call_of(value) if value else None
    return call is None or permission.is_allowed(call, "publish", subject=subject)


@lru_cache(maxsize=1000)
def _call_of(value: bytes) -> Call | None:
    """The same for the same publisher, so that what the rules say of it is remembered."""
    try:
        source = msgspec.json.decode(value, type=Source)
    except msgspec.DecodeError:
        return None  # not ours
    return Call(
        protocol="mqtt",
        listener=source.listener,
        identity=Identity(
            name=source.identity, roles=source.roles, is_anonymous=source.is_anonymous
        ),
        tenant=source.tenant,
        client_id=source.client_id,
        peer=source.peer,
        certificate_name=source.certificate_name,
    )
