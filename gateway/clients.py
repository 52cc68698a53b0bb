"""Who is connected, over all protocols: the table behind ``GET /api/clients`` and kick."""

from collections.abc import Callable, Iterator
from itertools import count

from protocols.pipeline import ClientInfo


class ClientTable:
    """``Clients`` of the services."""

    def __init__(self) -> None:
        self._clients: dict[int, tuple[ClientInfo, Callable[[], None]]] = {}
        self._numbers = count(1)
        self._on_left: list[Callable[[ClientInfo], None]] = []

    def joined(self, info: ClientInfo, kick: Callable[[], None]) -> Callable[[], None]:
        """Register a connection; call the result, once or more, when it ends."""
        number = next(self._numbers)
        self._clients[number] = (info, kick)

        def left() -> None:
            if self._clients.pop(number, None) is not None:
                for listener in self._on_left:
                    listener(info)

        return left

    def on_left(self, listener: Callable[[ClientInfo], None]) -> None:
        """Call *listener* with every connection that ends."""
        self._on_left.append(listener)

    def __len__(self) -> int:
        return len(self._clients)

    def items(self) -> Iterator[tuple[int, ClientInfo]]:
        """(number, connection), oldest first."""
        return iter([(number, info) for number, (info, _) in self._clients.items()])

    def count_of(self, protocol: str) -> int:
        return sum(info.protocol == protocol for info, _ in self._clients.values())

    def kick(self, client_id: str, *, protocol: str = "") -> int:
        """End every connection of *client_id*; how many there were."""
        found = [
            kick
            for info, kick in list(self._clients.values())
            if info.client_id == client_id and protocol in ("", info.protocol)
        ]
        for kick in found:
            kick()
        return len(found)

    def kick_number(self, number: int) -> bool:
        """End one connection by its number; whether there was one."""
        found = self._clients.get(number)
        if found is not None:
            found[1]()
        return found is not None

    def kick_where(self, is_meant: Callable[[ClientInfo], bool]) -> int:
        """End every connection that *is_meant* says; how many there were."""
        found = [kick for info, kick in list(self._clients.values()) if is_meant(info)]
        for kick in found:
            kick()
        return len(found)

    def kick_all(self) -> None:
        for _, kick in list(self._clients.values()):
            kick()
