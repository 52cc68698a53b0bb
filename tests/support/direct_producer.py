"""A producer that speaks to a store itself, as Apache's clients do, by standard codes."""

from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.records import encode_properties
from tests.support.patience import PATIENCE_S


def send_fields(
    topic: str, *, queue_id: int = 0, sys_flag: int = 0, **properties: str
) -> dict[str, str]:
    """Header of SEND_MESSAGE_V2 (310)."""
    return {
        "a": "direct",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": str(sys_flag),
        "g": "1700000000000",
        "h": "0",
        "i": encode_properties(list(properties.items())).decode(),
        "j": "0",
        "k": "false",
        "m": "false",
    }


async def send_direct(
    client: RemotingClient, topic: str, body: bytes, *, sys_flag: int = 0, **properties: str
) -> RemotingCommand:
    """One message; the answer, which must be a success."""
    fields = send_fields(topic, sys_flag=sys_flag, **properties)
    request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body)
    answer = await client.request(request, PATIENCE_S)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer
