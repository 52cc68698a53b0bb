"""
Arguments of declarations: which are valid, which must agree, in RabbitMQ's words.

Source: ``rabbit_amqqueue:check_declare_arguments`` and ``rabbit_misc:assert_args_equivalence``.
"""

import json
from collections.abc import Callable
from typing import Final

from protocols.amqp import replies
from protocols.amqp.fields import (
    INTEGER_TAGS,
    Field,
    Table,
    are_equal,
    decode_table,
    text_of,
)
from protocols.amqp.matching import DELAYED, DELAYED_TYPE, TYPES, X_MATCHES
from protocols.amqp.replies import AmqpFault

TYPE_NAMES: Final = {
    "t": "bool",
    "b": "byte",
    "B": "unsignedbyte",
    "s": "short",
    "u": "unsignedshort",
    "I": "signedint",
    "i": "unsignedint",
    "l": "long",
    "f": "float",
    "d": "double",
    "D": "decimal",
    "S": "longstr",
    "A": "array",
    "T": "timestamp",
    "F": "table",
    "V": "void",
    "x": "binary",
}
"""Names of the field types in RabbitMQ's texts."""


PRIORITY_MAX: Final = (1 << 31) - 1
"""Of consumers: beyond it they are alike."""


def _whole(field: Field) -> str:
    is_whole = field.tag in INTEGER_TAGS and isinstance(field.value, int)
    return "" if is_whole else f'"expected integer, got {TYPE_NAMES[field.tag]}"'


def _natural(field: Field) -> str:
    if isinstance(field.value, int) and field.value < 0:
        return f"{{value_negative,{field.value}}}"
    return _whole(field)


def _positive(field: Field) -> str:
    return _natural(field) or ("{value_zero,0}" if field.value == 0 else "")


def _octet(field: Field) -> str:
    problem = _natural(field)
    if not problem and isinstance(field.value, int) and field.value > 255:
        return f"{{max_value_exceeded,{field.value}}}"
    return problem


def _text(field: Field) -> str:
    return "" if field.tag == "S" else f"{{unacceptable_type,{TYPE_NAMES[field.tag]}}}"


def _bool(field: Field) -> str:
    return "" if field.tag == "t" else f"{{unacceptable_type,{TYPE_NAMES[field.tag]}}}"


def _one_of(problem: str, *allowed: str) -> Callable[[Field], str]:
    """*problem* may name the value."""

    def check(field: Field) -> str:
        value = field.value if isinstance(field.value, str) else ""
        return _text(field) or ("" if value in allowed else problem.replace("{}", value))

    return check


QUEUE_TYPES: Final = ("classic", "quorum")


def _queue_type(field: Field) -> str:
    if field.value == "stream":
        return "streams are not supported here, use 'classic' or 'quorum'"
    return _one_of("\"unsupported queue type '{}'\"", *QUEUE_TYPES)(field)


QUEUE_ARGUMENTS: Final[dict[str, Callable[[Field], str]]] = {
    "x-expires": _positive,
    "x-message-ttl": _natural,
    "x-dead-letter-exchange": lambda field: "",  # see check_queue_arguments
    "x-dead-letter-routing-key": lambda field: "",
    "x-dead-letter-strategy": _one_of(
        "invalid_dead_letter_strategy", "at-most-once", "at-least-once"
    ),
    "x-max-length": _natural,
    "x-max-length-bytes": _natural,
    "x-max-priority": _octet,
    "x-overflow": _one_of("invalid_overflow", "drop-head", "reject-publish", "reject-publish-dlx"),
    "x-queue-mode": _one_of("\"unsupported queue mode '{}'\"", "default", "lazy"),
    "x-single-active-consumer": _bool,
    "x-queue-type": _queue_type,
    "x-delivery-limit": _whole,
}
"""Known arguments of queue.declare: checked, and compared when declared again."""

NAMES: Final = ("x-dead-letter-exchange", "x-dead-letter-routing-key")
OF_STREAMS: Final = ("x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size")
NOT_OF_TYPE: Final = {
    "classic": (
        "x-delivery-limit",
        "x-dead-letter-strategy",
        "x-quorum-initial-group-size",
        *OF_STREAMS,
    ),
    "quorum": ("x-max-priority", "x-queue-mode", *OF_STREAMS),
}
"""What other types of queue have."""


def check_queue_arguments(queue: str, vhost: str, arguments: Table) -> None:
    """Raises AmqpFault 406 for the first bad one; unknown ones are accepted."""
    what = f"queue '{queue}' in vhost '{vhost}'"

    def refuse(text: str) -> AmqpFault:
        return AmqpFault(replies.PRECONDITION_FAILED, text)

    for name in NAMES:
        field = arguments.get(name)
        if field is not None and field.tag != "S":
            raise refuse(f"invalid type '{TYPE_NAMES[field.tag]}' for arg '{name}' in {what}")
    for name, check in QUEUE_ARGUMENTS.items():
        field = arguments.get(name)
        if field is not None and (problem := check(field)):
            raise refuse(f"invalid arg '{name}' for {what}: {problem}")
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        name = "x-dead-letter-routing-key"
        raise refuse(f"invalid arg '{name}' for {what}: routing_key_but_no_dlx_defined")
    kind = text_of(arguments, "x-queue-type") or "classic"
    for name in NOT_OF_TYPE[kind]:
        if name in arguments:
            raise refuse(f"invalid arg '{name}' for {what} of queue type rabbit_{kind}_queue")


def check_exchange_type(kind: str, arguments: Table) -> None:
    """Raises AmqpFault 503, and 406 for a delayed exchange that does not say how it routes."""
    if kind == DELAYED:
        wrong = "Invalid argument, "
        inner = text_of(arguments, DELAYED_TYPE)
        if inner == DELAYED:
            wrong += f"'{DELAYED}' can't be used for '{DELAYED_TYPE}'"
            raise AmqpFault(replies.PRECONDITION_FAILED, wrong)
        if not inner:
            wrong += f"'{DELAYED_TYPE}' must be an existing exchange type"
            raise AmqpFault(replies.PRECONDITION_FAILED, wrong)
        kind = inner
    if kind not in TYPES:
        raise AmqpFault(replies.COMMAND_INVALID, f"unknown exchange type '{kind}'")


def check_exchange_arguments(exchange: str, vhost: str, arguments: Table) -> None:
    """Raises AmqpFault 406."""
    field = arguments.get("alternate-exchange")
    if field is not None and field.tag != "S":
        raise AmqpFault(
            replies.PRECONDITION_FAILED,
            f"invalid type '{TYPE_NAMES[field.tag]}' for arg 'alternate-exchange' in "
            f"exchange '{exchange}' in vhost '{vhost}'",
        )


def check_headers_binding(encoded: bytes) -> None:
    """Arguments of a binding from a headers exchange. Raises AmqpFault 406."""
    field = decode_table(encoded)[0].get("x-match")
    if field is None or (field.tag == "S" and field.value in X_MATCHES):
        return
    if field.tag == "S":
        problem = f'value <<"{field.value!s}">>; expected all, any, all-with-x, or any-with-x'
    else:
        problem = f"type {TYPE_NAMES[field.tag]} (value {field.value!s}); expected longstr"
    raise AmqpFault(replies.PRECONDITION_FAILED, f"Invalid x-match field {problem}")


def consumer_priority(queue: str, vhost: str, arguments: Table) -> int:
    """Who is served first while it has credit. Raises AmqpFault 406."""
    field = arguments.get("x-priority")
    if field is None:
        return 0
    if problem := _whole(field):
        what = f"queue '{queue}' in vhost '{vhost}'"
        raise AmqpFault(
            replies.PRECONDITION_FAILED, f"invalid arg 'x-priority' for {what}: {problem}"
        )
    assert isinstance(field.value, int)
    return max(-PRIORITY_MAX, min(field.value, PRIORITY_MAX))


def check_queue_type(
    queue: str, vhost: str, arguments: Table, *, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """Quorum queues are durable and everybody's. Raises AmqpFault 406."""
    if text_of(arguments, "x-queue-type") != "quorum":
        return
    wrong = {"non-durable": not durable, "auto-delete": auto_delete, "exclusive-owner": exclusive}
    for name, is_wrong in wrong.items():
        if is_wrong:
            text = f"invalid property '{name}' for queue '{queue}' in vhost '{vhost}'"
            raise AmqpFault(replies.PRECONDITION_FAILED, text)


POLICY_NUMBERS: Final = {
    "x-max-length": "max_length",
    "x-max-length-bytes": "max_bytes",
    "x-message-ttl": "expire_ms",
    "x-expires": "idle_ms",
    "x-max-priority": "max_priority",
    "x-single-active-consumer": "single_active",
    "x-delivery-limit": "delivery_limit",
}
OVERFLOWS: Final = {
    "drop-head": "drop-head",
    "reject-publish": "reject",
    "reject-publish-dlx": "reject-dead-letter",
}


def policy_of(arguments: Table, hand_over: str) -> dict[str, int | str]:
    """
    What the store keeps of the arguments (``DeliveryStreams.create_queue``); *hand_over* is the
    queue in which dead letters and notices wait for a gateway.
    """
    policy: dict[str, int | str] = {"keep": "until_acked"}
    for argument, name in POLICY_NUMBERS.items():
        field = arguments.get(argument)
        if field is not None and isinstance(field.value, int) and field.value >= 0:
            policy[name] = int(field.value)
    overflow = text_of(arguments, "x-overflow")
    if overflow in OVERFLOWS:
        policy["overflow"] = OVERFLOWS[overflow]
    if "x-dead-letter-exchange" in arguments:
        key = arguments.get("x-dead-letter-routing-key")
        note = [arguments["x-dead-letter-exchange"].value, key.value if key is not None else None]
        policy["dead_letter"] = hand_over
        policy["dead_letter_note"] = json.dumps(note)
    if "idle_ms" in policy:
        policy["notices"] = hand_over
    return policy


def require_same_flag(what: str, name: str, received: bool, current: bool) -> None:
    """*what*: ``queue 'q' in vhost '/'``."""
    if received != current:
        raise AmqpFault(
            replies.PRECONDITION_FAILED,
            f"inequivalent arg '{name}' for {what}: received '{str(received).lower()}' "
            f"but current is '{str(current).lower()}'",
        )


def require_same_text(what: str, name: str, received: str, current: str) -> None:
    if received != current:
        raise AmqpFault(
            replies.PRECONDITION_FAILED,
            f"inequivalent arg '{name}' for {what}: received '{received}' "
            f"but current is '{current}'",
        )


def require_same_arguments(
    what: str, received: Table, current: Table, names: tuple[str, ...]
) -> None:
    """Compare the named arguments by meaning."""
    for name in names:
        mine, theirs = _meant(received, name), _meant(current, name)
        if mine is theirs or (mine and theirs and are_equal(mine, theirs)):
            continue
        if mine is not None and theirs is not None:
            said = f"received '{_plain(mine)}' but current is '{_plain(theirs)}'"
        else:
            said = f"received {_said(mine)} but current is {_said(theirs)}"
        raise AmqpFault(
            replies.PRECONDITION_FAILED, f"inequivalent arg '{name}' for {what}: {said}"
        )


def _said(field: Field | None) -> str:
    if field is None:
        return "none"
    return f"the value '{_plain(field)}' of type '{TYPE_NAMES[field.tag]}'"


def _plain(field: Field) -> str:
    return str(field.value).lower() if field.tag == "t" else str(field.value)


def _meant(arguments: Table, name: str) -> Field | None:
    """A classic queue is what one gets who asks for no type."""
    field = arguments.get(name)
    is_default = name == "x-queue-type" and field is not None and field.value == "classic"
    return None if is_default else field
