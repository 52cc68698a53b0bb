"""Between a stream and the outbox: what an earlier connection left, and marks that were lost."""

from typing import Any, cast

from protocols.canonical import Delivery, ReceiptHandle, StoredMessage
from protocols.mqtt.feed import Feed
from protocols.mqtt.session import Flight, Stage, Subscriptions, Window


class Out:
    """Stands for the outbox."""

    def __init__(self) -> None:
        self.window = Window(10, next_id=1)
        self.calls: list[tuple[str, list[int]]] = []
        self.marks: list[tuple[int, int, int]] = []

    def deliver(self, feed: Feed, deliveries: list[Delivery]) -> None:
        self.calls.append(("deliver", [item.handle.position for item in deliveries]))

    def resend(self, feed: Feed, deliveries: list[Delivery]) -> None:
        self.calls.append(("resend", [item.handle.position for item in deliveries]))

    def settle_soon(self, feed: Feed) -> None:
        feed.settle()

    def is_peer_slow(self) -> bool:
        return False

    # DeliveryStream

    def when_unmarked(self, listener: Any) -> None:
        self.unmarked = listener

    def mark(self, marks: list[tuple[ReceiptHandle, int, int]]) -> None:
        self.marks += [(handle.position, packet_id, stage) for handle, packet_id, stage in marks]


def handle(position: int, broker: str = "a") -> ReceiptHandle:
    return ReceiptHandle(
        cluster="c", broker=broker, store_epoch=1, group=1, position=position, grant=1
    )


def delivery(position: int, packet_id: int, broker: str = "a") -> Delivery:
    return Delivery(cast(StoredMessage, None), handle(position, broker), packet_id=packet_id)


def new_feed(out: Out) -> Feed:
    return Feed(
        out,
        Subscriptions([]),
        credit=10,
        is_auto_ack=False,
        is_marked=True,
        ended=lambda feed, code: None,
    )


def started() -> tuple[Out, Feed]:
    out = Out()
    feed = new_feed(out)
    feed.start(cast(Any, out))
    out.calls.clear()
    return out, feed


def test_what_comes_late_with_a_packet_id_is_sent_again_under_it() -> None:
    """Its store was away when the session was resumed."""
    out, feed = started()
    feed.deliver([delivery(1, 7), delivery(2, 8)])
    feed.deliver([delivery(3, 0)])
    assert out.calls == [("resend", [1, 2]), ("deliver", [3])]


def test_lost_marks_are_written_again_for_what_the_client_has() -> None:
    out, feed = started()
    out.window.flights.update(
        {
            7: Flight(feed, handle(1), 1, Stage.SENT),
            8: Flight(feed, handle(2), 2, Stage.SENT),
            9: Flight(feed, handle(3), 2, Stage.RECEIVED),
            10: Flight(feed, handle(4), 2, Stage.WAITING),
            11: Flight(feed, handle(5), 1, Stage.SENT),
        }
    )
    out.unmarked([handle(position) for position in (1, 2, 3, 4)])
    assert out.marks == [(1, 7, Stage.SENT), (2, 8, Stage.SENT_QOS2), (3, 9, Stage.RECEIVED)]


def test_what_was_under_way_at_any_store_comes_before_what_is_new_at_another() -> None:
    """In the order of each store."""
    out = Out()
    feed = new_feed(out)
    feed.deliver([delivery(1, 5), delivery(2, 0), delivery(3, 0)])
    feed.deliver([delivery(11, 8, "b"), delivery(12, 0, "b"), delivery(13, 9, "b")])
    feed.deliver([delivery(14, 0, "b")])
    feed.start(cast(Any, out))
    assert out.calls == [
        ("resend", [1, 11]),
        ("deliver", [12]),
        ("resend", [13]),
        ("deliver", [2, 3, 14]),
    ]
