"""Logins without a password: SASL EXTERNAL, by the certificate that the client showed."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pika
import pika.credentials
import pika.exceptions
import pytest

from protocols.amqp.adapter import AmqpAdapter
from protocols.canonical import Identity
from protocols.pipeline import Credentials
from tests.support.certificates import Authority
from tests.support.fake_services import FakeServices

Shown = list[Credentials]


class Listener:
    """One AMQP listener over TLS that asks for certificates, and takes who has none."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.server = self.authority.issue("server", ("CN", "localhost"))
        self.services = FakeServices()
        self.shown: list[Credentials] = []
        self.services.authenticate = self._look  # type: ignore[method-assign]
        self.port = 0

    async def _look(self, credentials: Credentials) -> Identity | None:
        self.shown.append(credentials)
        name = credentials.certificate_name or credentials.user
        return Identity(name=name) if name != "revoked" else None

    async def serve(self) -> "asyncio.Task[None]":
        tls = {
            "cert": self.server.cert,
            "key": self.server.key,
            "client_ca": self.authority.path,
            "client_cert": "optional",
        }
        section = {"protocol": "amqp", "bind": "127.0.0.1:0", "tls": tls}
        serving = asyncio.ensure_future(
            AmqpAdapter.from_config("amqps", section).serve(self.services)
        )
        _, self.port = await self.services.address("amqps")
        return serving

    def user_of(self, name: str, credentials: object) -> str:
        """Log in with a certificate of this name, or without one; publish as oneself."""
        context = ssl.create_default_context(cafile=self.authority.path)
        if name:
            pair = self.authority.issue(name, ("CN", name))
            context.load_cert_chain(pair.cert, pair.key)
        with pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1",
                self.port,
                credentials=credentials,
                ssl_options=pika.SSLOptions(context, "localhost"),
            )
        ) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            queue = channel.queue_declare("", exclusive=True).method.queue
            channel.basic_publish("", queue, b"x", pika.BasicProperties(user_id=name or "dev-8"))
            return str(channel.basic_get(queue, auto_ack=True)[1].user_id)


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncIterator[Listener]:
    made = Listener(tmp_path)
    serving = await made.serve()
    yield made
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_the_certificate_says_who_it_is(listener: Listener) -> None:
    """Its name is the identity, the user of ``user-id``; no password was said."""
    external = pika.credentials.ExternalCredentials()
    assert await asyncio.to_thread(listener.user_of, "dev-7", external) == "dev-7"
    (shown,) = listener.shown
    assert (shown.certificate_name, shown.user, shown.has_credentials) == ("dev-7", "", False)


async def test_who_says_a_password_is_judged_by_it(listener: Listener) -> None:
    """A certificate beside PLAIN only encrypts."""
    plain = pika.PlainCredentials("dev-8", "secret")
    assert await asyncio.to_thread(listener.user_of, "", plain) == "dev-8"
    (shown,) = listener.shown
    assert (shown.certificate_name, shown.user, shown.password) == ("", "dev-8", b"secret")


@pytest.mark.parametrize("name", ["", "revoked"])
async def test_without_a_good_certificate_it_is_refused(listener: Listener, name: str) -> None:
    """403 in RabbitMQ's words."""
    external = pika.credentials.ExternalCredentials()
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="mechanism EXTERNAL"):
        await asyncio.to_thread(listener.user_of, name, external)
