"""What every sampler here shares: epochs, ranks, and resuming in the middle of an epoch.

A sampler is a stream of indices, the same on every rank; rank r of R takes the draws r, r + R, r + 2R, ... An epoch is
a window of that stream. Since any draw can be computed from its position, a state is one number, and may be loaded
under another number of ranks.

Samplers are `DistributedSampler`s, which Lightning, Fabric and Ray do not shard again; accelerate shards anything it is
given, which is detected when it asks for the first index.
"""

from __future__ import annotations

import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import length_hint
from typing import Any

import torch.distributed as dist
from torch.utils.data import DistributedSampler

from equipoise.prior import Prior


@dataclass
class _Pass:
    """One iteration of a rank: where in the epoch it starts, and how far it has got."""

    start: int  # counted in draws of all ranks
    block: Iterator[int] = field(default_factory=lambda: iter(()))
    taken: int = 0
    claimed: bool = False  # set by an iterator: a loaded position is used up only then

    def given(self) -> int:
        # A list's iterator knows how much is left: exact progress without counting indices in Python.
        return self.taken - length_hint(self.block)


class ResumableSampler(DistributedSampler[int], ABC):
    """Abstract: a sampler defines how many draws its epoch has and gives them in blocks; the rest is here.

    It has the type and the attributes of `DistributedSampler`, but not its constructor: it needs no process group.
    """

    shuffle, drop_last = True, False

    def __init__(self, num_items: int, seed: int, num_replicas: int | None, rank: int | None) -> None:
        if isinstance(seed, bool) or int(seed) != seed or seed < 0:
            raise ValueError(f"seed is {seed}: expected a whole number, at least 0, the same on every rank")
        self.num_items = num_items
        self.seed = int(seed)
        self._ranks = (num_replicas, rank)
        _ranks(*self._ranks)  # wrong values are an error here
        self.epoch = 0
        self._pass = _Pass(0)
        self._looked = False

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """How many ranks share the stream: as given, else the size of the process group, even one created later."""
        return _ranks(*self._ranks)[0]

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Which of these ranks this is."""
        return _ranks(*self._ranks)[1]

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """How many indices all ranks together give in a whole epoch."""
        return len(self) * self.num_replicas

    @property
    @abstractmethod
    def draws(self) -> int:
        """Draws in the current epoch over all ranks, before the last ones are evened out."""

    @property
    @abstractmethod
    def prior(self) -> Prior:
        """The class prior of what is drawn in the current epoch: a balanced loss on top must be built from it."""

    @abstractmethod
    def _blocks(self, epoch: int, start: int, count: int) -> Iterator[list[int]]:
        """The `count` draws start + rank, start + rank + num_replicas, ... of `epoch`, in lists."""

    @abstractmethod
    def _advice(self, drawn: Prior) -> str:
        """One sentence on what `drawn` means for the user."""

    def __repr__(self) -> str:
        ranks = f", rank {self.rank} of {self.num_replicas}" if self.num_replicas > 1 else ""
        return f"{type(self).__name__}({self.num_items} items, {self.draws} draws per epoch, seed {self.seed}{ranks})"

    def __len__(self) -> int:
        """How many indices a rank gives in a whole epoch: the same on every rank."""
        return -(-self.draws // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        if self.num_replicas > 1 and not self._looked:
            self._looked = True
            _warn_if_sharded_again(self.num_replicas)
        if self._finished and self._pass.claimed:
            self.set_epoch(self.epoch + 1)
        self._pass = _Pass(self._pass.start, claimed=True)
        left = -(-max(self.draws - self._pass.start, 0) // self.num_replicas)
        return _indices(self._pass, self._blocks(self.epoch, self._pass.start, left))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. A loaded position is kept if it belongs to that epoch.

        An epoch that ran to its end is followed by the next one even without this call.
        """
        if epoch < 0 or int(epoch) != epoch:
            raise ValueError(f"epoch is {epoch}: expected a whole number, at least 0")
        if epoch != self.epoch or (self._finished and self._pass.claimed):
            self.epoch = int(epoch)
            self._pass = _Pass(0)

    def state_dict(self, consumed: int | None = None) -> dict[str, int]:
        """Where the stream stands: plain numbers, the same on every rank.

        `consumed` is the number of indices of the running iteration that your loop has used on this rank. Pass it with
        a `DataLoader` that has workers: the loader asks for indices ahead of the batches it returns, so the sampler has
        given out (the default) more than was trained on. torchdata's `StatefulDataLoader` keeps the state that belongs
        to each batch by itself.
        """
        given = self._pass.given()
        if consumed is None:
            consumed = given
        elif not 0 <= consumed <= given:
            raise ValueError(
                f"consumed is {consumed}, but this iteration has given out {given} indices: count the items (not the "
                "batches) that came from the loader since its iteration began"
            )
        position = self._pass.start + consumed * self.num_replicas
        where = {"epoch": self.epoch, "position": position, "seed": self.seed, "items": self.num_items}
        return where | {"draws": self.draws}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken: the next iteration gives the rest of that epoch."""
        missing = {"epoch", "position", "seed", "items"} - state.keys()
        if missing:
            raise ValueError(f"not the state of a sampler: {sorted(state)} lacks {sorted(missing)}")
        if state["items"] != self.num_items:
            raise ValueError(
                f"the state is for {state['items']} items, this sampler has {self.num_items}: build it from the same "
                "data"
            )
        before = self.epoch, self.seed
        self.epoch, self.seed = int(state["epoch"]), int(state["seed"])
        mine = self.draws  # draws of that epoch
        draws = state.get("draws", mine)
        if draws != mine or state["position"] < 0:
            self.epoch, self.seed = before
            raise ValueError(
                f"the state is at draw {state['position']} of {draws} per epoch, this sampler has {mine}: "
                "build it with the same num_samples and options"
            )
        self._pass = _Pass(int(state["position"]))

    def preview(self) -> Prior:
        """The prior of what will be drawn, with a warning of what it means.

        It warns that the sampler changes nothing or, if it does, that a balanced loss must not be built from the data's
        own prior. `sampler.prior` is the same without the warning: `BalancedSoftmaxLoss(sampler.prior)`.
        """
        drawn = self.prior
        warnings.warn(self._advice(drawn), stacklevel=2)
        return drawn

    @property
    def _finished(self) -> bool:
        return self._pass.start + self._pass.given() * self.num_replicas >= self.draws


def over_balance_advice(source: Prior, drawn: Prior) -> str:
    """Advice not to build a balanced loss from the prior of the data if the sampler changes that prior."""
    if drawn.imbalance >= source.imbalance:
        return (
            "the sampler draws the classes in other shares than they have in the data: build a balanced loss from "
            "sampler.prior, not from the prior of the data"
        )
    return (
        f"the sampler takes the class imbalance from {source.imbalance:.4g} to {drawn.imbalance:.4g}: a balanced loss "
        "built from the prior of the data would over-balance on top of it; build it from sampler.prior, or draw the "
        "items as they are"
    )


def _indices(progress: _Pass, blocks: Iterator[list[int]]) -> Iterator[int]:
    for block in blocks:
        progress.block = iter(block)
        progress.taken += len(block)
        yield from progress.block


def _warn_if_sharded_again(num_replicas: int) -> None:
    """Look up the stack for code that distributes a rank's indices among the ranks a second time."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        frame = frame.f_back
        owner = frame.f_locals.get("self")
        if isinstance(owner, ResumableSampler):
            continue
        again = isinstance(owner, DistributedSampler) and owner.num_replicas > 1  # Lightning's wrapper, forced
        again |= hasattr(owner, "batch_sampler") and getattr(owner, "num_processes", 1) > 1  # accelerate's
        if again or type(owner).__name__ == "DataLoaderDispatcher":
            warnings.warn(
                f"{type(owner).__name__} of {type(owner).__module__.split('.')[0]} splits what this rank draws among "
                f"{num_replicas} processes once more, so most draws are lost and classes are no longer drawn as often "
                "as asked for: build the sampler with num_replicas=1, rank=0, and leave the splitting to it",
                stacklevel=3,
            )
            return


def _ranks(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    group = dist.is_available() and dist.is_initialized()
    if num_replicas is None:
        num_replicas = dist.get_world_size() if group else 1
    if rank is None:
        if not group and num_replicas > 1:
            raise ValueError(
                f"num_replicas is {num_replicas}, but rank is not given and there is no process group to ask: "
                "give rank, or call torch.distributed.init_process_group first"
            )
        rank = dist.get_rank() if group else 0
    if num_replicas < 1 or not 0 <= rank < num_replicas:
        raise ValueError(f"rank is {rank} of num_replicas={num_replicas}: ranks run from 0 to num_replicas − 1")
    return num_replicas, rank
