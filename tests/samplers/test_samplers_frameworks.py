"""Two processes under Lightning, accelerate and timm: the stream is shared once, every class is drawn equally often."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

import equipoise as eq

ITEMS, CLASSES, BATCH = 640, 4, 16
LABELS = [0] * 480 + [1] * 120 + [2] * 32 + [3] * 8
DATA = TensorDataset(torch.tensor(LABELS))


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(DATA, batch_size=BATCH, sampler=eq.ClassBalancedSampler(LABELS, **options))


# -------------------------------------------------------------------- in each of two processes


def lightning_steps() -> dict[str, list[list[int]]]:
    import lightning

    seen: list[list[int]] = []

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch: Any, index: int) -> Any:
            seen.append(batch[0].tolist())
            return self.weight * 0.0

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "barebones": False}
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, enable_model_summary=False, **quiet
    )
    trainer.fit(Model(), loader())
    return {"once": seen}


def accelerate_steps() -> dict[str, list[list[int]]]:
    from accelerate import Accelerator

    whole, shared = Accelerator(cpu=True).prepare(loader(num_replicas=1, rank=0), loader())
    return {"once": [batch[0].tolist() for batch in whole], "twice": [batch[0].tolist() for batch in shared]}


def timm_steps() -> dict[str, list[list[int]]]:
    from timm.data import create_loader

    from equipoise.integrations.timm import balanced

    labelled = TensorDataset(torch.zeros(ITEMS), torch.tensor(LABELS))
    options = {"is_training": True, "use_prefetcher": False, "num_workers": 0, "distributed": True}
    drawn = balanced(create_loader(labelled, (3, 8, 8), BATCH, **options))
    drawn.sampler.set_epoch(0)  # as timm's script does
    return {"once": [target.tolist() for _, target in drawn]}


def work(name: str, rank: int, folder: str) -> None:
    """The steps of this process, and what it was warned of, as JSON."""
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank)})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        steps = STEPS[name]()
    ours = [str(w.message) for w in caught if "once more" in str(w.message)]
    Path(folder, f"{rank}.json").write_text(json.dumps({**steps, "warnings": ours}))
    dist.destroy_process_group()


def fork(name: str, folder: str) -> None:
    importlib.import_module(name)  # slow, so once for both
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(name, rank, folder)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in processes))


STEPS = {"lightning": lightning_steps, "accelerate": accelerate_steps, "timm": timm_steps}


def in_two_processes(name: str, folder: Path) -> list[dict[str, Any]]:
    code = f"from tests.samplers.test_samplers_frameworks import fork; fork({name!r}, {str(folder)!r})"
    env = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "ACCELERATE_USE_CPU": "true"}  # read, not connected to
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | env | {"OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def drawn(results: list[dict[str, Any]]) -> Counter[int]:
    return Counter(label for result in results for step in result["once"] for label in step)


# -------------------------------------------------------------------- the claims


def test_lightning_leaves_the_sharing_to_the_sampler(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    results = in_two_processes("lightning", tmp_path)
    assert [len(result["once"]) for result in results] == [ITEMS // BATCH // 2] * 2
    assert drawn(results) == dict.fromkeys(range(CLASSES), ITEMS // CLASSES)
    assert [result["warnings"] for result in results] == [[], []]


def test_accelerate_shares_the_stream_of_a_sampler_for_one_process_and_warns_of_any_other(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    results = in_two_processes("accelerate", tmp_path)
    assert [len(result["once"]) for result in results] == [ITEMS // BATCH // 2] * 2
    assert drawn(results) == dict.fromkeys(range(CLASSES), ITEMS // CLASSES)
    assert [len(result["twice"]) for result in results] == [ITEMS // BATCH // 4] * 2  # half the steps, and a warning
    for result in results:
        (warning,) = result["warnings"]
        assert warning.startswith("BatchSamplerShard of accelerate splits what this rank draws among 2 processes")
        assert "num_replicas=1, rank=0" in warning


@pytest.mark.filterwarnings("ignore")  # of timm's imports
def test_the_draws_of_a_timm_loader_are_shared_once(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    results = in_two_processes("timm", tmp_path)
    assert [len(result["once"]) for result in results] == [ITEMS // BATCH // 2] * 2
    assert drawn(results) == dict.fromkeys(range(CLASSES), ITEMS // CLASSES)


# -------------------------------------------------------------------- without the frameworks


@pytest.mark.parametrize(
    "build",
    [
        lambda **o: eq.ClassBalancedSampler(LABELS, **o),
        lambda **o: eq.RepeatFactorSampler([[label] for label in LABELS], threshold=0.1, **o),
    ],
)
def test_samplers_are_distributed_samplers(build: Any) -> None:
    for options in ({}, {"num_replicas": 2, "rank": 1}):
        sampler = build(**options)
        assert isinstance(sampler, DistributedSampler)
        assert (sampler.num_replicas, sampler.rank) == (options.get("num_replicas", 1), options.get("rank", 0))
        assert sampler.total_size == len(sampler) * sampler.num_replicas == sampler.num_replicas * len(list(sampler))
        assert sampler.shuffle
        assert not sampler.drop_last


class Shard(BatchSampler):
    """What wraps a batch sampler to share it out among processes, as accelerate does."""

    def __init__(self, batch_sampler: BatchSampler, num_processes: int) -> None:
        self.batch_sampler, self.num_processes = batch_sampler, num_processes

    def __iter__(self) -> Any:
        yield from self.batch_sampler

    def __len__(self) -> int:
        return len(self.batch_sampler)


def test_only_a_second_sharding_is_warned_of_and_only_once() -> None:
    def batches(num_replicas: int, num_processes: int) -> Shard:
        sampler = eq.ClassBalancedSampler(LABELS, num_replicas=num_replicas, rank=0)
        return Shard(BatchSampler(sampler, BATCH, drop_last=False), num_processes)

    for fine in (batches(1, 2), batches(2, 1)):  # warnings are errors here
        list(DataLoader(DATA, batch_sampler=fine))
    twice = DataLoader(DATA, batch_sampler=batches(2, 2))
    with pytest.warns(UserWarning, match="Shard of .* among 2 processes once more"):
        list(twice)
    list(twice)
