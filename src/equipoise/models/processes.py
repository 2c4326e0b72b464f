"""Several processes that train one model together under torchrun."""

from __future__ import annotations

import os
from datetime import timedelta

import torch

from equipoise.data.cores import processes_together


def world() -> tuple[int, int]:
    """How many processes train together, and which of them this is."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return 1, 0


def join_processes(device: torch.device) -> torch.device:
    """Under torchrun, join the other processes and return the device of this one. Does nothing for a single process."""
    if processes_together() == 1:
        return device
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not torch.distributed.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        torch.distributed.init_process_group(backend, timeout=timedelta(hours=6))  # the first evaluates, others wait
    return device


def leave_processes() -> None:
    """Leave together what `join_processes` joined: a process that only ends may crash in the threads of its group."""
    if world()[0] > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def first_says(answer: bool, device: torch.device) -> bool:
    """The first process's answer, for all of them."""
    if world()[0] == 1:
        return answer
    flag = torch.tensor(int(answer), device=device)
    torch.distributed.broadcast(flag, 0)
    return bool(flag)
