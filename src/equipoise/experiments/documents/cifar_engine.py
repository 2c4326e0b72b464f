"""Measurements of the CIFAR training engine on a GPU, in words and a table, from their record."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from equipoise.report.tables import Table, grouped
from equipoise.training.records import Record

UNNAMED = "697137061e55b7b13f1a11fcc1b7255258cbd50c"  # commit of runs with version 2 whose records do not name it


def engine_notes(record: Mapping[str, Any]) -> str:
    """Whether the engine is right, and how fast, if it was timed: from what benchmarks/cifar_throughput.py wrote."""
    pillow, machine = record["augmentation_against_pillow"], record["machine"]
    lines = [
        f"- Augmentation on the GPU against Pillow: {pillow['atoms_that_differ']} of {pillow['atoms']} atoms and "
        f"{pillow['draws_that_differ']} of {pillow['random_draws']:,} random draws differ."
    ]
    for kernels, same in record["alone_against_shared"].items():
        kept = ", ".join(name for name, equal in same.items() if equal) or "none"
        lines.append(f"- Same weights alone as with three other runs, {kernels}: {kept}.")
    rows = [
        [
            kernels,
            recipe,
            "yes" if found["same_weights"] else "no",
            *(f"{100 * found[key]:.2f} %" for key in ("worst_relative_loss", "from_fp32", "eager_from_fp32")),
        ]
        for kernels, recipes in record["graph_against_eager"].items()
        for recipe, found in recipes.items()
    ]
    header = [
        "20 graphed steps",
        "loss",
        "same weights as eager",
        "loss against eager",
        "against fp32",
        "eager against fp32",
    ]
    parts = [f"{machine['device']}, torch {machine['torch']}.", "\n".join(lines), str(Table(header, rows, left=2))]
    if speeds := record.get("images_a_second"):
        slowest = min(speeds.values())
        timed = [[label, f"{value:,.0f}", f"{value / slowest:,.1f}×"] for label, value in speeds.items()]
        parts.append(str(Table(["", "images per second", "relative to the slowest"], timed)))
    return "\n\n".join(parts)


def speed_table(records: Iterable[Record]) -> str:
    """How fast whole runs were, start to evaluation, by engine and by how many shared the GPU."""
    timed = [one for one in records if one.recipe["backbone"] is None and one.engine.get("cuda_graph")]
    alike = grouped(timed, lambda one: (one.hardware["device"], _kernels(one), one.together))
    rows = []
    for (device, kernels, together), runs in sorted(alike.items()):
        speeds = [together * run.iterations * run.recipe["batch_size"] / run.seconds for run in runs]
        rows.append([device, kernels, str(together), str(len(runs)), f"{statistics.median(speeds):,.0f}"])
    header = ["device", "engine", "runs together", "records", "images per second, median"]
    return str(Table(header, rows, left=2))


def kernel_table(record: Mapping[str, Any]) -> str:
    """Times of single kernels beside cuDNN's, from what benchmarks/cifar_kernels.py wrote."""
    rows = [
        [str(one["channels"]), one["kernel"], *(f"{one[key]:.1f}" for key in ("fused_us", "cudnn_us"))]
        for one in record["layers"]
    ]
    machine = record["machine"]
    table = Table(["channels", "kernel", "ours, µs", "cuDNN, µs"], rows, left=2)
    return f"{machine['gpu']}, torch {machine['torch']}, batch {machine['batch']}.\n\n{table}"


def fused_kernels(record: Record) -> str:
    """The fused kernels that a run was trained with; nothing if it was trained with torch's."""
    version = int(record.engine.get("fused", 0))
    if version and record.commit == UNNAMED:
        version = 2
    return {0: "", 1: "fused kernels"}.get(version, f"fused kernels, version {version}")


def _kernels(record: Record) -> str:
    engine = record.engine
    if fused := fused_kernels(record):
        return f"{fused}, deterministic"
    chosen = "deterministic cuDNN" if engine.get("deterministic") else "cuDNN chosen by timing"
    return f"compiled, {chosen}" if engine.get("compiled") else chosen
