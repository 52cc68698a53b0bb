"""The MQTT rows: what is loaded, what a row says, and what it should."""

import threading
from dataclasses import asdict, dataclass

from tests.bench import generator
from tests.bench.servers import Cluster, Counters, Local, Mosquitto, Pair, Server

EVERYWHERE = (Mosquitto.name, Cluster.name, Local.name)
JOIN_AFTER_S = 0.5


@dataclass(frozen=True)
class Case:
    """One kind of load, and what we want of it (0: nothing)."""

    name: str
    arguments: tuple[str, ...]
    ratio: float = 0.0
    """Least ratio of our rate to the peer's."""

    cpu_ratio: float = 0.0
    """Most that our CPU per message may be of the peer's."""

    p50_syncs: float = 0.0
    """Most times the disk's own fdatasync that half of the answers may take."""

    mean_ms: float = 0.0
    p99_ms: float = 0.0
    kib_each: float = 0.0
    """Most memory per connection."""

    flat_with: str = ""
    """Name of the case whose CPU per message this one may exceed by half at most."""

    servers: tuple[str, ...] = EVERYWHERE
    is_joined: bool = False
    """Another server joins while it runs."""


def _publish(*more: str) -> tuple[str, ...]:
    return ("pub", "-size", "256", *more)


def _end_to_end(pubs: int, subs: int, *more: str) -> tuple[str, ...]:
    return ("e2e", "-pubs", str(pubs), "-subs", str(subs), "-size", "256", "-qos", "1", *more)


CASES = (
    Case("QoS 1 publish, 4 x 256 in flight, 256 B",
         _publish("-conns", "4", "-inflight", "256", "-qos", "1"), ratio=3),
    Case("QoS 0 publish, 4 connections, 256 B",
         _publish("-conns", "4", "-inflight", "256", "-qos", "0"), ratio=3),
    Case("QoS 1 publish, serial, 256 B",
         _publish("-conns", "1", "-inflight", "1", "-qos", "1"), p50_syncs=3),
    Case("QoS 1 publish, 500 devices x 1 in flight, 256 B",
         _publish("-conns", "500", "-inflight", "1", "-qos", "1"), cpu_ratio=1.3),
    Case("QoS 1 end to end, 1 to 1, 256 B", _end_to_end(1, 1), ratio=2.5),
    Case("QoS 1 end to end, 10 to 10, 256 B", _end_to_end(10, 10), ratio=2.5),
    Case("QoS 1 end to end, 4 to 4, kept sessions", _end_to_end(4, 4, "-kept")),
    Case("QoS 1 end to end, 4 to 4, shared subscriptions", _end_to_end(4, 4, "-shared")),
    Case("QoS 1 fan-out, 1 to 10, 256 B", _end_to_end(1, 10, "-fan")),
    Case("QoS 1 fan-out, 1 to 100, 256 B", _end_to_end(1, 100, "-fan"), ratio=5),
    Case("connection storm, 5,000", ("storm", "-conns", "5000"), ratio=1),
    Case("15,000 idle connections", ("storm", "-conns", "15000"), kib_each=10,
         servers=(Mosquitto.name, Pair.name)),
    Case("paced 28,000/s, QoS 1, 100 pairs, 256 B",
         ("paced", "-conns", "100", "-rate", "28000", "-size", "256"), mean_ms=8, p99_ms=30,
         servers=(Mosquitto.name, Cluster.name)),
    Case("paced 28,000/s, a third gateway joins",
         ("paced", "-conns", "100", "-rate", "28000", "-size", "256"), mean_ms=8, p99_ms=30,
         servers=(Pair.name,), is_joined=True),
    # last: when a hundred thousand filters go, their end takes the servers seconds
    Case("QoS 1 publish to 1,000 topics with a filter each",
         ("topics", "-filters", "1000", "-size", "64")),
    Case("QoS 1 publish to 100,000 topics with a filter each, the first to each",
         ("topics", "-filters", "100000", "-subs", "100", "-size", "64", "-first", "-warm", "0.1")),
    Case("QoS 1 publish to 100,000 topics with a filter each",
         ("topics", "-filters", "100000", "-subs", "100", "-size", "64"),
         flat_with="QoS 1 publish to 1,000 topics with a filter each"),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One case on one server."""

    case: str
    server: str
    durability: str
    rate: float
    p50_ms: float
    p99_ms: float
    mean_ms: float
    cpu_us: float
    """CPU of the server's processes per message, or per connection of a storm."""

    per_sync: float
    """Messages per group commit; 0: no such thing."""

    gen_cpu_pct: float
    kib_each: float
    """Memory that a connection added; 0: not asked."""

    lost: int
    """Of a paced run: publishes that reached nobody, and connections that the server ended."""

    joined: int
    """Pairs that came in by the gateway that joined."""

    ratio: float = 0.0
    """Rate over the peer's in the same run; 0: it is the peer."""

    def as_json(self) -> dict[str, float | str]:
        return asdict(self)

    @property
    def remark(self) -> str:
        words: list[str] = []
        if self.kib_each:
            words.append(f"{self.kib_each:.1f} KiB each")
        if self.lost >= 0:
            words.append(f"mean {self.mean_ms:.2f} ms, lost {self.lost}")
        if self.joined:
            words.append(f"{self.joined} pairs joined")
        return ", ".join(words)


def run_case(case: Case, server: Server, *, seconds: float, number: int) -> Row:
    """Load *server* once."""
    seen: list[Counters] = []
    arguments = [
        *case.arguments,
        *("-addr", server.address),
        *("-secs", str(seconds)),
        *("-name", f"bench{number}"),
    ]
    if case.is_joined:
        arguments += ("-late", server.late_address)
    joining = threading.Timer(JOIN_AFTER_S, server.join)

    def note() -> None:
        seen.append(server.counters())
        if case.is_joined and len(seen) == 1:
            joining.start()

    result = generator.run(arguments, before=note, after=note)
    if case.is_joined:
        joining.join()
    messages = max(1, result["messages"])
    latency = result["latency_us"] or {"p50": 0.0, "p99": 0.0, "mean": 0.0}
    commits = seen[1].commits - seen[0].commits
    is_storm = case.arguments[0] == "storm"
    return Row(
        case=case.name,
        server=server.name,
        durability=server.note,
        rate=result["rate"],
        p50_ms=latency["p50"] / 1000,
        p99_ms=latency["p99"] / 1000,
        mean_ms=latency["mean"] / 1000,
        cpu_us=(seen[1].cpu_s - seen[0].cpu_s) / messages * 1e6,
        per_sync=messages / commits if commits else 0.0,
        gen_cpu_pct=result["gen_cpu_pct"],
        kib_each=(seen[1].rss_bytes - seen[0].rss_bytes) / messages / 1024 if is_storm else 0.0,
        lost=result["lost"] + result["errors"] if "lost" in result else -1,
        joined=result.get("joined", 0),
    )


def misses(row: Row, rows: list[Row], sync_ms: float) -> list[str]:
    """What a row of ours wants to its case's targets."""
    (case,) = [case for case in CASES if case.name == row.case]
    if row.server == Mosquitto.name:
        return []
    peers = [other for other in rows if other.server == Mosquitto.name and other.case == row.case]
    small = [other for other in rows if other.server == row.server and other.case == case.flat_with]
    found = [
        (bool(row.ratio) and row.ratio < case.ratio, f"{case.ratio} x the peer's rate"),
        (
            bool(case.cpu_ratio and peers) and row.cpu_us > case.cpu_ratio * peers[0].cpu_us,
            f"{case.cpu_ratio} x the peer's CPU",
        ),
        (
            bool(case.p50_syncs) and row.p50_ms > case.p50_syncs * sync_ms,
            f"half within {case.p50_syncs} fdatasyncs",
        ),
        (bool(case.mean_ms) and row.mean_ms > case.mean_ms, f"a mean of {case.mean_ms} ms"),
        (bool(case.p99_ms) and row.p99_ms > case.p99_ms, f"a p99 of {case.p99_ms} ms"),
        (bool(case.kib_each) and row.kib_each > case.kib_each, f"{case.kib_each} KiB each"),
        (bool(small) and row.cpu_us > 1.5 * small[0].cpu_us, f"as little CPU as {case.flat_with}"),
        (row.lost > 0, "nothing lost"),
        (case.is_joined and not row.joined, "a gateway that joins"),
    ]
    return [text for is_missed, text in found if is_missed]
