"""What ``tidegate up`` tells a person: the listeners and lines to paste for each protocol."""

from collections.abc import Mapping

from protocols import unix_sockets
from protocols.addresses import split_bind


def guide(addresses: Mapping[str, str], *, token: str = "") -> str:
    """A text for the terminal, made of the addresses that are really bound."""
    lines = ["", "Tidegate is up. Try, in another terminal:", ""]
    for name, make in _LINES.items():
        if name in addresses and not unix_sockets.path_of(addresses[name]):
            lines += [f"  {line}" for line in make(addresses[name])]
            lines.append("")
    if "admin" in addresses:
        query = f"/?token={token}" if token else "/"
        lines += [f"  Console   http://{addresses['admin']}{query}"]
        lines += [f"            curl http://{addresses['admin']}/metrics", ""]
    lines.append("Ctrl-C ends it; the messages stay in the data folder.")
    return "\n".join(lines)


def _mqtt(address: str) -> list[str]:
    host, port = split_bind(address)
    return [
        f"MQTT      mosquitto_sub -h {host} -p {port} -t 'plants/#' -q 1 -v &",
        f"          mosquitto_pub -h {host} -p {port} -t plants/7/temp -q 1 -m 21.5",
    ]


def _websocket(address: str) -> list[str]:
    return [f"MQTT/WS   ws://{address}/mqtt"]


def _amqp(address: str) -> list[str]:
    url = f"amqp://guest:guest@{address}/"
    return [
        'AMQP      python -c "import pika;'
        f" c = pika.BlockingConnection(pika.URLParameters('{url}'));"
        " ch = c.channel(); ch.queue_declare('jobs');"
        " ch.basic_publish('', 'jobs', b'hello'); c.close()\"",
    ]


def _events(address: str) -> list[str]:
    return [
        f"HTTP      curl -i http://{address}/topics/events -H 'ce-specversion: 1.0'"
        " -H 'ce-id: 1' -H 'ce-source: /me' -H 'ce-type: demo'"
        " -H 'content-type: application/json' -d '{\"n\": 1}'",
    ]


def _grpc(address: str) -> list[str]:
    return [f"gRPC      endpoints {address} (rocketmq-python-client, rocketmq-clients 5.x)"]


def _remoting(address: str) -> list[str]:
    return [f'Remoting  producer.setNamesrvAddr("{address}") (rocketmq-client 5.x)']


_LINES = {
    "mqtt": _mqtt,
    "mqtt-ws": _websocket,
    "amqp": _amqp,
    "events": _events,
    "grpc": _grpc,
    "remoting": _remoting,
}
