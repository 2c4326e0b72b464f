"""Training curves as a figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from equipoise.report.figures import save, standing_alone
from equipoise.training.image_records import ImageRecord


def draw_curves(records: Mapping[str, ImageRecord], path: Path) -> None:
    """The loss over the iterations, with one line per trained method."""
    rows = [
        {"method": name, "iteration": (place + 0.5) * record.iterations / len(record.loss_curve), "loss": value}
        for name, record in records.items()
        for place, value in enumerate(record.loss_curve)
    ]
    if not rows:
        return
    spec = {
        "mark": {"type": "line"},
        "height": 260,
        "autosize": {},
        "encoding": {
            "x": {"field": "iteration", "type": "quantitative"},
            "y": {"field": "loss", "type": "quantitative"},
            "color": {
                "field": "method",
                "type": "nominal",
                "title": None,
                "sort": list(records),
                "legend": {"columnPadding": 18},
            },
        },
    }
    save(standing_alone(spec, rows, title="Training loss"), path)
