"""Real station readings of ``vega_datasets``, as the messages that the devices send."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pandas as pd
from vega_datasets import data

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


def _device(family: str, device: str, table: pd.DataFrame) -> list[Reading]:
    """
    Readings of *table* (columns: date, then one per metric) in event-time order, then the end
    mark two windows later, which closes every window before it.
    """
    rows: list[Reading] = []
    metrics = [name for name in table.columns if name != "date"]
    for index, row in enumerate(table.sort_values("date").itertuples(index=False)):
        time = row.date.to_pydatetime().replace(tzinfo=UTC)
        for metric in metrics:
            rows.append(
                Reading(
                    identifier=f"{device}-{metric}-{index}",
                    family=family,
                    device=device,
                    metric=metric,
                    value=float(getattr(row, metric)),
                    time=time,
                )
            )
    end = Reading(
        identifier=f"{device}-end",
        family=family,
        device=device,
        metric="end",
        value=0.0,
        time=rows[-1].time + 2 * WINDOWS[family],
    )
    return [*rows, end]


def all_readings() -> dict[str, list[Reading]]:
    """Device → its readings: two hourly stations of 2010, one daily station of 2012 to 2015."""
    weather = data.seattle_weather()[["date", "precipitation", "temp_max", "temp_min", "wind"]]
    return {
        "seattle": _device("hourly", "seattle", data.seattle_temps()[["date", "temp"]]),
        "sf": _device("hourly", "sf", data.sf_temps()[["date", "temp"]]),
        "seattle-weather": _device("daily", "seattle-weather", weather),
    }
