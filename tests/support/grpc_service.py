"""Requests to the gRPC service as tests make them, without a transport."""

from protocols.grpc.context import Rpc
from protocols.grpc.mapping import duration_of
from protocols.grpc.service import MessagingService
from protocols.grpc.v2 import definition_pb2 as v2
from protocols.grpc.v2 import service_pb2 as pb

RPC = Rpc(metadata={"x-mq-client-id": "host@1@0@abc"}, peer="127.0.0.1:5000", remaining_ms=30_000)


TOPIC = v2.Resource(name="orders")


GROUP = v2.Resource(name="workers")


def message(body: bytes = b"hello", **system: object) -> v2.Message:
    return v2.Message(
        topic=TOPIC,
        body=body,
        user_properties={"colour": "blue"},
        system_properties=v2.SystemProperties(
            **{"message_id": "01" + "A" * 32, "body_encoding": v2.IDENTITY} | system
        ),
    )


async def send(service: MessagingService, *messages: v2.Message) -> pb.SendMessageResponse:
    return await service.unary("SendMessage", RPC, pb.SendMessageRequest(messages=messages))


async def receive(
    service: MessagingService, *, expression: str = "*", auto_renew: bool = False, **more: object
) -> list[pb.ReceiveMessageResponse]:
    request = pb.ReceiveMessageRequest(
        group=GROUP,
        message_queue=v2.MessageQueue(topic=TOPIC, broker=v2.Broker(name="broker-a")),
        filter_expression=v2.FilterExpression(type=v2.TAG, expression=expression),
        batch_size=16,
        auto_renew=auto_renew,
        long_polling_timeout=duration_of(50),
        **{} if auto_renew else {"invisible_duration": duration_of(15_000)} | more,
    )
    return [response async for response in service.receive(RPC, request)]


def messages_of(responses: list[pb.ReceiveMessageResponse]) -> list[v2.Message]:
    return [response.message for response in responses if response.HasField("message")]
