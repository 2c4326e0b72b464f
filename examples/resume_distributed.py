"""Class-balanced sampling over several processes, stopped in the middle of an epoch and resumed to the same batches.

    torchrun --nproc-per-node 2 examples/resume_distributed.py --stop-after 7
    torchrun --nproc-per-node 2 examples/resume_distributed.py        goes on at batch 7, and ends as if never stopped

One process works too: python examples/resume_distributed.py. Needs scikit-learn (extra cli).
"""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.data.digits import load_digits_lt

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--stop-after", type=int, help="stop after so many batches, as a killed job would")
parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/digits.pt"))
options = parser.parse_args()
options.checkpoint.parent.mkdir(parents=True, exist_ok=True)

if "RANK" in os.environ:  # under torchrun
    dist.init_process_group("gloo")
first = not dist.is_initialized() or dist.get_rank() == 0

data = load_digits_lt()
torch.manual_seed(0)
model: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
model = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

# The sampler finds the ranks by itself, as torch's DistributedSampler does. What it draws is balanced, so the loss is
# told the prior of what is drawn; with that of the data it would balance twice.
sampler = eq.ClassBalancedSampler(data.train_labels)
loss_function = eq.BalancedSoftmaxLoss(sampler.prior)
loader = DataLoader(TensorDataset(data.train_images, data.train_labels), batch_size=32, sampler=sampler)

if options.checkpoint.exists():
    state = torch.load(options.checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    sampler.load_state_dict(state["sampler"])
    if first:
        print(f"resumed in epoch {sampler.epoch}")

batches = 0
for epoch in range(sampler.epoch, options.epochs):
    sampler.set_epoch(epoch)  # keeps a position that was loaded
    consumed = 0
    for images, labels in loader:
        loss = loss_function(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batches, consumed = batches + 1, consumed + len(labels)
        if first:  # `consumed`: what this process has trained on, whatever a loader with workers has asked for ahead
            parts = {"model": model, "optimizer": optimizer}
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save(state | {"sampler": sampler.state_dict(consumed)}, options.checkpoint)
        if batches == options.stop_after:
            sys.exit()

if first:
    with torch.no_grad():
        print(eq.evaluate(model.eval()(data.test_images), data.test_labels, data.prior))
    options.checkpoint.unlink()
if dist.is_initialized():
    dist.destroy_process_group()
