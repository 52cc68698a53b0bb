"""
What tools ask about clients: who is connected here, and questions that are the client's own.

A gateway knows the clients of its own listener; members that are connected elsewhere are shown
without an address, and are asked at their gateway.
"""

from typing import TYPE_CHECKING, Final

from protocols.canonical import Call
from protocols.errors import Code, Refused
from protocols.remoting.asking import find_message, position_of, require
from protocols.remoting.bodies import (
    BrokerData,
    ClusterInfo,
    Connection,
    ConsumerConnection,
    ProducerConnection,
    encode_body,
    encode_cluster_info,
)
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import text_field

if TYPE_CHECKING:
    from protocols.remoting.session import Session

RELAY_S: Final = 10.0
"""How long a client may take to answer; the tools themselves wait 5 to 60 s."""


async def cluster_info(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """106: every broker, at this gateway's address."""
    cluster, names = session.host.services.brokers.cluster, session.host.services.brokers.names("")
    brokers = {
        name: BrokerData(cluster=cluster, broker_name=name, broker_addrs={0: session.address})
        for name in names
    }
    info = ClusterInfo(broker_addr_table=brokers, cluster_addr_table={cluster: names})
    return command.answer(0, {}, encode_cluster_info(info))


async def consumer_connections(
    session: "Session", call: Call, command: RemotingCommand
) -> RemotingCommand:
    """203."""
    group = text_field(command.fields, "consumerGroup")
    require(session, call, "", group, "consume")
    here = [each for each in session.host.clients() if group in each.consumers]
    members = session.host.members.of(group)
    if not here and not members:
        return command.answer(
            ResponseCode.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{group}] not online"
        )
    known = {each.client_id for each in here}
    body = ConsumerConnection(
        connection_set=[
            *[_connection(each) for each in here],
            *[Connection(client_id=name) for name in members if name not in known],
        ]
    )
    if here:
        data = here[-1].consumers[group].data
        body.subscription_table = {item.topic: item for item in data.subscription_data_set}
        body.consume_type = data.consume_type
        body.message_model = data.message_model
        body.consume_from_where = data.consume_from_where
    return command.answer(0, {}, encode_body(body))


async def producer_connections(
    session: "Session", call: Call, command: RemotingCommand
) -> RemotingCommand:
    """204."""
    group = text_field(command.fields, "producerGroup")
    require(session, call, "", group, "publish")
    here = [each for each in session.host.clients() if group in each.producer_groups]
    if not here:
        return command.answer(
            ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{group}] not exist"
        )
    body = ProducerConnection(connection_set=[_connection(each) for each in here])
    return command.answer(0, {}, encode_body(body))


def _connection(session: "Session") -> Connection:
    return Connection(
        client_id=session.client_id,
        client_addr=session.peer.address,
        language=session.language,
        version=session.version,
    )


def _member(session: "Session", group: str, client_id: str) -> "Session":
    """A member of *group* that is connected here; any if none is named. Raises Refused."""
    for each in session.host.clients():
        if group in each.consumers and client_id in ("", each.client_id):
            return each
    if client_id in session.host.members.of(group):
        raise Refused(Code.NOT_FOUND, group, f"<{client_id}> is connected to another gateway")
    raise Refused(Code.NOT_FOUND, group, f"the consumer <{group}> <{client_id}> not online")


async def running_info(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """307: what a consumer says of itself, with its threads if asked for."""
    group = text_field(command.fields, "consumerGroup")
    require(session, call, "", group, "consume")
    member = _member(session, group, command.fields.get("clientId", ""))
    fields = {
        "consumerGroup": group,
        "clientId": member.client_id,
        "jstackEnable": command.fields.get("jstackEnable", "false"),
    }
    asked = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    return await _relay(command, member, asked)


async def consume_directly(
    session: "Session", call: Call, command: RemotingCommand
) -> RemotingCommand:
    """309: one message for one consumer now, apart from all offsets."""
    group = text_field(command.fields, "consumerGroup")
    topic = command.fields.get("topic", "")
    require(session, call, topic, group, "admin")
    member = _member(session, group, command.fields.get("clientId", ""))
    position = position_of(text_field(command.fields, "msgId"))
    broker, record = await find_message(session, call, topic, position)
    fields = {**command.fields, "clientId": member.client_id, "brokerName": broker}
    asked = RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, record)
    return await _relay(command, member, asked)


async def _relay(
    command: RemotingCommand, member: "Session", asked: RemotingCommand
) -> RemotingCommand:
    """What the client says to *asked*, as the answer to *command*."""
    answer = await member.peer.request(asked, RELAY_S)
    return command.answer(answer.code, {}, answer.body, remark=answer.remark)
