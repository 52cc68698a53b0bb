"""An identity provider's key set and a web service that is asked who may come in, in a thread."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import jwt

from tests.support.patience import PATIENCE_S


def jwk(kid: str, key: Any, **more: str) -> dict[str, str]:
    """The public half of an RSA or EC key, as a key set lists it."""
    is_rsa = hasattr(key, "private_numbers") and hasattr(key.private_numbers(), "p")
    maker = jwt.algorithms.RSAAlgorithm if is_rsa else jwt.algorithms.ECAlgorithm
    return {**json.loads(maker.to_jwk(key.public_key())), "kid": kid, "use": "sig", **more}


class IdentityService:
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

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.fetch_count += 1
                service.is_answering.wait(PATIENCE_S)
                self._answer({"keys": service.keys})

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                question = json.loads(self.rfile.read(length))
                service.questions.append(question)
                service.is_answering.wait(PATIENCE_S)
                self._answer(service.judge(question))

            def _answer(self, found: Any) -> None:
                data = json.dumps(found).encode()
                self.send_response(service.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """Who asked has given up."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.is_answering.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)
