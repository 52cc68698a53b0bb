"""Who is connected, over all protocols: the table behind ``GET /api/clients`` and kick."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import NamedTuple

from protocols.observing import ClientInfo


class _Row(NamedTuple):
    info: ClientInfo
    kick: Callable[[], None]
    leave: Callable[[], None] | None


class ClientTable:
    """``Clients`` of the services."""

    def __init__(self) -> None:
        self._clients: dict[int, _Row] = {}
        self._asked: set[int] = set()
        """Connections that were asked to leave and have not gone yet."""

        self._numbers = count(1)
        self._on_left: list[Callable[[ClientInfo], None]] = []

    def joined(
        self,
        info: ClientInfo,
        kick: Callable[[], None],
        leave: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        """Register a connection; call the result, once or more, when it ends."""
        number = next(self._numbers)
        self._clients[number] = _Row(info, kick, leave)
        return partial(self._leave, number)

    def _leave(self, number: int) -> None:
        self._asked.discard(number)
        row = self._clients.pop(number, None)
        if row is not None:
            for listener in self._on_left:
                listener(row.info)

    def on_left(self, listener: Callable[[ClientInfo], None]) -> None:
        """Call *listener* with every connection that ends."""
        self._on_left.append(listener)

    def __len__(self) -> int:
        return len(self._clients)

    def items(self) -> Iterator[tuple[int, ClientInfo]]:
        """(number, connection), oldest first."""
        return iter([(number, row.info) for number, row in self._clients.items()])

    def kick(self, client_id: str, *, protocol: str = "") -> int:
        """End every connection of *client_id*; how many there were."""
        found = [
            row.kick
            for row in self._clients.values()
            if row.info.client_id == client_id and protocol in ("", row.info.protocol)
        ]
        for kick in found:
            kick()
        return len(found)

    def kick_where(self, is_meant: Callable[[ClientInfo], bool]) -> int:
        """End every connection that *is_meant* says; how many there were."""
        found = [row.kick for row in self._clients.values() if is_meant(row.info)]
        for kick in found:
            kick()
        return len(found)

    def kick_all(self) -> None:
        for row in list(self._clients.values()):
            row.kick()

    def ask_to_leave(self, count_max: int) -> int:
        """
        Ask so many more connections, the oldest first, to go elsewhere; how many were asked.

        Those that have no polite way stay until their listener closes.
        """
        able = [
            (number, row.leave)
            for number, row in self._clients.items()
            if row.leave is not None and number not in self._asked
        ][: max(count_max, 0)]
        for number, leave in able:
            self._asked.add(number)
            leave()
        return len(able)

    def forget_asked(self) -> None:
        """They may be asked again."""
        self._asked.clear()
