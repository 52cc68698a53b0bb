"""What a station sends: one reading, as an object and as the message that it becomes."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta

WINDOWS = {"hourly": timedelta(days=1), "daily": timedelta(days=7)}
"""Family of readings → length of its event-time windows."""

ALARM_AT = {"temp": 72.0, "wind": 7.5}
"""A reading at or above this also raises an alarm: 72 °F, 7.5 m/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading of one device; ``identifier`` is unique and survives a repeat."""

    identifier: str
    family: str
    device: str
    metric: str
    value: float
    time: datetime

    @property
    def subject(self) -> str:
        """MQTT topic; its first level is the RocketMQ topic."""
        return f"{self.family}/{self.device}/{self.metric}"

    @property
    def body(self) -> bytes:
        fields = {
            "id": self.identifier,
            "device": self.device,
            "metric": self.metric,
            "value": self.value,
            "time": self.time.isoformat(),
        }
        return json.dumps(fields).encode()

    @property
    def is_alarm(self) -> bool:
        return not self.is_end_mark and self.value >= ALARM_AT.get(self.metric, float("inf"))

    @property
    def is_end_mark(self) -> bool:
        return self.metric == "end"
