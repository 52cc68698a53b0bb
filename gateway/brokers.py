"""RocketMQ requests that only a broker can answer, handed on by standard codes."""

from collections.abc import Mapping
from typing import Final

from gateway.clusters.link import ASK_S_MAX
from gateway.topics import GatewayTopics
from protocols.remoting.command import RemotingCommand
from protocols.remoting.signing import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from protocols.rocketmq import BrokerAnswer

OF_CLIENT: Final = frozenset((ACCESS_KEY, SIGNATURE, SECURITY_TOKEN))
"""Fields that say who the client is; the gateway signs for itself."""


class GatewayBrokers:
    """Implements ``protocols.pipeline.Brokers``."""

    def __init__(self, topics: GatewayTopics) -> None:
        self._topics = topics

    @property
    def cluster(self) -> str:
        return self._topics.home("").name

    def names(self, topic: str) -> list[str]:
        return self._topics.brokers(topic)

    async def ask(
        self,
        topic: str,
        broker: str,
        code: int,
        fields: Mapping[str, str],
        body: bytes = b"",
        *,
        wait_ms: int = 0,
    ) -> BrokerAnswer:
        link = self._topics.link(topic, broker)
        told = {name: value for name, value in fields.items() if name not in OF_CLIENT}
        told["bname"] = link.broker
        command = RemotingCommand(code, told, body)
        answer = await link.ask(command, timeout_s=ASK_S_MAX + wait_ms / 1000)
        return BrokerAnswer(answer.code, answer.fields, bytes(answer.body), answer.remark)
