"""The request and answer of ``explain`` as plain data: the command's and the admin API's."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.config import Loaded
from gateway.explain import explain
from gateway.policy import Policy
from gateway.rules import Facts
from protocols import clock
from protocols.canonical import Identity


def answer(loaded: Loaded, policy: Policy, request: Mapping[str, Any]) -> dict[str, Any]:
    """What ``tidegate explain --json`` prints."""
    facts = facts_of_request(loaded, request)
    explanation = explain(loaded, policy, facts)
    return {
        "is_allowed": explanation.is_allowed,
        "route": explanation.route,
        "steps": [step._asdict() for step in explanation.steps],
        "lines": explanation.lines(),
    }


def facts_of_request(loaded: Loaded, request: Mapping[str, Any]) -> Facts:
    """The facts of a request that nobody has sent; roles come from the users of the file."""

    def text(name: str, default: str = "") -> str:
        return str(request.get(name) or default)

    def texts(name: str) -> Sequence[str]:
        value = request.get(name, ())
        return (value,) if isinstance(value, str) else tuple(value)

    name, protocol = text("identity", "anonymous"), text("protocol", "mqtt")
    user = next((user for user in loaded.config.users if user.name == name), None)
    first = next(
        (key for key, item in loaded.config.listeners.items() if item.protocol == protocol),
        protocol,
    )
    topic = text("topic")
    pairs = (header.partition("=") for header in texts("headers"))
    return Facts(
        protocol=protocol,
        listener=text("listener", first),
        tenant=text("tenant"),
        identity=Identity(
            name=name,
            roles=(*texts("roles"), *(user.roles if user else ())),
            is_anonymous=name == "anonymous",
        ),
        client_id=text("client_id", name),
        client_ip=text("client_ip", "127.0.0.1"),
        operation=text("operation", "publish"),
        subject=topic,
        topic=topic if protocol in ("grpc", "remoting") else "",
        group=text("group"),
        wall_ms=clock.wall_ms(),
        properties={key: value for key, _, value in pairs},
        certificate_name=text("certificate_name"),
        qos=int(request.get("qos", -1)),
        retain=bool(request.get("retain", False)),
    )
