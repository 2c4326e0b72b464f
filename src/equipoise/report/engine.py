"""What was measured of the CIFAR training engine on a GPU, in words and a table, from its record."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from equipoise.records import Record
from equipoise.report import markdown


def engine_notes(record: Mapping[str, Any]) -> str:
    """Whether the engine is right, and how fast it is."""
    pillow, graph, shared = (
        record[key] for key in ("augmentation_against_pillow", "graph_against_eager", "alone_against_shared")
    )
    alone = record["whole_run_alone"]
    checks = [
        f"Augmentation on the GPU against Pillow: {pillow['atoms_that_differ']} of {pillow['atoms']} atoms and "
        f"{pillow['draws_that_differ']} of {pillow['random_draws']:,} random draws differ.",
        f"{graph['steps']} graphed steps equal eager ones to the bit: {', '.join(graph['equal_to_the_bit'])}.",
        f"Same weights alone as with {shared['neighbours']} neighbours, {shared['cudnn']} cuDNN: "
        f"{', '.join(shared['same_weights'])}.",
        f"{alone['iterations']:,} iterations alone take {alone['seconds']} s ({alone['engine']}); "
        f"compiling costs about {record['compile_seconds_cold']} s when nothing is cached.",
    ]
    rows = [
        [engine, *(_images(speeds.get(runs)) for runs in ("1", "4"))]
        for engine, speeds in record["images_a_second"].items()
    ]
    speeds = markdown.table(["images a second", "1 run", "4 runs"], rows)
    machine = record["machine"]
    lines = "\n".join(f"- {check}" for check in checks)
    return f"{machine['gpu']}, torch {machine['torch']}, `{record['command']}`.\n\n{lines}\n\n{speeds}"


def _images(value: float | list[float] | None) -> str:
    """A number, a range, or a dash.

    >>> _images(67466), _images([119000, 121000]), _images(None)
    ('67,466', '119,000 to 121,000', '–')
    """
    if value is None:
        return "–"
    return " to ".join(f"{one:,}" for one in (value if isinstance(value, list) else [value]))


def speed_table(records: Iterable[Record]) -> str:
    """How fast whole runs were, start to evaluation, by engine and by how many shared the GPU."""
    alike: dict[tuple[str, str, int], list[float]] = {}
    for record in records:
        if record.recipe["backbone"] is None and record.engine.get("cuda_graph"):
            images = record.together * record.iterations * record.recipe["batch_size"] / record.seconds
            made = (record.hardware["device"], _kernels(record.engine), record.together)
            alike.setdefault(made, []).append(images)
    rows = [
        [device, kernels, str(together), str(len(speeds)), f"{statistics.median(speeds):,.0f}"]
        for (device, kernels, together), speeds in sorted(alike.items())
    ]
    header = ["device", "engine", "runs together", "records", "images a second, median"]
    return markdown.table(header, rows, left=2)


def _kernels(engine: Mapping[str, Any]) -> str:
    if engine.get("fused"):
        return "fused kernels, deterministic"
    chosen = "deterministic cuDNN" if engine.get("deterministic") else "cuDNN chosen by timing"
    return f"compiled, {chosen}" if engine.get("compiled") else chosen
