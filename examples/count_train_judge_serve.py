"""The prior from counting labels to serving a model, in one plain script: long-tailed digits, a minute on a CPU.

    python examples/count_train_judge_serve.py     writes model.safetensors, model.onnx and report.html into demo/

Your own data goes in at `load_digits_lt`; everything after it stays. Needs the extras cli, report and serve.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import equipoise as eq
from equipoise.data.digits import load_digits_lt
from equipoise.experiments.demo import digits_cnn

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for what it writes")
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)

# ---- count
data = load_digits_lt(imbalance=50)
prior = eq.Prior.from_labels(data.train_labels, class_names=[str(digit) for digit in range(10)])
print(prior)

# ---- train: the same loop twice, one line apart


def trained(loss_function: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    model = digits_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for _ in range(options.steps):
        batch = torch.randint(len(data.train_labels), (64,))
        loss = loss_function(model(data.train_images[batch]), data.train_labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


plain = trained(nn.CrossEntropyLoss())
balanced = trained(eq.BalancedSoftmaxLoss(prior))

# ---- judge: the logits of the first mean the training prior, those of the second equal classes
with torch.no_grad():
    judged = {
        "Softmax": eq.judge(plain(data.test_images), data.test_labels, prior, logits_mean="train"),
        "Balanced Softmax": eq.judge(balanced(data.test_images), data.test_labels, prior, logits_mean="uniform"),
    }
for name, result in judged.items():
    print(f"\n{name}\n{result.evaluation}")
eq.Report(judged, title="Long-tailed digits").save(options.out / "report.html")

# ---- serve: a world in which half of all digits are sevens, which nobody knew when the model was trained
odds = [0.5 if digit == 7 else 0.5 / 9 for digit in range(10)]
world = eq.Prior.from_probabilities(odds, class_names=prior.class_names)
served = eq.Rebalanced(balanced, target=world)
served.save(options.out / "model.safetensors")
eq.export_onnx(served, data.test_images[:1], options.out / "model.onnx", probabilities=True)
print(f"\nserved for {served.target}; target and class names are in {options.out / 'model.safetensors'}")
