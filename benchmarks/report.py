"""`equipoise report` on a million predictions of LVIS's 1,203 classes: wall time, CPU time and peak memory.

    python benchmarks/report.py                          1,000,000 rows, from .npz and from .parquet (5 GB on disk each)
    python benchmarks/report.py --rows 20000             the same in seconds
    python benchmarks/report.py --out FILE.json          write the measurements
    python benchmarks/report.py --table FILE.json        print the table of such a file

The command runs in a process of its own; its peak memory is what the operating system counted. Files are written to a
temporary folder and deleted. Two threads at most.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

CHUNK = 10_000
LIMITS = {"seconds": 180, "memory_gb": 2.0, "page_mb": 3.0}


def counts_of(classes: int) -> np.ndarray[Any, Any]:
    """A long tail with imbalance 2,000."""
    return np.maximum(20_000 * 2000.0 ** (-np.arange(classes) / (classes - 1)), 1).astype(np.int64)


def chunks(rows: int, classes: int) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Logits of a plain loss, fp32, and their labels; the same for every kind of file."""
    random = np.random.default_rng(0)
    log_prior = np.log(counts_of(classes) / counts_of(classes).sum()).astype(np.float32)
    for first in range(0, rows, CHUNK):
        size = min(CHUNK, rows - first)
        labels = random.integers(0, classes, size)
        logits = random.standard_normal((size, classes), dtype=np.float32) + log_prior
        logits[np.arange(size), labels] += 5
        yield logits, labels


def write_npz(path: Path, rows: int, classes: int) -> None:
    labels = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("logits.npy", "w", force_zip64=True) as member:
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows, classes)}
            np.lib.format.write_array_header_1_0(member, header)  # type: ignore[arg-type]
            for logits, some in chunks(rows, classes):
                member.write(logits.tobytes())
                labels.append(some)
        with archive.open("labels.npy", "w") as member:
            np.lib.format.write_array(member, np.concatenate(labels))


def write_parquet(path: Path, rows: int, classes: int) -> None:
    import pyarrow
    import pyarrow.parquet

    names = ["label", *(f"class {j}" for j in range(classes))]
    schema = pyarrow.schema([(names[0], pyarrow.int64()), *((name, pyarrow.float32()) for name in names[1:])])
    with pyarrow.parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for logits, labels in chunks(rows, classes):
            columns = [labels, *np.ascontiguousarray(logits.T)]
            writer.write_table(pyarrow.table(dict(zip(names, columns, strict=True)), schema))


def measure(path: Path, counts: Path) -> dict[str, float]:
    """Run the command once; seconds, CPU seconds and the peak of resident memory."""
    out = path.with_suffix(".html")
    command = [sys.executable, "-m", "equipoise", "report", str(path), "--counts", str(counts), "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "2", "ARROW_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    start = time.perf_counter()
    process = subprocess.Popen(command, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed with status {status}")
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "memory_gb": usage.ru_maxrss * 1024 / 1e9,
        "page_mb": out.stat().st_size / 1e6,
        "file_gb": path.stat().st_size / 1e9,
    }


def table(path: Path) -> str:
    """The measurements as Markdown."""
    found = json.loads(path.read_text())
    lines = ["| file | its size | wall time | CPU time | peak memory | page |", "|:---|---:|---:|---:|---:|---:|"]
    for kind, row in found["runs"].items():
        lines.append(
            f"| {kind} | {row['file_gb']:.1f} GB | {row['seconds']:.0f} s | {row['cpu_seconds']:.0f} s | "
            f"{row['memory_gb']:.2f} GB | {row['page_mb']:.2f} MB |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=1203)
    parser.add_argument("--kinds", nargs="+", default=["npz", "parquet"], choices=["npz", "parquet"])
    parser.add_argument("--out", type=Path, help="write the measurements as JSON")
    parser.add_argument("--table", type=Path, help="print the table of such a file")
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return
    runs = {}
    for kind in options.kinds:
        with tempfile.TemporaryDirectory() as folder:
            path, counts = Path(folder) / f"predictions.{kind}", Path(folder) / "counts.json"
            counts.write_text(json.dumps(counts_of(options.classes).tolist()))
            {"npz": write_npz, "parquet": write_parquet}[kind](path, options.rows, options.classes)
            runs[f".{kind}"] = measure(path, counts)
        print(kind, {key: round(value, 2) for key, value in runs[f".{kind}"].items()})
    over = [f"{kind}: {key}" for kind, row in runs.items() for key, most in LIMITS.items() if row[key] > most]
    if over:
        print("over the limit:", ", ".join(over))
    if options.out:
        machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "threads": 2}
        size = {"rows": options.rows, "classes": options.classes}
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        content = {"machine": machine | versions, **size, "limits": LIMITS, "runs": runs}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
