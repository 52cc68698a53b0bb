"""A webhook target in a thread: consents to every sender, keeps the bodies."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from tests.support.patience import PATIENCE_S


class WebhookSink:
    """``url`` is what a subscription names as its sink."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        received = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_OPTIONS(self) -> None:
                self._answer(200, ("WebHook-Allowed-Origin", "*"))

            def do_POST(self) -> None:
                received.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                self._answer(202)

            def _answer(self, status: int, *headers: tuple[str, str]) -> None:
                self.send_response(status)
                for name, value in (*headers, ("Content-Length", "0")):
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
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
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)
