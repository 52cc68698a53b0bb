"""Users and rights of a store: kept like everything else, and enforced where it says so."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from protocols.daemon.config import ClusterAuth
from protocols.errors import ConfigError
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.private import Hello, PrivateCode
from protocols.remoting.signing import sign
from store.app import Store
from tests.support.store_server import WAIT_S, connected, running_store, store_config

CLUSTER = ClusterAuth(access_key="tidegate", secret="very secret")
BOTH = {"authentication": True, "authorization": True}
NO = ResponseCode.NO_PERMISSION


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with running_store(tmp_path, auth=CLUSTER, auth_of_users=BOTH) as store:
        yield store


async def ask(
    client: RemotingClient,
    code: int,
    fields: dict[str, str],
    body: object = b"",
    by: tuple[str, str] = ("tidegate", "very secret"),
) -> RemotingCommand:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    command = RemotingCommand(code, fields, data)
    if by[0]:
        sign(command, *by)
    return await client.request(command, WAIT_S)


async def done(client: RemotingClient, code: int, fields: dict[str, str], body: object) -> None:
    answer = await ask(client, code, fields, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def make_user(client: RemotingClient, name: str, **more: str) -> None:
    body = {"password": f"{name}-secret", **more}
    await done(client, RequestCode.AUTH_CREATE_USER, {"username": name}, body)


async def allow(client: RemotingClient, name: str, *resources: str, action: str) -> None:
    entries = [
        {"resource": resource, "actions": [action], "decision": "Allow"} for resource in resources
    ]
    body = {"policies": [{"policyType": None, "entries": entries}]}
    await done(client, RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, body)


async def send(client: RemotingClient, topic: str, by: tuple[str, str]) -> int:
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    return (await ask(client, RequestCode.SEND_MESSAGE_V2, fields, b"x", by)).code


async def test_a_user_does_what_its_rights_allow(client: RemotingClient) -> None:
    me = ("app", "app-secret")
    assert await send(client, "Open", me) == NO  # nobody knows it yet
    await make_user(client, "app")
    assert await send(client, "Open", me) == NO
    await allow(client, "app", "Topic:Op*", action="Pub")
    assert await send(client, "Open", me) == ResponseCode.SUCCESS
    assert await send(client, "Closed", me) == NO
    answer = await ask(client, RequestCode.GET_MAX_OFFSET, {"topic": "Open", "queueId": "0"}, by=me)
    assert answer.code == NO
    assert answer.remark == "User:app has no permission to access Topic:Open from 127.0.0.1"


async def test_needs_of_bodies_are_judged(client: RemotingClient) -> None:
    me = ("app", "app-secret")
    await make_user(client, "app")
    await allow(client, "app", "Topic:Open", "Group:g", action="Sub")

    async def heartbeat(group: str, topic: str) -> int:
        consumer = {"groupName": group, "subscriptionDataSet": [{"topic": topic}]}
        body = {"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": []}
        return (await ask(client, RequestCode.HEART_BEAT, {}, body, me)).code

    assert await heartbeat("g", "Open") == ResponseCode.SUCCESS
    assert await heartbeat("g", "%RETRY%g") == ResponseCode.SUCCESS
    assert await heartbeat("g", "Closed") == NO
    assert await heartbeat("other", "Open") == NO


async def test_a_message_by_its_position_is_of_its_own_topic(client: RemotingClient) -> None:
    """Whatever topic the request names."""
    me = ("app", "app-secret")
    await make_user(client, "app")
    await allow(client, "app", "Topic:Open", "Group:g", action="Sub")
    fields = {"a": "p", "b": "Closed", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1"}
    sent = await ask(client, RequestCode.SEND_MESSAGE_V2, fields | {"h": "0"}, b"x")
    position = str(int(sent.fields["msgId"][16:], 16))
    for code, more in (
        (RequestCode.VIEW_MESSAGE_BY_ID, {"topic": "Open"}),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "g", "delayLevel": "0"}),
    ):
        assert (await ask(client, code, {"offset": position, **more}, by=me)).code == NO


async def test_who_nobody_knows_gets_nowhere(client: RemotingClient) -> None:
    await make_user(client, "app", userType="Super")
    assert await send(client, "T", ("app", "app-secret")) == ResponseCode.SUCCESS
    for wrong in (("", ""), ("app", "guess"), ("nobody", "x"), ("tidegate", "guess")):
        assert await send(client, "T", wrong) == NO
    disabled = {"userStatus": "disable"}
    await done(client, RequestCode.AUTH_UPDATE_USER, {"username": "app"}, disabled)
    assert await send(client, "T", ("app", "app-secret")) == NO


async def test_private_codes_are_not_for_users(client: RemotingClient) -> None:
    await make_user(client, "root", userType="Super")
    hello = RemotingCommand(
        PrivateCode.HELLO, None, msgspec.msgpack.encode(Hello(gateway="gw", gateway_epoch=0))
    )
    sign(hello, "root", "root-secret")
    assert (await client.request(hello, WAIT_S)).code == NO


async def test_only_super_users_make_super_users(client: RemotingClient) -> None:
    await make_user(client, "admin")
    await allow(client, "admin", "Cluster:*", action="Update")
    by = ("admin", "admin-secret")
    for kind, code in (("Normal", ResponseCode.SUCCESS), ("Super", NO)):
        body = {"password": "p", "userType": kind}
        answer = await ask(client, RequestCode.AUTH_CREATE_USER, {"username": kind}, body, by)
        assert answer.code == code
    answer = await ask(client, RequestCode.AUTH_LIST_USER, {}, by=by)
    assert answer.code == NO  # that is Cluster: Get


async def test_users_and_rights_outlive_a_restart(tmp_path: Path) -> None:
    me = ("app", "app-secret")
    async with (
        running_store(tmp_path, auth=CLUSTER, auth_of_users=BOTH) as store,
        connected(store) as client,
    ):
        await make_user(client, "app")
        await make_user(client, "gone")
        await allow(client, "app", "Topic:T", action="Pub")
        await allow(client, "gone", "Topic:T", action="Pub")
        await done(client, RequestCode.AUTH_DELETE_USER, {"username": "gone"}, b"")
    async with (
        running_store(tmp_path, auth=CLUSTER, auth_of_users=BOTH) as store,
        connected(store) as client,
    ):
        assert await send(client, "T", me) == ResponseCode.SUCCESS
        assert await send(client, "T", ("gone", "gone-secret")) == NO
        await make_user(client, "gone")
        assert await send(client, "T", ("gone", "gone-secret")) == NO  # its rights went with it


def test_users_need_a_first_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cluster_auth"):
        Store(store_config(tmp_path, auth={"authentication": True}))
