"""Whose turn it is in an enhanced authentication, and by which method [MQTT 5, 4.12]."""

from typing import Final

from protocols.mqtt.fields import PacketError, protocol_error
from protocols.mqtt.packets import Auth, PacketProperties, Reason
from protocols.mqtt.properties import Property, find_str

BEFORE_CONNACK: Final = (0xE0, 0xF0)
"""First bytes of what a client with a method may send before CONNACK [MQTT-3.1.2-30]."""


class AuthTurns:
    """Of a connection that named a method at CONNECT; sans-I/O."""

    def __init__(self, method: str) -> None:
        self.method = method
        self._is_under_way = True
        self._is_asked = False

    def take(self, packet: Auth) -> None:
        """The client's AUTH. Raises PacketError if it may not say that now."""
        method = find_str(packet.properties, Property.AUTHENTICATION_METHOD)
        if method is None:
            raise protocol_error("AUTH without its method")  # [3.15.2.2.2]
        if method != self.method:  # [MQTT-4.12.0-5, -4.12.1-1]
            raise PacketError(Reason.BAD_AUTHENTICATION_METHOD, f"AUTH by {method[:64]}")
        wanted = Reason.CONTINUE_AUTHENTICATION if self._is_asked else Reason.REAUTHENTICATE
        is_ours = self._is_under_way and not self._is_asked
        if packet.reason != wanted or is_ours:
            raise protocol_error(f"AUTH with 0x{packet.reason:02X} out of turn")
        self._is_under_way, self._is_asked = True, False

    def ask(self, data: bytes) -> Auth:
        """The server's challenge."""
        self._is_asked = True
        return Auth(Reason.CONTINUE_AUTHENTICATION, self.properties(data))  # [MQTT-4.12.0-2]

    def end(self) -> None:
        """It is proved: the client may begin anew."""
        self._is_under_way = self._is_asked = False

    def properties(self, data: bytes) -> PacketProperties:
        """Of AUTH, and of CONNACK [MQTT-4.12.0-5]."""
        method = (int(Property.AUTHENTICATION_METHOD), self.method)
        return (method, (int(Property.AUTHENTICATION_DATA), data)) if data else (method,)
