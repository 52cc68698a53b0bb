"""
One event loop between the sockets and the engine.

All requests of a read buffer are handled in one go; frames of gateways are set aside for the
next turn of the loop, so that leases, fences and directory reads that arrived meanwhile go
first. Each turn that changed something ends in ``_end_tick``: the engine decides what time
decides, streams and waits are served, and everything built leaves for the disk together.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from protocols import clock
from protocols.driver import flusher
from protocols.errors import Code, PeerError, Refused
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.delivering import encode_deliver
from protocols.remoting.headers import HeaderError
from protocols.remoting.peer import Peer
from protocols.remoting.private import PrivateCode
from store.answers import StoreFailed
from store.committer import Committer
from store.engine import WriteBatch
from store.handlers import statistics
from store.handlers.access import PRIVATE_CODES, refusal
from store.handlers.answers import not_available, refuse
from store.handlers.backlog import Turns
from store.handlers.clients import tell_members
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.handlers.directory import APPLIED_WAKE, DIRECTORY_WAKE
from store.handlers.held import send_checks
from store.handlers.plain import answer_plain, runs_of
from store.handlers.send import take_apart
from store.handlers.table import HANDLERS
from store.log.ahead import Prefetch
from store.metrics import ServerCounters
from store.prefetching import DEPTH

logger = logging.getLogger("tidegate.store")

SET_ASIDE: Final = frozenset((PrivateCode.SEND, PrivateCode.GROUP_OPEN))
"""Long work: a frame of messages, a group with thousands of queues."""

QUIET: Final = frozenset(
    (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, PrivateCode.STREAM_CREDIT)
)
"""Requests that change nothing, mostly: reads, and credit that nobody waits for."""

SEND: Final = int(PrivateCode.SEND)
SENDS_PER_TURN: Final = 8
"""Frames run before the loop looks at its sockets again: at most some 10 ms of work."""

GATHER_BYTES: Final = 1 << 20
"""Sends of standard codes gather up to here while a commit is under way: a block costs as much as
hundreds of messages, and theirs could not be written before."""

SLOW_RETRY_S: Final = 0.01
"""When a stream's peer was slow: look again."""

KEEP_ALIVE_S: Final = 60.0
"""How often an idle gateway's data connection carries an empty DELIVER: half the time after
which a silent connection is closed."""

LATE_S_MAX: Final = 0.5
"""A timer that is later than this was not held up by work: the machine stopped the process."""

TIMER_S_MAX: Final = 1.0
"""The timer fires at least so often; rates and silence are looked at then."""


class StoreServer:
    """Takes the commands of all connections; ``receive`` is the remoting handler."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.counters = ServerCounters()
        context.engine.use_credit(context.streams.free_credit)
        context.appends.runs_of = runs_of
        context.appends.take_apart = partial(take_apart, context, self._handle_by)
        context.appends.give_plain = partial(answer_plain, context)
        self.read_ahead: Callable[[], None] = lambda: None
        """Called when parts of the log should be read in the background."""

        self.commit_ended: Callable[[], bool] = lambda: False
        """Called when the disk has nothing to write for a moment; True: it reads now."""

        self._turns = Turns(
            context.backlog, is_committing=self._is_committing, tick_soon=self.tick_soon
        )
        self.topics_changed = asyncio.Event()
        """Set when the name servers should hear of another topic table."""

        self._loop = asyncio.get_running_loop()
        self._connections: dict[Peer, Connection] = {}
        self._sends: deque[tuple[Connection, RemotingCommand]] = deque()
        self._committer: Committer | None = None
        self._is_tick_due = False
        self._flush_now = flusher(self._loop)
        self.is_alone = True
        """No gateway shares the loop."""

        self._is_read_put_off = False
        """The last tick committed, and somebody waits for a read."""

        self._is_in_frames = False
        """The tick runs its frames: what they commit it serves itself."""

        self._is_answer_first = False
        """The answer of what was committed meanwhile has to leave by this very loop."""

        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._paused: set[Connection] = set()
        self._kept_alive = clock.monotonic()
        self._is_stopped = False

    def use(self, committer: Committer) -> None:
        """Where batches go; to be called before the first request."""
        self._committer = committer
        self.tick_soon()

    def stop(self) -> None:
        """No more ticks."""
        self.context.appends.flush(clock.read())
        self._is_stopped = True
        self.context.waits.close()
        self.context.searches.close()
        self._turns.stop()
        if self._timer is not None:
            self._timer.cancel()

    # ── requests ────────────────────────────────────────────────────────────────────────

    def receive(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        """All requests of one read, in order."""
        if self._is_stopped:
            return
        connection = self._connections.get(peer) or self._open(peer)
        presence = connection.presence
        if presence is not None:
            presence.heard = clock.monotonic()
        self.counters.requests += len(commands)
        self.context.now_ms = clock.wall_ms()
        is_quiet = True
        for command in commands:
            if command.code in SET_ASIDE:
                self._sends.append((connection, command))
                is_quiet = False
            else:
                self._handle(connection, command)
                is_quiet &= command.code in QUIET
        self.context.appends.settle()
        if not is_quiet or self._is_tick_wanted():
            self.tick_soon()

    def _is_tick_wanted(self) -> bool:
        """After what mostly leaves nothing to do."""
        engine = self.context.engine
        if engine.background.wants_ahead:
            self.read_ahead()
        return engine.has_writes or bool(self.context.backlog) or self.context.streams.has_woken

    def _open(self, peer: Peer) -> Connection:
        has_access = not self.context.secret
        connection = Connection(peer, now=clock.monotonic(), has_access=has_access)
        self._connections[peer] = connection
        peer.on_lost(self._lost)
        return connection

    def _lost(self, peer: Peer) -> None:
        connection = self._connections.pop(peer, None)
        if connection is None or self._is_stopped:
            return
        now = clock.read()
        self._paused.discard(connection)
        if not self.counters.is_healthy:
            return
        self.context.streams.connection_lost(connection, now)
        if connection.presence is not None:
            self.context.presences.leave(connection.presence, connection, now.monotonic)
        tell_members(self.context, self.context.clients.lost(connection))
        self.tick_soon()

    def _handle(self, connection: Connection, command: RemotingCommand) -> None:
        self._handle_by(HANDLERS.get(command.code), connection, command)

    def _handle_by(
        self, handler: Handler | None, connection: Connection, command: RemotingCommand
    ) -> None:
        """Answer one request, now or later; what fails costs that request alone."""
        try:
            if handler is None:
                answer: RemotingCommand | None = command.answer(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    remark=f"request type {command.code} not supported",
                )
            elif not connection.has_access and (
                remark := refusal(self.context, connection, command)
            ):
                answer = command.answer(ResponseCode.NO_PERMISSION, remark=remark)
            else:
                answer = handler(self.context, connection, command)
        except HeaderError as error:
            answer = command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except Refused as error:
            self.counters.refused += 1
            answer = refuse(command, error)
        except StoreFailed as error:
            answer = not_available(command, str(error))
        except PeerError as error:
            answer = self._malformed(connection, command, error)
        except Exception:  # a fault of ours costs this request; those behind it go on
            logger.exception("request %d of %s failed", command.code, connection.address)
            answer = command.answer(ResponseCode.SYSTEM_ERROR, remark="internal error, see the log")
        if answer is not None:
            connection.answer(command, answer)

    @staticmethod
    def _malformed(
        connection: Connection, command: RemotingCommand, error: PeerError
    ) -> RemotingCommand | None:
        """A gateway that breaks the private format loses its connection; others an answer."""
        logger.info("peer %s: request %d: %s", connection.address, command.code, error)
        if command.code in PRIVATE_CODES:
            connection.peer.abort()
            return None
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))

    # ── the tick ────────────────────────────────────────────────────────────────────────

    def tick_soon(self) -> None:
        if not self._is_tick_due and not self._is_stopped:
            self._is_tick_due = True
            self._loop.call_soon(self._end_tick)

    def _end_tick(self) -> None:
        """Run frames, let time pass, serve who waits, hand the rest to the disk."""
        self._is_tick_due = False
        if self._is_stopped:
            return
        commit_count = self.counters.commits
        self._run_frames()
        if self._is_answer_first:
            self._is_answer_first = False
            self._loop.call_soon(self.tick_soon)  # a gateway in this process passes it on first
            return
        now = clock.read()
        appends = self.context.appends
        if appends.byte_count >= GATHER_BYTES or not self._is_committing():
            appends.flush(now)
        if self.counters.is_healthy:
            try:
                self._let_time_pass(now)
            except Exception:  # a fault of ours must not stop the clock of everybody else
                logger.exception("the end of a tick failed")
                self._arm(now, TIMER_S_MAX)
        if commit_count != self.counters.commits:
            self._answer_first()
        else:
            self._is_read_put_off = False
            self._turns.read()
        if self.context.engine.background.wants_ahead:
            self.read_ahead()
        if self._sends or self.context.engine.has_woken:
            self.tick_soon()

    def _answer_first(self) -> None:
        """What this tick has committed is answered before anything is read, from sockets too.
        Where each tick commits, every other one reads all the same."""
        context = self.context
        if self.is_alone and not self._sends and not context.engine.has_woken:
            self._flush_now()
        is_put_off, self._is_read_put_off = self._is_read_put_off, bool(context.backlog)
        if is_put_off:
            self._is_read_put_off = False
            self._turns.read()
        elif context.backlog:
            self.tick_soon()

    def _run_frames(self) -> None:
        """The disk gets what it has time for."""
        self._is_in_frames = True
        try:
            for _ in range(min(len(self._sends), SENDS_PER_TURN)):
                connection, command = self._sends.popleft()
                if connection.is_open:
                    self.counters.frames += command.code == SEND
                    self._handle(connection, command)
                    if self.counters.is_healthy:
                        self._commit(only_if_idle=True)
        finally:
            self._is_in_frames = False

    def reads_allowed(self) -> int:
        """At a time: a commit waits for every read that the disk was given before it."""
        return int(self._turns.is_pause()) if self._turns.is_storing() else DEPTH

    def _is_committing(self) -> bool:
        """What else costs time now costs those who wait for the disk."""
        committer = self._committer
        return committer is not None and committer.out_count > 0 and not committer.has_failed

    def _let_time_pass(self, now: clock.Now) -> None:
        """Everything but requests; after a failed write nothing of it may happen any more."""
        due = self.context.engine.tick(now)
        send_checks(self.context)
        self._end_presences(now)
        has_more = self._serve(now)
        enforced = self.context.engine.enforce(now)
        self._commit()
        self._balance()
        self._arm(now, SLOW_RETRY_S if has_more else TIMER_S_MAX, due, enforced)

    def _serve(self, now: clock.Now) -> bool:
        """Wake and serve until nothing new has become visible; True: more is due later."""
        context = self.context
        woken = context.engine.take_woken()
        context.streams.wake(woken.groups)
        if context.waits:
            for group in woken.groups:
                context.waits.wake(("group", group))
            for queue in woken.queues:
                context.waits.wake(queue)
        if woken.is_directory_changed:
            context.waits.wake(DIRECTORY_WAKE)
            context.waits.wake(APPLIED_WAKE)
        if woken.is_topics_changed:
            self.topics_changed.set()
        return context.streams.serve(now)

    def _commit(self, *, only_if_idle: bool = False) -> None:
        """Hand what is built to the disk; *only_if_idle*: to one that has nothing to do."""
        committer = self._committer
        if committer is None or (only_if_idle and committer.out_count):
            return
        if committer.has_room:
            batch = self.context.engine.take_writes()
            if batch is not None and committer.submit(batch):
                self._turns.commit_begun()

    def committed(self, batch: WriteBatch, seconds: float) -> None:
        """*batch* is durable: give its answers, serve what it made visible, send the next."""
        self.counters.commits += 1
        self.counters.commit_s += seconds
        self.context.engine.confirm(batch)
        self._loop.call_soon(self._let_disk_read)  # the answers leave first
        self._commit()
        self._turns.commit_ended()
        context = self.context
        has_more = self._sends or context.engine.has_woken or context.backlog
        if has_more or context.appends.byte_count:
            if not self._is_in_frames:
                self.tick_soon()
        elif self._is_in_frames and not self.is_alone:
            self._is_answer_first = True
        elif self._is_in_frames:
            self._flush_now()  # nobody gets more than an answer: it need not wait for the tick
        else:
            self._loop.call_soon(self.tick_soon)  # a gateway in this process passes it on first

    def _let_disk_read(self) -> None:
        """Handing a read to the disk takes as long as a read that gave way: not both."""
        if self.commit_ended():
            self._turns.pass_by()

    def fetched(self, work: Prefetch) -> None:
        """A part of the log that readers wanted has come, or could not be read."""
        context = self.context
        context.engine.background.prefetched(work)
        waiting = context.comings.take(work.keys)
        if waiting:
            is_pressing = context.backlog.is_pressing()
            for connection, read in waiting:
                if is_pressing:
                    context.backlog.add(connection, read)
                else:
                    self._read(read)
            self.tick_soon()

    @staticmethod
    def _read(read: Callable[[], object]) -> None:
        try:
            read()
        except Exception:  # a fault of ours costs this request; the others go on
            logger.exception("a read that had waited failed")

    def failed(self, error: Exception) -> None:
        """The disk failed: nothing that is not durable is ever acknowledged."""
        self.counters.is_healthy = False
        self.context.engine.fail(error)
        self.tick_soon()  # sends that wait for the commit
        for connection in self._paused:
            connection.peer.resume()
        self._paused.clear()

    def _end_presences(self, now: clock.Now) -> None:
        for presence in self.context.presences.take_ended(now.monotonic):
            logger.warning("gateway %s epoch %d is not heard any more", *presence.key)
            self.context.streams.end_gateway(
                presence.key, Code.HA_NOT_AVAILABLE, "presence has ended", now
            )
            if self.context.config.directory and not self._is_connected(presence.key.gateway):
                self.context.engine.gateways.lose(*presence.key, now)
        self.context.streams.expire(now)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def _is_connected(self, gateway: str) -> bool:
        """One that is cut off shows as silence; one without a single socket has died."""
        known = [connection.gateway for connection in self._connections.values()]
        return any(key is not None and key.gateway == gateway for key in known)

    def _balance(self) -> None:
        """Back-pressure: read nothing from gateways while too much waits for the disk."""
        context = self.context
        if context.is_busy:
            for connection in self._connections.values():
                if connection.gateway and not connection.is_control and not connection.is_paused:
                    connection.is_paused = True
                    connection.peer.pause()
                    self._paused.add(connection)
                    self.counters.busy += 1
        elif self._paused and (
            context.engine.pending_bytes < context.config.limits.pending_bytes_max // 2
        ):
            for connection in self._paused:
                connection.is_paused = False
                connection.peer.resume()
            self._paused.clear()

    # ── the timer ───────────────────────────────────────────────────────────────────────

    def _arm(self, now: clock.Now, at_most_s: float, *dues: float | None) -> None:
        """One timer for everything that time decides."""
        times = [now.monotonic + at_most_s]
        of_gateways = self.context.presences.deadline(), self.context.streams.deadline()
        for deadline in dues + of_gateways:
            if deadline is not None:
                times.append(deadline)
        at = max(min(times), now.monotonic + 0.0005)
        if self._timer is not None:
            if now.monotonic < self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = clock.monotonic()
        if now - self._timer_at > LATE_S_MAX:
            self._forgive(now - self._timer_at + LATE_S_MAX)
        recent = self.counters.recent
        if not recent or now - recent[-1][0] >= TIMER_S_MAX:
            statistics.sample(self.context, now)
            tell_members(self.context, self.context.clients.take_silent(now))
        if now >= self._kept_alive + KEEP_ALIVE_S:
            self._kept_alive = now
            self._keep_alive()
        self.tick_soon()

    def _forgive(self, late_s: float) -> None:
        """What gateways said while this process got no CPU is in its sockets, still unread."""
        logger.warning("this process did not run for %.1f s; leases are prolonged", late_s)
        now = clock.read()
        self.context.engine.gateways.prolong_leases(late_s, now)
        self.context.presences.prolong(late_s, now.monotonic)

    def _keep_alive(self) -> None:
        """A gateway that only waits for deliveries is not silent: its other connection beats."""
        body = encode_deliver(self.context.engine.epoch, (), ())
        for connection in self._connections.values():
            if connection.presence is not None and not connection.is_control:
                command = RemotingCommand(PrivateCode.DELIVER, None, body, is_binary=True)
                connection.peer.send_oneway(command)
