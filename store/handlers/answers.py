"""How the store says no on the wire."""

from typing import Final

from protocols.errors import Code, Refused
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand

CODE_FIELD: Final = "code"
"""Header field of a refusal: ``protocols.errors.Code`` by number, for our own gateway."""

RESPONSE_CODES: Final[dict[Code, ResponseCode]] = {
    Code.OK: ResponseCode.SUCCESS,
    Code.BAD_REQUEST: ResponseCode.INVALID_PARAMETER,
    Code.ILLEGAL_TOPIC: ResponseCode.INVALID_PARAMETER,
    Code.ILLEGAL_CONSUMER_GROUP: ResponseCode.INVALID_PARAMETER,
    Code.ILLEGAL_OFFSET: ResponseCode.INVALID_PARAMETER,
    Code.ILLEGAL_INVISIBLE_TIME: ResponseCode.INVALID_PARAMETER,
    Code.ILLEGAL_FILTER_EXPRESSION: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    Code.INVALID_RECEIPT_HANDLE: ResponseCode.INVALID_PARAMETER,
    Code.UNAUTHORIZED: ResponseCode.NO_PERMISSION,
    Code.FORBIDDEN: ResponseCode.NO_PERMISSION,
    Code.NOT_FOUND: ResponseCode.QUERY_NOT_FOUND,
    Code.MESSAGE_NOT_FOUND: ResponseCode.NO_MESSAGE,
    Code.OFFSET_NOT_FOUND: ResponseCode.QUERY_NOT_FOUND,
    Code.TOPIC_NOT_FOUND: ResponseCode.TOPIC_NOT_EXIST,
    Code.CONSUMER_GROUP_NOT_FOUND: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Code.PAYLOAD_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    Code.MESSAGE_BODY_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    Code.MESSAGE_PROPERTIES_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    Code.MESSAGE_CORRUPTED: ResponseCode.MESSAGE_ILLEGAL,
    Code.ILLEGAL_MESSAGE_KEY: ResponseCode.MESSAGE_ILLEGAL,
    Code.ILLEGAL_DELIVERY_TIME: ResponseCode.MESSAGE_ILLEGAL,
    Code.PRECONDITION_FAILED: ResponseCode.ILLEGAL_OPERATION,
    Code.TOO_MANY_REQUESTS: ResponseCode.SYSTEM_BUSY,
    Code.LITE_TOPIC_QUOTA_EXCEEDED: ResponseCode.SYSTEM_BUSY,
    Code.HA_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    Code.MASTER_PERSISTENCE_TIMEOUT: ResponseCode.SERVICE_NOT_AVAILABLE,
    Code.NOT_IMPLEMENTED: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    Code.UNSUPPORTED: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
}
"""What a refusal is called in RocketMQ's response codes; any other is SYSTEM_ERROR."""


def response_code(code: int) -> ResponseCode:
    """The RocketMQ response code for one of ``Code``'s numbers."""
    try:
        return RESPONSE_CODES.get(Code(code), ResponseCode.SYSTEM_ERROR)
    except ValueError:
        return ResponseCode.SYSTEM_ERROR


def refuse(request: RemotingCommand, error: Refused) -> RemotingCommand:
    """The answer to a request that is declined as a whole."""
    return request.answer(
        response_code(error.code), {CODE_FIELD: str(int(error.code))}, remark=error.hint
    )


def not_available(request: RemotingCommand, remark: str) -> RemotingCommand:
    """The answer when the disk has failed: never an acknowledgement."""
    return request.answer(ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark)
