"""Two processes that work together, as torchrun starts them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def in_two_processes(work: Callable[..., None], *args: Any) -> None:
    """Call `work(rank, *args)` in two processes, with the environment for a group of both, which it must set up."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_one_of_two, (port, work, *args), nprocs=2)  # type: ignore[attr-defined,no-untyped-call]


def _one_of_two(rank: int, port: int, work: Callable[..., None], *args: Any) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    work(rank, *args)
    dist.barrier()  # neither may end while the other still needs it
    dist.destroy_process_group()
    # Threads of the group may outlive it, and abort a process whose Python shuts down: so do not shut down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
