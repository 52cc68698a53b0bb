"""A webhook target in a thread: consents to every sender, keeps the bodies."""

from tests.support.http_server import HttpServer, QuietHandler


class WebhookSink(HttpServer):
    """``url`` is what a subscription names as its sink."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        received = self.bodies

        class Handler(QuietHandler):
            def do_OPTIONS(self) -> None:
                self.answer(200, WebHook_Allowed_Origin="*")

            def do_POST(self) -> None:
                received.append(self.body())
                self.answer(202)

        super().__init__(Handler)
        self.url += "/hook"
