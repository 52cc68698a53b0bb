"""The MQTT rows: what is loaded, and what a row says."""

from dataclasses import asdict, dataclass

from tests.bench import generator
from tests.bench.servers import Counters, Server


@dataclass(frozen=True)
class Case:
    """One kind of load."""

    name: str
    arguments: tuple[str, ...]
    target: float
    """Least ratio of our rate to the peer's; 0: none set."""


CASES = (
    Case("QoS 1 publish, 4 x 256 in flight, 256 B",
         ("pub", "-conns", "4", "-inflight", "256", "-size", "256", "-qos", "1"), 2),
    Case("QoS 0 publish, 4 connections, 256 B",
         ("pub", "-conns", "4", "-inflight", "256", "-size", "256", "-qos", "0"), 0),
    Case("QoS 1 publish, serial, 256 B",
         ("pub", "-conns", "1", "-inflight", "1", "-size", "256", "-qos", "1"), 0),
    Case("QoS 1 end to end, 1 to 1, 256 B",
         ("e2e", "-pubs", "1", "-subs", "1", "-size", "256", "-qos", "1"), 0),
    Case("QoS 1 fan-out, 1 to 10, 256 B",
         ("e2e", "-pubs", "1", "-subs", "10", "-fan", "-size", "256", "-qos", "1"), 0),
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
    cpu_us: float
    """CPU of the server's processes per message."""

    per_sync: float
    """Messages per group commit; 0: no such thing."""

    gen_cpu_pct: float
    ratio: float = 0.0
    """Rate over the peer's in the same run; 0: it is the peer."""

    def as_json(self) -> dict[str, float | str]:
        return asdict(self)


def run_case(case: Case, server: Server, *, seconds: float, number: int) -> Row:
    """Load *server* once."""
    seen: list[Counters] = []
    arguments = [
        *case.arguments,
        *("-addr", f"127.0.0.1:{server.port}"),
        *("-secs", str(seconds)),
        *("-name", f"bench{number}"),
    ]

    def note() -> None:
        seen.append(server.counters())

    result = generator.run(arguments, before=note, after=note)
    messages = max(1, result["messages"])
    latency = result["latency_us"] or {"p50": 0.0, "p99": 0.0}
    commits = seen[1].commits - seen[0].commits
    return Row(
        case=case.name,
        server=server.name,
        durability=server.note,
        rate=result["rate"],
        p50_ms=latency["p50"] / 1000,
        p99_ms=latency["p99"] / 1000,
        cpu_us=(seen[1].cpu_s - seen[0].cpu_s) / messages * 1e6,
        per_sync=messages / commits if commits else 0.0,
        gen_cpu_pct=result["gen_cpu_pct"],
    )
