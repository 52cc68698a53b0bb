"""Real station readings of ``vega_datasets``, in the order in which the devices send them."""

from datetime import UTC

import pandas as pd
from vega_datasets import data

from tests.demo.readings import WINDOWS, Reading


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
