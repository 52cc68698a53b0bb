"""Mount points, rewrite rules, ``$delayed``, ``$exclusive``, automatic subscriptions."""

from dataclasses import replace

import pytest

from protocols import clock
from protocols.canonical import Call, Identity
from protocols.errors import ConfigError
from protocols.mqtt.adapter import MqttAdapter
from protocols.mqtt.fields import PacketError
from protocols.mqtt.naming import Name, Naming, RewriteRule, mount_point_of
from protocols.mqtt.packets import (
    NEVER_EXPIRES_S,
    V5,
    V311,
    Connect,
    Disconnect,
    Publish,
    Reason,
    SubscribeItem,
    Unsuback,
    Unsubscribe,
    Will,
)
from protocols.mqtt.properties import Property
from tests.support.mqtt_client import MqttClient
from tests.support.mqtt_front import gateway, until

KEPT = ((int(Property.SESSION_EXPIRY), NEVER_EXPIRES_S),)


@pytest.mark.parametrize(
    ("rule", "name", "expected"),
    [
        ({"topic": "old/+/t", "to": "new/{2}"}, "old/7/t", "new/7"),
        ({"topic": "old/+/t", "to": "new/{2}"}, "old/7/u", None),
        ({"topic": "old/+/t", "to": "new/{2}"}, "old/7/t/x", None),
        ({"topic": "old/+/#", "to": "new/{#}/{2}"}, "old/7/a/b", "new/a/b/7"),
        ({"topic": "old/#", "to": "new/{#}"}, "old", "new/"),
        ({"topic": "old/+/#", "to": "new/{2}/{#}"}, "old/+/a/#", "new/+/a/#"),
        ({"topic": "old/+", "to": "new/{2}"}, "old/#", None),
        ({"topic": "#", "to": "all/{#}"}, "a/b", "all/a/b"),
        ({"topic": "a", "to": "b/{3}"}, "a", "b/"),
    ],
)
def test_rewrite_rules(rule: dict[str, str], name: str, expected: str | None) -> None:
    """Levels by number, the rest by ``{#}``; filters as they are written."""
    assert RewriteRule.model_validate(rule).apply(name, {}) == expected


def test_names_are_rewritten_then_mounted() -> None:
    """The first rule counts; ``$`` names are left alone; a side may be named."""
    naming = Naming(
        "m/",
        (
            RewriteRule(topic="a/#", to="b/{#}", on="publish"),
            RewriteRule(topic="a/#", to="c/{#}"),
            RewriteRule(topic="c/#", to="never"),
        ),
        levels_max=4,
    )
    assert naming.publish("a/x") == Name("m/b/x")
    assert naming.filter("a/+") == "m/c/+"
    assert naming.filter("$exclusive/a/+") == "m/c/+"
    assert naming.publish("$SYS/x") == Name("$SYS/x")
    assert naming.publish("$delayed/60/a/x") == Name("m/b/x", 60)
    assert naming.publish("$delayed/42949669/a/x") == Name("m/b/x", 42949669)
    assert naming.publish("$delayed/1800000000/a/x") == Name("m/b/x", due_s=1800000000)
    with pytest.raises(PacketError):
        naming.publish("a/b/c/d/e")


@pytest.mark.parametrize(
    "topic",
    ["$delayed/x/t", "$delayed/-1/t", "$delayed/5", "$delayed/5/", "$delayed//t",
     "$delayed/18000000000/t", "$delayed/٣/t", "$delayed/1/$delayed/1/t"],
)  # fmt: skip
def test_what_is_no_delay(topic: str) -> None:
    with pytest.raises(PacketError):
        Naming().publish(topic)


def test_mount_points_by_client() -> None:
    """Names that would add levels or wildcards have none."""
    call = Call(
        protocol="mqtt",
        listener="m",
        identity=Identity(name="a/b"),
        tenant="acme",
        client_id="c1",
    )
    rules = (
        RewriteRule(topic="a/#", to="{identity}/{#}"),
        RewriteRule(topic="+/#", to="{client_id}/{#}"),
    )
    shared = Naming("m/", rules)
    assert shared.of(call).publish("a/x") == Name("m/c1/x")  # the first is not for it
    assert Naming("m/", rules[:1]).of(call).publish("a/x") == Name("m/a/x")
    odd = replace(call, client_id="{1}")
    assert shared.of(odd).filter("a/+") == "m/{1}/+"
    assert Naming("m/").of(call).publish("a") == Name("m/a")
    assert mount_point_of("t/{tenant}/{client_id}/", call) == "t/acme/c1/"
    assert mount_point_of("t/{identity}/", call) is None
    assert mount_point_of("t/{certificate_name}/", call) is None


@pytest.mark.parametrize("version", [V311, V5])
async def test_clients_of_a_mount_point_see_only_what_is_below_it(version: int) -> None:
    """Live, retained and wills, named without it; others know the whole address."""
    async with gateway(mount_point="site/{client_id}/") as (services, address):
        async with MqttClient(
            address, Connect(version, "c1", will=Will("gone", b"w", 1))
        ) as client:
            await client.publish("kept", b"r", 1, retain=True)
            assert await client.subscribe(SubscribeItem("#", 1)) == (1,)
            await client.publish("a/b", b"x", 0)
            assert [one.topic for one in await client.publishes(2)] == ["kept", "a/b"]
            async with MqttClient(address, Connect(version, "c2")) as other:
                await other.publish("a/b", b"not for c1", 1)
            assert await client.is_silent()
        await until(lambda: len(services.broker.log) == 4)
        found = [entry.message.properties["TG_SUBJECT"] for entry in services.broker.log]
        assert found == ["site/c1/kept", "site/c1/a/b", "site/c2/a/b", "site/c1/gone"]


async def test_what_is_delayed_has_its_time() -> None:
    """With and without properties, every QoS; others on the connection are not touched."""
    async with gateway() as (services, address):
        seen: list[tuple[str, int]] = []
        store = services.broker.store

        def look(call, message):  # type: ignore[no-untyped-def] # as the original
            delay = message.deliver_at_ms - clock.wall_ms() if message.deliver_at_ms else 0
            seen.append((message.head.subject, round(delay / 1000)))
            return store(call, message)

        services.broker.store = look  # type: ignore[method-assign]
        async with MqttClient(address, Connect(V5, "c")) as client:
            for qos in (0, 1, 2):
                client.send(Publish("$delayed/60/t", b"x", qos, packet_id=qos))
            client.send(Publish("t", b"x", 1, packet_id=4))
            client.send(
                Publish("$delayed/5/u", b"x", 1, packet_id=5, properties=((0x03, "text/plain"),))
            )
            due_s = clock.wall_ms() // 1000 + 900
            for properties in ((), ((0x03, "text/plain"),)):
                client.send(Publish(f"$delayed/{due_s}/v", b"x", 0, properties=properties))
            await until(lambda: len(seen) == 7)
            assert sorted(seen)[:5] == [("t", 0), ("t", 60), ("t", 60), ("t", 60), ("u", 5)]
            assert all(name == "v" and 895 <= delay <= 900 for name, delay in sorted(seen)[5:])
        async with MqttClient(address, Connect(V5, "d")) as client:
            client.send(Publish("$delayed/soon/t", b"x", 1, packet_id=1))
            assert await client.receive() == Disconnect(Reason.TOPIC_NAME_INVALID)


async def test_an_exclusive_subscription_has_one_holder() -> None:
    """Until it unsubscribes, or its session ends; the holder may ask again."""
    async with gateway() as (_, address):
        wanted = SubscribeItem("$exclusive/a/+", 1)
        async with MqttClient(address, Connect(V5, "c1")) as one:
            assert await one.subscribe(wanted) == (1,)
            assert await one.subscribe(wanted) == (1,)
            async with MqttClient(address, Connect(V5, "c2", properties=KEPT)) as two:
                assert await two.subscribe(wanted) == (Reason.QUOTA_EXCEEDED,)
                await two.publish("a/b", b"x", 1)
                assert (await one.publishes(1))[0].topic == "a/b"
                one.send(Unsubscribe(9, ("$exclusive/a/+",)))
                assert isinstance(await one.receive(), Unsuback)
                assert await two.subscribe(wanted) == (1,)
            assert await one.subscribe(wanted) == (Reason.QUOTA_EXCEEDED,)  # kept while away
        async with MqttClient(address, Connect(V5, "c2", clean_start=True)):
            pass
        async with MqttClient(address, Connect(V5, "c3")) as three:
            assert await three.subscribe(wanted) == (1,)
        async with MqttClient(address, Connect(V5, "c4")) as four:
            while await four.subscribe(wanted) != (1,):  # c3 is being let go
                pass


async def test_automatic_subscriptions() -> None:
    """Without a SUBACK, within the ACL, retained values included; a kept session has them once."""
    entries = [{"topic": "cmd/{client_id}/#"}, {"topic": "secret", "qos": 0}]
    async with gateway(auto_subscribe=entries) as (services, address):
        services.denied.add(("consume", "secret"))
        async with MqttClient(address, Connect(V5, "pub")) as pub:
            await pub.publish("cmd/c1/old", b"kept", 1, retain=True)
        kept = Connect(V5, "c1", clean_start=False, properties=KEPT)
        async with MqttClient(address, kept) as client:
            (packet,) = await client.publishes(1)
            assert (packet.topic, packet.retain, packet.qos) == ("cmd/c1/old", True, 1)
            await client.publish("secret", b"x", 1)
            assert await client.is_silent()
        async with MqttClient(address, kept) as client:
            assert client.connack.session_present
            assert await client.is_silent()


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        MqttAdapter.from_config(
            "m",
            {
                "bind": "127.0.0.1:0",
                "mount_point": "t/{who}/",
                "rewrite": [{"topic": "a/#/b", "to": "c"}, {"topic": "a", "to": "{x}"}],
                "auto_subscribe": [{"topic": "in/{client_id}/#"}, {"topic": "in/#/{client_id}"}],
                "shared_strategie": "sticky",
            },
        )
    assert "shared_strategie: unknown key (did you mean 'shared_strategies'?)" in str(caught.value)
    assert {problem.split(":")[0] for problem in caught.value.problems} == {
        "listeners.m.auto_subscribe[1].topic",
        "listeners.m.shared_strategie",
        "listeners.m.mount_point",
        "listeners.m.rewrite[0].topic",
        "listeners.m.rewrite[1].to",
    }
