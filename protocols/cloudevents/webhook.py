"""
Delivering one subscription: pop, POST, ack; the back-off is the message's invisible time.

Every subscription has its own worker and its own bound of events under way, so a slow sink
holds up nobody else. Order is not kept across retries.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from protocols import clock, dead_letters
from protocols.canonical import Call, Delivery, Identity
from protocols.cloudevents import mapping, modes, subscriptions
from protocols.cloudevents.access import qualified
from protocols.cloudevents.config import CloudEventsConfig
from protocols.cloudevents.filters import compile_filters
from protocols.cloudevents.modes import Event
from protocols.cloudevents.subscriptions import Stored
from protocols.cloudevents.verdicts import Fate, Verdict, has_consent, judge
from protocols.directory import Put
from protocols.errors import Refused
from protocols.groups import InvisibleTimeChange, PopRequest
from protocols.pipeline import Services
from protocols.tasks import Tasks

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger("tidegate.webhook")

POP_WAIT_MS: Final = 10_000
INVISIBLE_RESERVE_MS: Final = 20_000
"""Hidden for the sink's time to answer and this."""

PAUSE_S: Final = 1.0
HANDSHAKE_PAUSE_S: Final = (1.0, 60.0)
"""Between two questions for consent: the first wait and the longest."""

DEAD_LETTER_PREFIX: Final = "ce-"
ERROR_TEXT_MAX: Final = 200


class Worker:
    """Delivers one subscription until cancelled."""

    def __init__(
        self,
        stored: Stored,
        version: int,
        *,
        listener: str,
        config: CloudEventsConfig,
        services: Services,
        session: "aiohttp.ClientSession",
    ) -> None:
        self.version = version
        self._stored = stored
        self._config = config
        self._services = services
        self._session = session
        self._wants = compile_filters(stored.filters)
        self._attempts_max = stored.attempts_max or config.webhook_attempts_max
        self._free = asyncio.Semaphore(config.webhook_parallel_max)
        self._tasks = Tasks(f"webhook/{stored.id}")
        self._under_way: set[Delivery] = set()
        self._call = Call(
            protocol="cloudevents",
            listener=listener,
            identity=Identity(name=stored.identity, roles=stored.roles),
            tenant=stored.tenant,
            client_id=stored.id,
        )
        self._outcomes = {
            fate: services.metrics.counter(
                "webhook_deliveries",
                "Webhook deliveries by outcome",
                listener=listener,
                outcome=fate.value,
            )
            for fate in Fate
        }

    async def run(self) -> None:
        """Ask for consent, then deliver."""
        if self._config.webhook_handshake == "require":
            await self._until_consent()
        while True:
            try:
                await self._round()
            except Refused as refusal:
                logger.warning("webhook %s: %s", self._stored.id, refusal)
                await asyncio.sleep(PAUSE_S)

    async def close(self) -> None:
        """Stop; what is under way goes back at once."""
        left = [InvisibleTimeChange(delivery.handle, 0) for delivery in self._under_way]
        await self._tasks.close()
        if left:
            await self._services.pipeline.change_invisible_time(self._call, left)

    # ── consent ─────────────────────────────────────────────────────────────────────────

    async def _until_consent(self) -> None:
        pause_s, pause_s_max = HANDSHAKE_PAUSE_S
        while not await self._has_consent():
            logger.warning("webhook %s: %s gives no consent", self._stored.id, self._stored.sink)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, pause_s_max)

    async def _has_consent(self) -> bool:
        import aiohttp

        headers = self._headers()
        try:
            async with self._session.options(
                self._stored.sink, headers=headers, allow_redirects=False
            ) as answer:
                return has_consent(answer.headers, self._config.webhook_origin)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    def _headers(self) -> dict[str, str]:
        headers = {"WebHook-Request-Origin": self._config.webhook_origin}
        if self._stored.token:
            headers["Authorization"] = f"Bearer {self._stored.token}"
        return headers

    # ── deliveries ──────────────────────────────────────────────────────────────────────

    async def _round(self) -> None:
        """Pop as many as there are places, and start them."""
        await self._free.acquire()
        room = 1
        while not self._free.locked() and room < self._config.webhook_parallel_max:
            await self._free.acquire()
            room += 1
        deliveries: list[Delivery] = []
        try:
            deliveries = await self._services.pipeline.pop(self._call, self._pop(room))
        finally:
            for _ in range(room - len(deliveries)):
                self._free.release()
        for delivery in deliveries:
            self._under_way.add(delivery)
            self._tasks.start(self._deliver(delivery), name="deliver")

    def _pop(self, count: int) -> PopRequest:
        return PopRequest(
            group=self._stored.spec(),
            count=count,
            invisible_ms=round(self._config.webhook_timeout_s * 1000) + INVISIBLE_RESERVE_MS,
            wait_ms=POP_WAIT_MS,
        )

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            event = mapping.from_stored(delivery.message)
            verdict, status, error = Verdict(Fate.DONE), 0, ""
            if self._wants(event):
                status, headers, error = await self._post(event)
                verdict = judge(
                    status,
                    headers,
                    attempt=delivery.attempt,
                    attempts_max=self._attempts_max,
                    now_ms=clock.wall_ms(),
                )
                self._outcomes[verdict.fate].inc()
            await self._settle(delivery, verdict, status, error)
        except Refused as refusal:
            # hidden until its invisible time ends, then delivered again
            logger.warning("webhook %s: %s", self._stored.id, refusal)
        finally:
            self._under_way.discard(delivery)
            self._free.release()

    async def _post(self, event: Event) -> tuple[int, dict[str, str], str]:
        """(status, headers, error text); status 0 without an answer. Redirects are refused."""
        import aiohttp

        headers = self._headers()
        if self._stored.mode == "structured" or event.data is None:
            body = modes.encode_structured(event)
            headers["Content-Type"] = modes.STRUCTURED
        else:
            own, body = modes.encode_binary(event)
            headers |= own
        try:
            async with self._session.post(
                self._stored.sink, data=body, headers=headers, allow_redirects=False
            ) as answer:
                return answer.status, dict(answer.headers), answer.reason or ""
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            # ValueError: a header that HTTP cannot carry, such as a media type with a newline
            return 0, {}, f"{type(error).__name__}: {error}"

    async def _settle(self, delivery: Delivery, verdict: Verdict, status: int, error: str) -> None:
        pipeline, handle = self._services.pipeline, delivery.handle
        if verdict.fate is Fate.DONE:
            await pipeline.ack(self._call, [handle])
        elif verdict.fate is Fate.BURY:
            await self._bury(delivery, status, error)
        else:
            change = InvisibleTimeChange(handle, verdict.delay_ms)
            await pipeline.change_invisible_time(self._call, [change])
            if verdict.fate is Fate.RETIRE:
                await self._retire()

    async def _bury(self, delivery: Delivery, status: int, error: str) -> None:
        """To ``%DLQ%ce-<id>`` with the reason in extension attributes, as Knative does it."""
        reasons = (
            ("CE_gwerrordest", self._stored.sink),
            ("CE_gwerrorcode", str(status)),
            ("CE_gwerrordata", printable(error)),
        )
        logger.warning("webhook %s: given up, status %d %s", self._stored.id, status, error)
        await dead_letters.bury(
            self._services,
            self._call,
            delivery.message,
            delivery.handle,
            qualified(self._stored.tenant, DEAD_LETTER_PREFIX + self._stored.id),
            reasons=reasons,
        )

    async def _retire(self) -> None:
        """410: nothing more is sent or collected until the subscription is replaced."""
        directory, stored = self._services.directory, self._stored
        retired = subscriptions.retired(stored)
        key = subscriptions.record_key(stored.tenant, stored.id)
        logger.warning("webhook %s: %s answers 410, retired", stored.id, stored.sink)
        (result,) = await directory.put([Put(key, subscriptions.encode(retired), self.version)])
        if result.is_ours:
            await directory.subscribe([], stored.rows(), tenant=stored.tenant)


def printable(text: str) -> str:
    """As a stored property: one line, bounded."""
    return "".join(char if char.isprintable() else " " for char in text)[:ERROR_TEXT_MAX]
