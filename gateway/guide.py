"""What ``tidegate up`` tells a person: the listeners and lines to paste for each protocol."""

from collections.abc import Mapping

from protocols import unix_sockets
from protocols.driver import split_bind


def guide(addresses: Mapping[str, str], *, token: str = "") -> str:
    """A text for the terminal, made of the addresses that are really bound."""
    lines = ["", "Tidegate is up. Try, in another terminal:", ""]
    for name, make in _LINES.items():
        if name in addresses and not unix_sockets.path_of(addresses[name]):
            host, port = split_bind(addresses[name])
            lines += [f"  {line}" for line in make(host, port)]
            lines.append("")
    if "admin" in addresses:
        query = f"/?token={token}" if token else "/"
        lines += [f"  Console   http://{addresses['admin']}{query}"]
        lines += [f"            curl http://{addresses['admin']}/metrics", ""]
    lines.append("Ctrl-C ends it; the messages stay in the data folder.")
    return "\n".join(lines)


def _mqtt(host: str, port: int) -> list[str]:
    return [
        f"MQTT      mosquitto_sub -h {host} -p {port} -t 'plants/#' -q 1 -v &",
        f"          mosquitto_pub -h {host} -p {port} -t plants/7/temp -q 1 -m 21.5",
    ]


def _websocket(host: str, port: int) -> list[str]:
    return [f"MQTT/WS   ws://{host}:{port}/mqtt"]


def _amqp(host: str, port: int) -> list[str]:
    url = f"amqp://guest:guest@{host}:{port}/"
    return [
        'AMQP      python -c "import pika;'
        f" c = pika.BlockingConnection(pika.URLParameters('{url}'));"
        " ch = c.channel(); ch.queue_declare('jobs');"
        " ch.basic_publish('', 'jobs', b'hello'); c.close()\"",
    ]


def _events(host: str, port: int) -> list[str]:
    return [
        f"HTTP      curl -i http://{host}:{port}/topics/events -H 'ce-specversion: 1.0'"
        " -H 'ce-id: 1' -H 'ce-source: /me' -H 'ce-type: demo'"
        " -H 'content-type: application/json' -d '{\"n\": 1}'",
    ]


def _grpc(host: str, port: int) -> list[str]:
    return [f"gRPC      endpoints {host}:{port} (rocketmq-python-client, rocketmq-clients 5.x)"]


def _remoting(host: str, port: int) -> list[str]:
    return [f'Remoting  producer.setNamesrvAddr("{host}:{port}") (rocketmq-client 5.x)']


_LINES = {
    "mqtt": _mqtt,
    "mqtt-ws": _websocket,
    "amqp": _amqp,
    "events": _events,
    "grpc": _grpc,
    "remoting": _remoting,
}
