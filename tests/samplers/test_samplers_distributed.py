"""Two processes and a gloo group: samplers find their rank by themselves, and the ranks share one stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.processes import in_two_processes
from torch.utils.data import DataLoader, TensorDataset

from equipoise.samplers.class_balanced import ClassBalancedSampler
from equipoise.samplers.repeat_factor import RepeatFactorSampler

LABELS = [0] * 50 + [1] * 20 + [3] * 8
IMAGES = [[0]] * 60 + [[0, 1]] * 3 + [[2]]
SAMPLERS = {
    "class-balanced": lambda: ClassBalancedSampler(LABELS, num_samples=75, seed=1),
    "square-root": lambda: ClassBalancedSampler(LABELS, num_samples=75, strength=0.5, seed=1),
    "multi-label": lambda: ClassBalancedSampler(classes_per_item=IMAGES, num_samples=75, seed=1),
    "repeat-factor": lambda: RepeatFactorSampler(IMAGES, threshold=0.3, seed=1),
}


def in_both_processes(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    result: dict[str, Any] = {}
    for name, build in SAMPLERS.items():
        sampler = build()
        sampler.set_epoch(2)
        data = TensorDataset(torch.arange(len(LABELS)))
        batches = [batch.tolist() for (batch,) in DataLoader(data, batch_size=5, sampler=sampler)]
        lengths = [torch.zeros((), dtype=torch.int64) for _ in range(2)]
        dist.all_gather(lengths, torch.tensor(len(sampler)))
        sampler.set_epoch(2)
        iterator = iter(sampler)
        for _ in range(11):
            next(iterator)
        states: list[Any] = [None, None]
        dist.all_gather_object(states, sampler.state_dict())
        resumed = build()
        resumed.load_state_dict(states[0])  # rank 0's state serves both
        result[name] = {
            "rank": (sampler.rank, sampler.num_replicas),
            "indices": [index for batch in batches for index in batch],
            "lengths": [int(length) for length in lengths],
            "states": states,
            "resumed": list(resumed),
            "preview": sampler.prior.to_json(),
        }
    torch.save(result, Path(folder) / f"{rank}.pt")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("gloo")
    in_two_processes(in_both_processes, str(folder))
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", SAMPLERS)
def test_two_processes_share_the_stream_of_one(results, name):
    first, second = (result[name] for result in results)
    assert (first["rank"], second["rank"]) == ((0, 2), (1, 2))
    assert first["lengths"] == second["lengths"] == [len(first["indices"])] * 2 == [len(second["indices"])] * 2
    single = SAMPLERS[name]()
    single.set_epoch(2)
    whole = list(single)
    together = [index for turn in zip(first["indices"], second["indices"], strict=True) for index in turn]
    assert len(together) - len(whole) in (0, 1)
    assert together[: len(whole)] == whole


@pytest.mark.parametrize("name", SAMPLERS)
def test_two_processes_have_one_state_and_resume_from_it(results, name):
    for result in results:
        assert result[name]["states"] == [result[name]["states"][0]] * 2
        assert result[name]["states"][0]["position"] == 22
        assert result[name]["resumed"] == result[name]["indices"][11:]


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_process_previews_the_whole_stream(results, name):
    single = SAMPLERS[name]()
    single.set_epoch(2)
    assert results[0][name]["preview"] == results[1][name]["preview"] == single.prior.to_json()
