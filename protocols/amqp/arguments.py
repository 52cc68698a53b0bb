"""
Arguments of declarations: which are valid, which must agree, in RabbitMQ's words.

Source: ``rabbit_amqqueue:check_declare_arguments`` and ``rabbit_misc:assert_args_equivalence``.
"""

from collections.abc import Callable
from typing import Final

from protocols.amqp import replies
from protocols.amqp.fields import INTEGER_TAGS, Field, Table, are_equal
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


def _natural(field: Field) -> str:
    if field.tag not in INTEGER_TAGS or not isinstance(field.value, int):
        return f"{{unacceptable_type,{TYPE_NAMES[field.tag]}}}"
    return f"{{value_negative,{field.value}}}" if field.value < 0 else ""


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


def _one_of(*allowed: str) -> Callable[[Field], str]:
    def check(field: Field) -> str:
        return _text(field) or ("" if field.value in allowed else f"{{invalid,{field.value!s}}}")

    return check


QUEUE_ARGUMENTS: Final[dict[str, Callable[[Field], str]]] = {
    "x-message-ttl": _natural,
    "x-expires": _positive,
    "x-max-length": _natural,
    "x-max-length-bytes": _natural,
    "x-overflow": _one_of("drop-head", "reject-publish", "reject-publish-dlx"),
    "x-dead-letter-exchange": _text,
    "x-dead-letter-routing-key": _text,
    "x-max-priority": _octet,
    "x-single-active-consumer": _bool,
    "x-queue-mode": _one_of("default", "lazy"),
    "x-queue-type": _one_of("classic", "quorum", "stream"),
    "x-delivery-limit": _natural,
}
"""Known arguments of queue.declare: checked, and compared when declared again."""


def check_queue_arguments(queue: str, vhost: str, arguments: Table) -> None:
    """Raises AmqpFault 406 for the first bad one; unknown ones are accepted."""
    for name, check in QUEUE_ARGUMENTS.items():
        field = arguments.get(name)
        if field is not None and (problem := check(field)):
            raise AmqpFault(
                replies.PRECONDITION_FAILED,
                f"invalid arg '{name}' for queue '{queue}' in vhost '{vhost}': {problem}",
            )
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise AmqpFault(
            replies.PRECONDITION_FAILED,
            f"invalid arg 'x-dead-letter-routing-key' for queue '{queue}' in vhost '{vhost}': "
            "routing_key_but_no_dlx_defined",
        )


def policy_of(arguments: Table) -> dict[str, int | str]:
    """What the store keeps of the arguments (``DeliveryStreams.create_queue``)."""
    policy: dict[str, int | str] = {"keep": "until_acked"}
    names = {
        "x-max-length": "max_length",
        "x-max-length-bytes": "max_bytes",
        "x-overflow": "overflow",
        "x-message-ttl": "expire_ms",
    }
    for argument, name in names.items():
        field = arguments.get(argument)
        if field is not None and isinstance(field.value, (int, str)):
            policy[name] = field.value
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
        mine, theirs = received.get(name), current.get(name)
        if mine is theirs or (mine and theirs and are_equal(mine, theirs)):
            continue
        raise AmqpFault(
            replies.PRECONDITION_FAILED,
            f"inequivalent arg '{name}' for {what}: received {_said(mine)} "
            f"but current is {_said(theirs)}",
        )


def _said(field: Field | None) -> str:
    if field is None:
        return "none"
    return f"the value '{field.value!s}' of type '{TYPE_NAMES[field.tag]}'"
