"""An identity provider's key set and a web service that is asked who may come in, in a thread."""

import json
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jwt

from tests.support.http_server import HttpServer, QuietHandler
from tests.support.patience import PATIENCE_S


def jwk(kid: str, key: Any, **more: str) -> dict[str, str]:
    """The public half of an RSA or EC key, as a key set lists it."""
    is_rsa = hasattr(key, "private_numbers") and hasattr(key.private_numbers(), "p")
    maker = jwt.algorithms.RSAAlgorithm if is_rsa else jwt.algorithms.ECAlgorithm
    return {**json.loads(maker.to_jwk(key.public_key())), "kid": kid, "use": "sig", **more}


class IdentityService(HttpServer):
    """``GET /keys`` hands out ``keys``; ``POST /login`` is answered by ``judge``."""

    def __init__(self) -> None:
        self.keys: list[dict[str, str]] = []
        self.judge: Callable[[dict[str, str]], dict[str, Any]] = lambda question: {}
        self.fetch_count = 0
        self.questions: list[dict[str, str]] = []
        self.status = 200
        self.is_answering = threading.Event()
        """While it is cleared, nobody gets an answer."""

        self.is_answering.set()
        service = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                service.fetch_count += 1
                service.is_answering.wait(PATIENCE_S)
                self.answer(service.status, json.dumps({"keys": service.keys}).encode())

            def do_POST(self) -> None:
                question = json.loads(self.body())
                service.questions.append(question)
                service.is_answering.wait(PATIENCE_S)
                self.answer(service.status, json.dumps(service.judge(question)).encode())

        super().__init__(Handler)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.is_answering.set()
        super().__exit__(kind, error, trace)
