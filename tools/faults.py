"""Break the library on purpose, one fault at a time, and see that the tests catch each.

    python tools/faults.py            all faults: about half an hour on two cores
    python tools/faults.py focal      those whose file or text contains "focal"

A fault is one edit that a person could really make. It is applied to a copy of the source; the tests that should notice
run against the copy. The script fails if any fault goes unnoticed, or if the tests fail without one.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOSSES = "test_loss_contract.py test_losses.py test_theory.py test_properties.py"
SLOW = (
    "test_losses.py::test_inductor_compiles_the_balanced_losses_whole",
    "test_counting.py::test_a_large_annotation_file_takes_little_more_than_its_json",
    "test_huggingface.py::test_two_processes_give_the_weights_of_one",
    "test_lightning.py::test_two_processes_log_the_scores_of_all_items",
    "test_dense.py::test_monai_and_smp_give_the_same_numbers",
)
PRIOR = "test_prior.py test_theory.py test_counting.py"
FUSED = "test_resnet_cifar_fused.py"
KERNELS = "test_loss_kernels.py"


@dataclass(frozen=True)
class Fault:
    """In `file`, `old` (which occurs once) becomes `new`; one of `tests` must fail."""

    file: str
    old: str
    new: str
    tests: str


# fmt: off
FAULTS = [
    # the prior and its shifts
    Fault("prior.py", "np.log(self.without_zeros() * self.num_classes", "np.log(self._weights * self.num_classes", PRIOR),
    Fault("prior.py", "tau * from_source - from_target", "from_source - tau * from_target", "test_adjust.py"),
    Fault("prior.py", "tau * from_source - from_target", "tau * from_source + from_target", "test_adjust.py"),
    Fault("prior.py", "np.log(np.maximum(self.total - self.counts, 1))", "np.log(self.total)", PRIOR),
    Fault("prior.py", "from_logit - to_logit)", "from_logit + to_logit)", PRIOR),
    Fault("arrays.py", "np.abs(shift) < 1e-12, 0.0, shift", "np.abs(shift) < 0, 0.0, shift", PRIOR),
    Fault("arrays.py", "return [values.get(name, 0) for name in names]", "return list(values.values())", PRIOR),
    Fault("arrays.py", "if unknown is not None:", "if False:", PRIOR),
    Fault("arrays.py", "dtype=np.float32))", "dtype=np.float16)).float()", PRIOR),
    Fault("prior.py", '"many": counts > many', '"many": counts >= many', PRIOR),
    Fault("prior.py", '"few": counts < few', '"few": counts <= few', PRIOR),
    Fault("prior.py", " for name, mask in masks.items() if mask.any()}", " for name, mask in masks.items()}", PRIOR),
    Fault("prior.py", "array.flags.writeable = False", "pass", PRIOR),
    Fault("prior.py", "occurring = self._weights[self._weights > 0]", "occurring = self._weights + 1", PRIOR),
    Fault("prior.py", "self.total + other.total", "self.total", PRIOR),
    Fault("prior.py", "target._centred_log(ruled_out=-np.inf)", "target._centred_log()", "test_adjust.py"),
    Fault("prior.py", "least = 1 if self.counted else weights[weights > 0].min()", "least = 1e-30", "test_adjust.py test_prior.py"),
    Fault("arrays.py", "        columns[int(key)] = value\n", "        columns[list(values).index(key)] = value\n", PRIOR),
    Fault("arrays.py", "    if max(keys) >= MOST_CLASSES:", "    if max(keys) >= 10**10:", PRIOR),
    Fault("arrays.py", "wrong = [value for value in ids if not is_whole(value)]", "wrong = []", PRIOR),
    Fault("arrays.py", "bad = (counts < 0) | (counts > 2**62)", "bad = counts > 2**62", PRIOR),
    Fault("arrays.py", "| (counts != np.floor(counts))", "", PRIOR),
    Fault("prior.py", "mean = float(self._counts.sum()) / self.num_classes", "mean = self.total / 2", PRIOR),
    Fault("compiling.py", "    if torch.compiler.is_dynamo_compiling():", "    if False:", "test_losses.py"),
    # the public names
    Fault("__init__.py", "value = globals()[name] = getattr", "value = getattr", "test_package.py"),
    Fault("__init__.py", "return sorted({*globals(), *_HOMES})", "return sorted(globals())", "test_package.py"),
    Fault("__init__.py", ' if home != "equipoise.integrations")', ")", "test_package.py"),
    Fault("losses/weights.py", "1 / prior.without_zeros()", "1 / prior._centred_log()", "test_layers.py"),
    Fault("__init__.pyi", "import LDAMLoss as LDAMLoss", "import LDAMLoss", "test_package.py"),
    Fault("prior.py", "if TYPE_CHECKING:\n    from torch import Tensor", "from torch import Tensor", "test_package.py"),
    # serving
    Fault("serving/rebalanced.py", "- along(self.shift, logits", "+ along(self.shift, logits", "test_serving.py"),
    Fault("serving/rebalanced.py", "persistent=False)\n        self._use(correction, shift)", "persistent=False)\n        self._correction = correction", "test_serving.py"),
    Fault("serving/rebalanced.py", "self.shift.copy_(shift)", "pass", "test_serving.py"),
    Fault("serving/rebalanced.py", "if not is_traced() and self._values_to_see > 0:", "if self._values_to_see > 0 and not is_traced():", "test_serving.py"),
    Fault("serving/rebalanced.py", "self._values_to_see -= logits.numel()", "self._values_to_see = 0", "test_serving.py"),
    Fault("serving/correction.py", "if ours is None or theirs is None or tuple(ours) == tuple(theirs):", "if ours is None or theirs is None or set(ours) == set(theirs):", "test_serving.py"),
    Fault("serving/rebalanced.py", "target=wanted)\n", "target=wanted, tau=1.0)\n", "test_serving.py"),
    Fault("serving/rebalanced.py", "save_model(_plain(self.model), os", "save_model(self.model, os", "test_serving.py"),
    Fault("serving/rebalanced.py", "not self.shift.is_inference()", "True", "test_serving.py"),
    Fault("serving/export.py", "nn.Parameter(bias - whole.shift", "nn.Parameter(bias + whole.shift", "test_export.py"),
    Fault("serving/export.py", " or len(parameter.users) > 1", "", "test_export.py"),
    Fault("serving/export.py", " or _is_shared(served.model, name)", "", "test_export.py"),
    Fault("serving/export.py", "    if served.scale != 1 or", "    if", "test_export.py"),
    Fault("serving/export.py", "    onnx.model.metadata_props.update({**(metadata or {}), **served.metadata})\n", "", "test_export.py"),
    Fault("serving/export.py", "    _name_batch(onnx)\n", "", "test_export.py"),
    Fault("serving/export.py", "torch.cat([value, value]) if", "value if", "test_export.py"),
    Fault("serving/export.py", "        onnx.save(whole)\n", "        onnx.save(path)\n        onnx.save(whole)\n", "test_export.py"),
    Fault("serving/export.py", "weights.replace(beside)", "pass", "test_export.py"),
    Fault("serving/rebalanced.py", "save_model(_plain(self.model), os.fspath(scratch)", "save_model(_plain(self.model), os.fspath(path)", "test_serving.py"),
    # samplers, heads of many classes
    Fault("samplers/resumable.py", 'if draws != mine or state["position"] < 0:', "if False:", "test_class_balanced_sampler.py"),
    Fault("samplers/class_balanced.py", "        counts = np.rint(rates * draws * epochs)\n", "", "test_class_balanced_sampler.py"),
    Fault("losses/linear_cross_entropy.py", "weight = weight.float() if half else weight.to(dtype)", "weight = weight.to(dtype)", "test_linear_cross_entropy.py"),
    # counting
    Fault("data/counting.py", "high >= num_classes", "high > num_classes", PRIOR),
    Fault("data/counting.py", "counts[: len(found)] += found", "pass", PRIOR),
    Fault("data/counting.py", "part = part[part != ignore_index]", "pass", PRIOR),
    Fault("data/counting.py", "return Labels(found.labels[index], found.class_names)", "return found", PRIOR),
    Fault("data/counting.py", "if transform is None or values.ndim != 1 or values.size == 0:", "if True:", PRIOR),
    Fault("data/counting.py", "return _read_items(whole, label, index)", "return Labels(_read_items(whole, label).labels[index])", PRIOR),
    Fault("data/coco.py", "np.unique(images * num_classes + columns) % num_classes", "columns", PRIOR),
    Fault("data/coco.py", "        total = len(np.unique(images))\n", "", PRIOR),
    Fault("data/coco.py", "return dict(sorted(named.items()))", "return named", PRIOR),
    Fault("data/coco.py", "\"no area\" if empty or flat else \"\"", "\"no area\" if empty else \"\"", "test_coco_images.py"),
    Fault("data/coco.py", "for one in instances(content, path) if not one.left_out]", "for one in instances(content, path)]", "test_coco_images.py"),
    Fault("data/coco.py", "(images and of_image not in number)", "False", "test_damaged_inputs.py"),
    Fault("data/coco.py", "if type(of_class) is not int or", "if", "test_damaged_inputs.py"),
    Fault("data/plain_pickle.py", 'case _Made("dtype"), ("u1" | "|u1", *_):', 'case _Made("dtype"), _:', "test_plain_pickle.py"),
    Fault("data/plain_pickle.py", "if math.prod(shape) != len(data):", "if False:", "test_plain_pickle.py"),
    Fault("data/plain_pickle.py", "if len(shape) > 4 or not all(", "if not all(", "test_plain_pickle.py"),
    Fault("data/reading.py", "if size > MOST_HEADER:", "if False:", "test_predictions.py"),
    Fault("cli/__init__.py", "raise typer.BadParameter(visible(error.message),", "raise typer.BadParameter(error.message,", "test_damaged_inputs.py"),
    Fault("prior.py", "counts = {int(key): number for key, number in counts.items()}", "pass", "test_predictions.py"),
    Fault("data/plain_pickle.py", "not isinstance(stack[-1], dict) or not all(isinstance(key, str) for key in keys)", "not isinstance(stack[-1], dict)", "test_plain_pickle.py"),
    Fault("data/plain_pickle.py", "        if named not in FUNCTIONS:\n", "        if False:\n", "test_plain_pickle.py"),
    Fault("data/masks.py", "    if place.max() > MOST_BITS:", "    if False:", "test_coco_images.py"),
    Fault("data/masks.py", "((lengths < 0) | (lengths > height * width)).any() or ", "", "test_coco_images.py"),
    Fault("data/masks.py", 'found.dtype.kind not in "iu" or ', "", "test_coco_images.py"),
    Fault("data/masks.py", "if not 0 < height * width <= MOST_PIXELS:", "if False:", "test_coco_images.py"),
    Fault("data/reading.py", "    if len(made) < len(pairs):\n", "    if False:\n", "test_inspect.py"),
    Fault("data/reading.py", ", strict=True)", ")", "test_inspect.py"),
    Fault("data/reading.py", 'in ("Zs", "Co", "Cn")', 'in ("Zs", "Co", "Cn", "Cf")', "test_inspect.py"),
    Fault("data/reading.py", "except (ValueError, RecursionError) as error:", "except ValueError as error:", "test_counting.py"),
    Fault("data/class_folders.py", "if path not in seen and not seen.add(path)]", "]", "test_inspect.py"),
    Fault("data/class_folders.py", "found = {name: _images(path, name, set(real)) for", "found = {name: _images(path, name, set()) for", "test_inspect.py"),
    Fault("data/class_folders.py", ' and not name.startswith(".")', "", "test_images.py"),
    Fault("data/class_folders.py", "for name, files in found.items() if files}", "for name, files in found.items()}", "test_inspect.py test_images.py"),
    Fault("data/class_folders.py", "if _is_image(entry.name) and entry.is_file()", "if entry.is_file()", "test_images.py"),
    Fault("cli/training.py", "np.flatnonzero(data.test.prior.counts == 0)", "np.flatnonzero(data.train.prior.counts == 0)", "test_train.py"),
    Fault("cli/trained.py", "rows = headline_rows((name, [*found.values()])", "rows = headline_rows((name, [*found.values()][:1] * 5)", "test_train.py"),
    Fault("cli/image_sources.py", "all_classes=images is data.train", "all_classes=True", "test_train.py"),
    Fault("cli/shared.py", 'TimeElapsedColumn(), TextColumn("elapsed"))', "TimeElapsedColumn())", "test_table1.py"),
    Fault("cli/inspect.py", "for note in found.notes:", "for note in ():", "test_inspect.py"),
    Fault("data/image_files.py", "6: 4, 7: 6, 8: 2}", "6: 2, 7: 6, 8: 4}", "test_images_decoded.py"),
    Fault("data/image_files.py", "(np.array(image) >> 8)", "np.array(image)", "test_images_decoded.py"),
    Fault("data/image_files.py", "scale = at_least / min(opened.size)", "scale = at_least / max(opened.size)", "test_images_decoded.py"),
    Fault("data/image_files.py", "cancel_futures=True", "cancel_futures=False", "test_images_decoded.py"),
    Fault("data/images.py", "        elif made.labels[before] != made.labels[index]:", "        elif False:", "test_images.py"),
    Fault("data/images.py", "        if all(map(is_whole, names)):", "        if False:", "test_images.py"),
    Fault("data/images.py", ".astype(np.int64), sizes - 1)", ".astype(np.int64), sizes)", "test_images.py"),
    Fault("data/image_lists.py", " or os.path.splitext(parts[1])[1].lower() in IMAGES:", ":", "test_images.py"),
    Fault("data/image_tables.py", "                tables[-1].validate(full=True)", "                pass", "test_images.py"),
    Fault("data/image_tables.py", "found[row - first]", "found[row]", "test_images.py"),
    Fault("data/sources.py", "    if max(index) >= MOST_CLASSES:", "    if max(index) >= 10**9:", "test_inspect.py"),
    Fault("data/sources.py", "    if all(map(is_number, first)):", "    if False:", "test_inspect.py"),
    Fault("data/sources.py", 'numbers.dtype.kind == "f" and abs(numbers.sum() - 1) <= 1e-4', 'numbers.dtype.kind == "f"', "test_inspect.py"),
    Fault("data/longtail.py", "        random.shuffle(index)\n", "", "test_longtail.py"),
    Fault("data/cifar.py", "random = np.random.default_rng(draw)", "random = np.random.default_rng(0)", "test_cifar_data.py"),
    Fault("data/cifar.py", "random.permutation(superset[cifar.train_labels[superset] == label])", "random.permutation(np.flatnonzero(cifar.train_labels == label))", "test_cifar_data.py"),
    Fault("training/classification_runs.py", "imbalance, draw=source_of(data_set)[1])", "imbalance)", "test_table1.py"),
    Fault("experiments/table1/causes.py", "* (images // 512)", "* -(-images // 512)", "test_table1.py"),
    Fault("data/longtail.py", "ratio ** (j / max(num_classes - 1, 1))", "ratio ** (j / num_classes)", "test_longtail.py"),
    # what the losses share
    Fault("losses/shared.py", "logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits", "logits", LOSSES),
    Fault("losses/shared.py", "total / weight.clamp(min=1)", "total / weight", LOSSES),
    Fault("losses/shared.py", "total / torch.where(weight == 0, 1.0, weight)", "total / weight", LOSSES),
    Fault("losses/shared.py", "total / max(weight, 1)", "total / weight", LOSSES),
    Fault("losses/shared.py", "self._buffers[name] = source.to(moved.device)", "pass", LOSSES),
    Fault("losses/shared.py", "return 0 if logits.ndim == 1 else dim", "return -1", LOSSES),
    Fault("losses/shared.py", "torch.where(valid, values.gather(dim, index).squeeze(dim), 0.0)", "values.gather(dim, index).squeeze(dim)", LOSSES),
    # Balanced Softmax and Balanced Sigmoid
    Fault("losses/balanced_softmax.py", 'self.register_buffer("log_prior", softmax_shift(prior, tau=tau))', 'self.register_buffer("log_prior", -softmax_shift(prior, tau=tau))', LOSSES),
    Fault("losses/balanced_softmax.py", 'self.register_buffer("log_prior", softmax_shift(prior, tau=tau))', 'self.register_buffer("log_prior", softmax_shift(prior))', LOSSES),
    Fault("losses/shared.py", '{"ignore_index": self.ignore_index, ', "{", LOSSES),
    Fault("losses/balanced_softmax.py", '"label_smoothing": self.label_smoothing, ', "", LOSSES),
    Fault("losses/balanced_softmax.py", "torch.where(valid.reshape(-1), rows, 0.0).sum()", "rows.sum()", LOSSES),
    Fault("losses/balanced_sigmoid.py", "shift = shift * row_mask(foreground, logits)", "pass", LOSSES),
    Fault("losses/balanced_sigmoid.py", "logits + shift, target, weight", "logits - shift, target, weight", LOSSES),
    Fault("losses/balanced_sigmoid.py", "counts if foreground is None else counts & foreground", "counts", LOSSES),
    Fault("losses/balanced_sigmoid.py", "counts.expand_as(loss).sum()", "counts.sum()", LOSSES),
    Fault("losses/balanced_sigmoid.py", "loss = torch.where(counts, loss, 0.0)", "pass", LOSSES),
    # the baselines
    Fault("losses/weights.py", "weights[prior.probabilities > 0].sum()", "weights.sum()", LOSSES),
    Fault("losses/weights.py", "_sum_to_num_classes(1 / prior.without_zeros(), prior)", "_sum_to_num_classes(prior.without_zeros() ** -0.5, prior)", LOSSES),
    Fault("losses/weights.py", "(1 - beta) / -np.expm1", "1 + 0 * np.expm1", LOSSES),
    Fault("losses/focal.py", "loss = loss * torch.exp(gamma * others)", "loss = loss * (1 - (-loss).exp()) ** gamma", LOSSES),
    Fault("losses/focal.py", "torch.exp(gamma * log_one_minus(log_p))", "torch.exp(gamma * log_p)", LOSSES),
    Fault("losses/focal.py", "positive = -F.logsigmoid(logits) * torch.exp(gamma * F.logsigmoid(-logits))", "positive = -F.logsigmoid(logits)", LOSSES),
    Fault("losses/focal.py", "    check_alpha(alpha)\n    check_reduction", "    check_reduction", LOSSES),
    Fault("losses/focal.py", "if alpha is not None and not 0 <= alpha <= 1:", "if alpha is not None and alpha > 1:", LOSSES),
    Fault("losses/focal.py", "alpha * positive, (1 - alpha) * negative", "alpha * positive, alpha * negative", LOSSES),
    Fault("losses/class_balanced.py", 'gamma = gamma if base == "focal" else 0.0', "gamma = gamma", LOSSES),
    Fault("losses/ldam.py", "scale * (logits - own * margins)", "scale * (logits + own * margins)", LOSSES),
    Fault("losses/ldam.py", "probabilities(self.scale * full_precision(logits))", "probabilities(logits)", LOSSES),
    Fault("losses/shared.py", "full_precision(logits).softmax(class_dim(logits, self.dim))", "full_precision(logits).softmax(-1)", LOSSES),
    Fault("losses/shared.py", "full_precision(logits).sigmoid()", "full_precision(logits).softmax(class_dim(logits))", LOSSES),
    Fault("losses/ldam.py", "** 0.25", "** 0.5", LOSSES),
    Fault("losses/ldam.py", "scale * (logits - own * margins)", "scale * logits - own * margins", LOSSES),
    Fault("losses/equalization.py", "drop & ~own", "drop", LOSSES),
    Fault("losses/equalization.py", "np.float32) < self.gamma", "np.float32) > self.gamma", LOSSES),
    Fault("losses/equalization.py", "device=logits.device) < self.gamma", "device=logits.device) > self.gamma", LOSSES),
    Fault("losses/equalization.py", "self._draw(logits) if drawn is None else drawn", "self._draw(logits)", LOSSES),
    Fault("losses/equalization.py", "self.gamma) & rare)", "self.gamma) | rare)", LOSSES),
    Fault("losses/equalization.py", "torch.rand(logits.shape, device=logits.device)", "torch.rand(logits.shape[1:], device=logits.device)", LOSSES),
    Fault("losses/equalization.py", ".probabilities < threshold", ".probabilities > threshold", LOSSES),
    Fault("losses/equalization.py", "spared.to(loss.dtype) * (1 - target)", "spared.to(loss.dtype)", LOSSES),
    Fault("losses/equalization.py", "spared = spared & row_mask(foreground, logits)", "pass", LOSSES),
    Fault("models/heads.py", "F.linear(_unit(features),", "F.linear(features,", LOSSES),
    # adjusting and judging
    Fault("serving/adjust.py", "return precise - along(softmax_shift", "return precise + along(softmax_shift", "test_adjust.py"),
    Fault("metrics/evaluation.py", "np.ceil(shares * BINS).astype(np.int64) - 1", "np.floor(shares * BINS).astype(np.int64)", "test_evaluation.py"),
    Fault("metrics/evaluation.py", "    labels = check_labels(", "    check_labels(", "test_evaluation.py"),
    Fault("metrics/evaluation.py", "index = index[self.items[index] > 0]", "pass", "test_evaluation.py"),
    Fault("metrics/evaluation.py", "gap.sum() / total", "gap.mean() / total", "test_evaluation.py"),
    Fault("metrics/evaluation.py", "np.abs(self.marginal - 1 / len(self.items)).sum() / 2", "np.abs(self.marginal - 1 / len(self.items)).sum()", "test_evaluation.py"),
    Fault("metrics/evaluation.py", "chances = scores if probabilities else scores.softmax(1)", "chances = scores.softmax(1)", "test_evaluation.py"),
    Fault("metrics/evaluation.py", "        warn_of_probabilities(outputs)", "        pass", "test_checks.py"),
    Fault("metrics/multilabel.py", "        warn_of_probabilities(scores, several=True)", "        pass", "test_checks.py"),
    Fault("arrays.py", "return bool(((outputs != 0) & (outputs != 1)).any())", "return True", "test_checks.py"),
    Fault("arrays.py", "and (outputs != outputs[0, 0]).any()", "and True", "test_checks.py"),
    Fault("data/predictions.py", "if not (self.probabilities or self._first) and are_probabilities(", "if self._first and are_probabilities(", "test_predictions.py test_multilabel_predictions.py"),
    Fault("metrics/evaluation.py", 'return "–" if value is None or math.isnan(value)', 'return "0.0" if value is None or math.isnan(value)', "test_evaluation.py"),
    Fault("metrics/intervals.py", "p * (1 - p) / some + z * z / (4 * some * some)", "p * (1 - p) / some", "test_evaluation.py"),
    # estimating a prior
    Fault("serving/estimate.py", "ratios = scores / seen\n", "ratios = scores\n", "test_estimate.py"),
    Fault("serving/estimate.py", "bound = float(gain.max()) - 1", "bound = float(gain.mean()) - 1", "test_estimate.py"),
    Fault("serving/estimate.py", "found, _ = _climb(ratios, weights, start.expand", "found, _ = _climb(ratios, weights.mean(1, keepdim=True).expand_as(weights), start.expand", "test_estimate.py"),
    Fault("serving/estimate.py", "shares = confusion / items", "shares = confusion / confusion.sum()", "test_estimate.py"),
    Fault("serving/estimate.py", "cells = held_out.argmax(1).cpu().numpy() * num_classes + labels", "cells = labels * num_classes + held_out.argmax(1).cpu().numpy()", "test_estimate.py"),
    Fault("serving/estimate.py", "moved = held_out / seen * torch", "moved = held_out * torch", "test_estimate.py"),
    Fault("serving/estimate.py", "raised = np.maximum(pi, 0.5 / num_items)", "raised = pi", "test_estimate.py"),
    Fault("serving/estimate.py", "surprise > _chi_squared(prior.num_classes - 1) and", "False and", "test_estimate.py"),
    Fault("serving/estimate.py", "(size / num_items) ** 0.5 * (replicates", "(replicates", "test_estimate.py"),
    Fault("serving/estimate.py", "doubts += _flat_doubts(ratios, pi, prior)", "pass", "test_estimate.py"),
    # calibration
    Fault("serving/calibrate.py", "missing[column] > 1e-6", "False", "test_calibrate.py"),
    Fault("metrics/calibration.py", "_shares(weights, p.shape).reshape(len(p), -1)", "_shares(None if weights is None else np.reshape(weights, p.shape), p.shape).reshape(len(p), -1)", "test_calibrate.py"),
    Fault("serving/calibrate.py", '    warn_of_probabilities(scores, wrong="the calibration"', '    dict(wrong="the calibration"', "test_calibrate.py"),
    Fault("metrics/calibration.py", "check_labels(index, *p.shape)", "pass", "test_calibrate.py"),
    Fault("serving/calibrate.py", "(wanted / np.maximum(counts, 1))[index]", "wanted[index]", "test_calibrate.py"),
    Fault("serving/calibrate.py", "F.cross_entropy(calibrated - shift, truth", "F.cross_entropy(calibrated, truth", "test_calibrate.py"),
    Fault("serving/calibrate.py", "np.array(as_array(logits))", "as_array(logits)", "test_calibrate.py"),
    Fault("serving/calibrate.py", "kept = weights > 0 ", "kept = weights >= 0 ", "test_calibrate.py"),
    Fault("serving/calibrate.py", "rate / yes, (1 - rate) / (len(answers) - yes)", "1 / yes, 1 / (len(answers) - yes)", "test_calibrate.py"),
    Fault("serving/calibrate.py", "above = weights[order].cumsum(0)", "above = weights.cumsum(0)", "test_calibrate.py"),
    Fault("metrics/calibration.py", "share * (right - confidence)", "right - confidence", "test_calibrate.py"),
    Fault("serving/adjust.py", "    _look_at(logits, dim, several=True)\n", "", "test_adjust.py"),
    Fault("serving/adjust.py", "    if is_traced() or logits", "    if logits", "test_adjust.py"),
    Fault("prior.py", "    _warn_of_rates(source, target)\n", "", "test_prior.py"),
    Fault("data/sources.py", "notes=() if chosen else (note,)", "notes=(note,)", "test_multilabel_predictions.py"),
    Fault("data/sources.py", 'several if option == "--label" else ""', '""', "test_multilabel_predictions.py"),
    Fault("data/prediction_priors.py", "drop any other\" if table else", "drop any other\" if False else", "test_multilabel_predictions.py"),
    Fault("cli/report.py", 'if str(path) != "-" and not path.exists()), None)', "if False), None)", "test_report.py"),
    Fault("metrics/multilabel.py", "{short(row.name):<12}", "{row.name[:11]:<12}", "test_multilabel.py"),
    # equipoise adapt
    Fault("cli/adapted_files.py", "adapted.sigmoid() if found.file.multilabel else", "adapted.softmax(1) if found.file.multilabel else", "test_adapt_multilabel.py"),
    Fault("cli/adapted_files.py", 'truth = "targets" if found.file.multilabel else "labels"', 'truth = "labels"', "test_adapt_multilabel.py"),
    Fault("cli/adapted_rates.py", "        return opened.multilabel\n", "        return False\n", "test_adapt_multilabel.py"),
    Fault("cli/adapted_rates.py", "float(meant.values.mean())", "0.5", "test_adapt_multilabel.py"),
    Fault("cli/adapted_rates.py", "np.nansum(np.abs(shares - meant)) < np.nansum(np.abs(shares - wanted))", "np.nansum(shares) < 0", "test_adapt_multilabel.py test_adapt.py"),
    Fault("data/prediction_priors.py", "        _check_total(source, opened)\n", "", "test_adapt_multilabel.py"),
    Fault("data/prediction_priors.py", "np.arange(stated.num_classes) if columns is None else np.argsort(columns)", "np.arange(stated.num_classes)", "test_adapt_multilabel.py"),
    Fault("data/predictions.py", "self._labels = None  # `equipoise adapt` calls a prior so", "pass", "test_adapt_multilabel.py"),
    Fault("data/prediction_priors.py", "_ordered(prior, np.argsort(columns), opened.columns)", "_ordered(prior, columns, opened.columns)", "test_adapt.py"),
    Fault("data/predictions.py", "    if dtype.hasobject:\n", "    if False:\n", "test_adapt.py"),
    Fault("cli/adapted_files.py", "values = chances if found.file.probabilities else adapted", "values = adapted", "test_adapt.py"),
    Fault("cli/adapted_files.py", "with written_whole(out) as scratch, zipfile", "with open(out, 'wb') as scratch, zipfile", "test_adapt.py"),
    Fault("cli/adapted_files.py", "                if name not in copied:\n", "                if True:\n", "test_adapt.py"),
    Fault("report/tables.py", "shown.add_row(*(Text(visible(cell)) for cell in row), style=style)", "shown.add_row(*(Text(cell) for cell in row), style=style)", "test_adapt.py"),
    Fault("data/predictions.py", "copy.compress_type = info.compress_type", "copy.compress_type = 0", "test_adapt.py"),
    # the prior-shift experiment
    Fault("experiments/prior_shift/recipe.py", "index[VALIDATION_PER_CLASS:] for index", "index[:TEST_PER_CLASS] for index", "test_prior_shift.py"),
    Fault("experiments/prior_shift/report.py", 'if one["shift"] == shift', "if True", "test_prior_shift.py"),
    # other libraries' training stacks
    Fault("metrics/evaluation.py", '{"top1": self.top1, "balanced": self.balanced_accuracy}', '{"top1": self.balanced_accuracy, "balanced": self.top1}', "test_torchmetrics.py"),
    Fault("integrations/torchmetrics.py", 'dist_reduce_fx="sum"', 'dist_reduce_fx="mean"', "test_torchmetrics.py"),
    Fault("integrations/huggingface.py", "if isinstance(self.evaluation, DenseEvaluation):", "if not isinstance(self.evaluation, Evaluation):", "test_huggingface.py"),
    Fault("integrations/huggingface.py", "mean * counted, 0.0", "mean, 0.0", "test_huggingface.py"),
    Fault("integrations/huggingface.py", "torch.where(counted > 0, mean * counted, 0.0)", "mean * counted", "test_huggingface.py"),
    Fault("integrations/huggingface.py", "counted = (labels != IGNORED).sum()", "counted = torch.tensor(labels.numel())", "test_huggingface.py"),
    Fault("integrations/huggingface.py", "if isinstance(trainer.train_dataset, IterableDataset):", "if False:", "test_huggingface.py"),
    Fault("integrations/huggingface.py", "np.where(unknown, np.nan, labels)", "labels", "test_huggingface.py"),
    Fault("integrations/huggingface.py", "judged(*_rows(image, label))", "judged(image, label)", "test_huggingface.py"),
    Fault("losses/shared.py", "        return held.to(given.device)\n\n    def _apply", "        return given\n\n    def _apply", "test_huggingface.py"),
    Fault("losses/shared.py", "if found is given and not held.is_meta and", "if held.is_meta and", "test_huggingface.py"),
    Fault("losses/shared.py", "return copy if saved is buffer else buffer.clone()", "return buffer.clone()", "test_loss_contract.py"),
    Fault("losses/shared.py", "self._lost, self._saved = tuple(name for name in self._lost if name not in loaded), {}", "self._lost = tuple(name for name in self._lost if name not in loaded)", "test_loss_contract.py"),
    Fault("integrations/huggingface.py", "self.evaluation, self._parts = sum(self._parts), []", "self.evaluation = sum(self._parts)", "test_huggingface.py"),
    Fault("integrations/lightning.py", "self.prior if sampler is None else sampler.prior", "self.prior", "test_lightning.py"),
    Fault("integrations/lightning.py", 'name.removesuffix("._orig_mod")', "name", "test_lightning.py"),
    Fault("integrations/lightning.py", "            self._follow()\n", "            pass\n", "test_lightning.py"),
    Fault("integrations/lightning.py", "loader if batches is None else batches", "loader", "test_lightning.py"),
    Fault("integrations/lightning.py", "exception: BaseException) -> None:\n        self._let_go()", "exception: BaseException) -> None:\n        pass", "test_lightning.py"),
    Fault("integrations/lightning.py", "def forward(self, input: Tensor, target: Tensor) -> Any:  # named like those of torch's losses\n        return self._held[0].to(input.device)(input, target)", "def forward(self, logits: Tensor, target: Tensor) -> Any:\n        return self._held[0].to(logits.device)(logits, target)", "test_lightning.py"),
    Fault("integrations/lightning.py", "self._held = (criterion,)", "self._held = nn.ModuleList([criterion])", "test_lightning.py"),
    Fault("integrations/timm.py", "self.soft if target.shape == logits.shape else self.hard", "self.hard", "test_timm.py"),
    Fault("integrations/sklearn.py", "_move(source, target, self.tau)", "_move(source, target)", "test_sklearn.py"),
    Fault("integrations/anchors.py", "(wanted > 0).any(1)", "(wanted > 0.5).any(1)", "test_ultralytics.py"),
    Fault("data/annotations.py", "if width > 2 or not counts.any():", "if False:", "test_annotations.py"),
    Fault("data/annotations.py", "if width > 2 or not counts.any():", "if True:", "test_annotations.py"),
    Fault("data/annotations.py", "    check_length(dataset, name, len(values))\n", "", "test_annotations.py"),
    Fault("data/annotations.py", "np.unique(array), num_classes", "array, num_classes", "test_annotations.py"),
    Fault("data/yolo.py", 'np.unique(classes) if by == "images" else classes', "classes", "test_yolo.py"),
    Fault("metrics/dense.py", "self.labelled + self.predicted - self.hits", "self.labelled + self.predicted", "test_dense.py"),
    Fault("serving/rebalanced.py", "elif isinstance(model, LogitsOf):", "elif isinstance(model, nn.Identity):", "test_output_objects.py"),
    # several labels per item: thresholds, files, the page
    Fault("serving/thresholds.py", "        warn_of_probabilities(scores, several=True)", "        pass", "test_thresholds.py"),
    Fault("serving/thresholds.py", "(1.0, 1.0) if rate is None else (rate / hits[-1], (1 - rate) / misses[-1])", "(1.0, 1.0)", "test_thresholds.py"),
    Fault("serving/thresholds.py", "        if positive.all() or not positive.any():", "        if not positive.any():", "test_thresholds.py"),
    Fault("serving/thresholds.py", "kept = (limits <= above) & (limits > below)", "kept = np.ones(len(limits), bool)", "test_thresholds.py"),
    Fault("metrics/multilabel.py", "_ratio(self.rows[2], self.rows[1])", "_ratio(self.rows[2], self.rows[0])", "test_multilabel.py"),
    Fault("metrics/multilabel.py", "while len(parts) > 1 and len(parts[-2][0]) <= len(parts[-1][0]):", "while len(parts) > 1:", "test_multilabel.py"),
    Fault("metrics/resampling.py", "2 * hits.sum() / either if either else math.nan", "2 * hits.sum() / max(either, 1)", "test_multilabel.py"),
    Fault("data/tags.py", "        binary = targets\n", "        pass\n", "test_multilabel_predictions.py"),
    Fault("data/tags.py", 'binary[column] = cell in ("0", "1", "", "-1")', 'binary[column] = cell in ("0", "1")', "test_multilabel_predictions.py"),
    Fault("cli/__init__.py", "if not error.message:", "if False:", "test_commands.py"),
    Fault("serving/rebalanced.py", "now.copy_(limit)  # in place, like the shift", "pass", "test_thresholds.py"),
    Fault("serving/correction.py", 'content.get("threshold", "0.5")', 'content["threshold"]', "test_thresholds.py"),
    Fault("metrics/average_precision.py", "    known = target >= 0\n", "    known = target >= -1\n", "test_multilabel.py"),
    Fault("metrics/multilabel_judging.py", "z = NormalDist().inv_cdf(1 - 0.025 / max(int(compared.sum()), 1))", "z = 1.96", "test_multilabel_judging.py"),
    Fault("data/multilabel_predictions.py", 'if cell == "" and empty is not None', "if False", "test_multilabel_predictions.py"),
    Fault("report/files.py", "outputs, labels = outputs[:, columns], labels[:, columns]", "outputs = outputs[:, columns]", "test_multilabel_predictions.py"),
    Fault("data/prediction_priors.py", "total = prior.total if source.multilabel and prior.counted else None", "total = None", "test_multilabel_report.py"),
    Fault("report/multilabel_data.py", "np.nan_to_num(best, nan=-1.0).argmax(1)", "np.nan_to_num(best, nan=-1.0).argmin(1)", "test_multilabel_report.py"),
    Fault("integrations/sklearn_multilabel.py", "list(classes).index(1)", "0", "test_sklearn_multilabel.py"),
    # scikit-learn
    Fault("integrations/sklearn.py", "move = move[1:] - move[:1]", "move = move[1:]", "test_sklearn.py"),
    Fault("integrations/sklearn.py", "log_ratio(source, target, tau=tau)", "log_ratio(source, target)", "test_sklearn.py"),
    Fault("integrations/sklearn.py", "sums = np.bincount(column, weights=weights, minlength=len(classes))", "sums = np.bincount(column, minlength=len(classes))", "test_sklearn.py"),
    Fault("integrations/sklearn.py", "np.array([columns[label] for label in labels.tolist()])[index]", "index", "test_sklearn.py"),
    Fault("integrations/sklearn.py", "clone(self.estimator).fit(X, y, **fit_params)", "self.estimator.fit(X, y, **fit_params)", "test_sklearn.py"),
    Fault("integrations/sklearn.py", "np.log(np.maximum(p, SMALLEST))", "np.log(p)", "test_sklearn.py"),
    Fault("integrations/sklearn.py", "scores = np.maximum(self.predict_log_proba(X), RULED_OUT)", "scores = self.predict_log_proba(X)", "test_sklearn.py"),
    Fault("integrations/sklearn.py", "value = [float(value[label]) for label in classes.tolist()]", "value = list(value.values())", "test_sklearn.py"),
    Fault("integrations/sklearn.py", 'getattr(value, "to_dict", lambda: value)()', "value", "test_sklearn.py"),
    Fault("integrations/sklearn.py", 'if self.solver == "liblinear":', "if False:", "test_sklearn.py"),
    Fault("integrations/sklearn.py", "prior.class_names != tuple(classes.tolist())", "set(prior.class_names) != set(classes.tolist())", "test_sklearn.py"),
    Fault("integrations/sklearn.py", "tags.array_api_support = False", "pass", "test_sklearn.py"),
    # training Table 1 and showing it
    Fault("training/classification.py", "self.model.train(self.recipe.backbone is None)", "self.model.train()", "test_training.py"),
    Fault("training/sets.py", "stream_of(seed, AUGMENTATION, iteration // CHUNK)", "stream_of(seed, AUGMENTATION)", "test_training.py"),
    Fault("training/classification.py", "self.losses.copy_(torch.as_tensor(state[\"losses\"]))\n            ", "", "test_training.py"),
    Fault("training/sets.py", "self.augmentation(index, draws, recipe.augmentation)", "self.augmentation(index, draws)", "test_training.py"),
    Fault("training/augmentation/cifar.py", 'return images if kind == "crop" else cutout(', "return cutout(", "test_augment.py"),
    Fault("training/classification_runs.py", "            data.check(student)\n", "            pass\n", "test_record.py"),
    Fault("training/optimizers.py", "alpha=recipe.weight_decay", "alpha=0.0", "test_training.py"),
    Fault("training/classification.py", "torch._foreach_copy_(kept, before)", "torch._foreach_copy_(self.parameters, before[: len(self.parameters)])", "test_training.py"),
    Fault("training/classification.py", "        _, found = self._gradients(*batch)\n", "        found = gradients\n", "test_training.py"),
    Fault("training/optimizers.py", "distance / (norm + 1e-12)", "distance", "test_training.py"),
    Fault("training/recipe.py", "return 2 if self.sam else 1", "return 1", "test_classification_runs.py"),
    Fault("training/images.py", "return float(self.recipes[cell.method].passes)", "return 1.0", "test_images_training.py"),
    Fault("training/images.py", " / self.cost(long[0])", "", "test_images_training.py"),
    Fault("training/recipe.py", "if not 0 <= self.sam < math.inf:", "if self.sam < 0:", "test_mixing.py"),
    Fault("training/distillation.py", '"ema", "sam", "clip")', '"ema", "clip")', "test_distillation.py"),
    # image classifiers of any kind
    Fault("training/optimizers.py", "if parameter.ndim > 1]", "]", "test_optimizers.py"),
    Fault("training/optimizers.py", "first, list(gradients), 1 - BETAS[0]", "first, list(gradients), BETAS[0]", "test_optimizers.py"),
    Fault("training/mixing.py", "y + (cut + 1) // 2", "y + cut", "test_mixing.py"),
    Fault("training/mixing.py", "random.random() >= recipe.mix_probability", "random.random() < recipe.mix_probability", "test_mixing.py"),
    Fault("training/mixing.py", "if recipe.mix_probability < 1 and random", "if random", "test_mixing.py"),
    Fault("training/recipe.py", "if not 0 <= self.mix_probability <= 1:", "if self.mix_probability < 0:", "test_mixing.py"),
    Fault("training/mixing.py", "stream_of(seed, MIXING, iteration + step)", "stream_of(seed, MIXING, step)", "test_mixing.py"),
    Fault("training/sets.py", "stream = stream_of(seed, AUGMENTATION, iteration)", "stream = stream_of(seed, AUGMENTATION)", "test_images_training.py"),
    Fault("training/sets.py", "return slice(rank * rows, (rank + 1) * rows)", "return slice(0, rows)", "test_images_training.py"),
    Fault("training/sets.py", "if at != iteration:  # at", "if at < 0:  # at", "test_images_training.py"),
    Fault("data/gpu_images.py", "square_of(content, self.size, self.resize)", "self.images.square(index, self.size, self.resize)", "test_gpu_images.py"),
    Fault("data/gpu_images.py", "square_of(content, self.size, self.resize)", "square_of(content, self.size)", "test_gpu_images.py"),
    Fault("data/gpu_images.py", "image.rot90(turn - 1, (1, 2))", "image.rot90(1 - turn, (1, 2))", "test_gpu_images.py"),
    Fault("data/gpu_images.py", "if turns[row] >= 0:", "if turns[row] > 0:", "test_gpu_images.py"),
    Fault("data/gpu_images.py", 'antialias=True)', 'antialias=False)', "test_gpu_images.py"),
    Fault("data/gpu_images.py", "top, left = (height - side) // 2, (width - side) // 2", "top, left = 0, 0", "test_gpu_images.py"),
    Fault("data/gpu_images.py", "rows[place] for place in same", "place for place in same", "test_gpu_images.py"),
    Fault("data/image_files.py", 'or raw or opened.info.get("progressive")', 'or opened.info.get("progressive")', "test_gpu_images.py"),
    Fault("data/cores.py", "for place in (own, *own.parents)", "for place in (own,)", "test_cores.py"),
    Fault("training/images.py", "self._planned / number - run.iteration", "self._planned - run.iteration", "test_train_progress.py"),
    Fault("training/progress.py", "        if self._chunks == 2:\n", "        if self._chunks == 0:\n", "test_train_progress.py"),
    Fault("training/classification.py", "1 - self.recipe.ema)", "self.recipe.ema)", "test_images_training.py"),
    Fault("training/classification.py", "sums = tuple(torch._foreach_div(sums, parts * number))", "pass", "test_images_training.py"),
    Fault("training/classification.py", "left = [run for run in left if run.finite]", "pass", "test_images_training.py"),
    Fault("training/augmentation/photographs.py", "np.where(windows.mirrored, -1, 1)", "1", "test_photographs.py"),
    Fault("training/augmentation/photographs.py", "& ((signs == sign) | (not signed))", "", "test_photographs.py"),
    Fault("training/run_folder.py", "source = prior if mean == \"train\" or adjusted else uniform", "source = prior if mean == \"train\" else uniform", "test_train.py"),
    Fault("training/run_folder.py", "* (scale or 1)", "", "test_train.py"),
    Fault("training/classification.py", '"square_root": 0.5}', '"square_root": 1.0}', "test_distillation.py"),
    Fault("training/methods.py", '"class_balanced" and not recipe.taught_alone', '"class_balanced"', "test_distillation.py"),
    Fault("training/recipe.py", 'self.sampler == "square_root" and not self.taught_alone', "False", "test_distillation.py"),
    Fault("training/recipe.py", "self.lr * 0.1 ** sum(", "self.lr * 0.5 ** sum(", "test_voc_mlt.py"),
    Fault("training/classification.py", "for module in self._frozen:\n            module.eval()", "for module in self._frozen:\n            module.train()", "test_multilabel_training.py"),
    Fault("training/classification.py", "gradients = clipped(gradients, self.recipe.clip)", "pass", "test_multilabel_training.py"),
    Fault("training/classification.py", "target_rate=float(prior.probabilities.mean())", "target_rate=0.5", "test_multilabel_training.py"),
    Fault("models/heads.py", "        self.calls += 1\n", "", "test_heads.py"),
    Fault("training/augmentation/distortion.py", "for offset in (5, 3, 1)", "for offset in (3, 5, 1)", "test_distortion.py"),
    Fault("experiments/voc_mlt/recipe.py", "images / prior.total", "images / prior.counts.sum()", "test_voc_mlt.py"),
    Fault("training/multilabel_records.py", "if not abs(given - found) <= 0.005:", "if abs(given - found) > 0.005:", "test_voc_mlt.py"),
    Fault("cli/own_tables.py", "for seed in self.seeds for method in self.methods]", "for seed in self.seeds[:1] for method in self.methods]", "test_own_tables.py"),
    Fault("cli/own_tables.py", "        if before not in methods:", "        if False:", "test_own_tables.py"),
    Fault("cli/own_tables.py", "known = [[ours - theirs for", "known = [[theirs - ours for", "test_own_tables.py"),
    Fault("cli/own_tables.py", "odd = [word for word in words if given[word] not in (None, False)]", "odd: list[str] = []", "test_own_tables.py"),
    Fault("models/batched_rcnn.py", "there.view(shape), heads.nms_thresh)", "there.view(shape), 1.0)", "test_detection_judging.py"),
    Fault("models/batched_rcnn.py", "torch.where(scores >= heads.least, scores, -1.0)", "torch.where(scores >= 0, scores, -1.0)", "test_detection_judging.py"),
    Fault("experiments/table2/control.py", '((1, "Above:"), (-1, "Below:"), (0, "Within:"))', '((-1, "Above:"), (1, "Below:"), (0, "Within:"))', "test_detection_report.py"),
    Fault("cli/training.py", 'if name != "losses" and before.get(name) != now[name]]', "if False]", "test_train.py"),
    Fault("training/methods.py", "return _sampled_equally(recipe) and _declared", "return _declared", "test_own_tables.py"),
    Fault("training/methods.py", "and _declared(recipe) == \"uniform\"", "", "test_own_tables.py"),
    Fault("cli/own_tables.py", "        tell_of_twice(table.methods)", "        pass", "test_own_tables.py"),
    Fault("cli/classifiers.py", "    tell_of_twice({cell.method", "    ({cell.method", "test_own_tables.py"),
    Fault("cli/predict.py", "ModelClasses(folders[0], note.num_classes, classes)", "ModelClasses(folders[0], note.num_classes, None)", "test_train.py"),
    Fault("training/queue.py", "            self.kept.forget(cell)  # only now", "            pass  # only now", "test_classification_runs.py"),
    Fault("training/queue.py", "                self._record(cell, runs[cell], context)", "                self.kept.forget(cell)\n                self._record(cell, runs[cell], context)", "test_classification_runs.py"),
    Fault("training/kept.py", 'other = [key for key in here if there.get(key, "unknown") != here[key]]', "other = list[str]()", "test_classification_runs.py"),
    Fault("training/kept.py", '"seconds": seconds + self.before(cell)', '"seconds": seconds', "test_classification_runs.py"),
    Fault("training/queue.py", "time.monotonic() - began + self.kept.before(cell)", "time.monotonic() - began", "test_classification_runs.py"),
    Fault("training/queue.py", "return self.interrupts.pressed or ", "return ", "test_queue.py"),
    Fault("training/progress.py", "                signal.signal(number, handler)\n", "                pass\n", "test_queue.py"),
    Fault("training/classification_runs.py", "complete=self.settings.iterations is None", "complete=True", "test_classification_runs.py"),
    Fault("training/kinds.py", "losses = bool(torch.isfinite(torch.as_tensor(self.losses)).all())", "losses = True", "test_classification_runs.py"),
    Fault("training/recipe.py", "iteration < self.warmup", "iteration <= 0", "test_training.py"),
    Fault("training/records.py", 'git("ls-files", "--error-unmatch", Path(__file__).name)', "pass", "test_records.py"),
    Fault("training/records.py", "if not record.complete:\n            continue", "pass", "test_records.py"),
    Fault("cli/classifiers.py", "checkpoints=options.kept / table.checkpoints", "checkpoints=options.kept", "test_table1.py"),
    Fault("cli/queues.py", '.startswith(part.strip("/") + "/")', '.startswith(part.strip("/"))', "test_table1.py"),
    Fault("training/records.py", "and record.complete == (self.smoke_test is None)", "", "test_table1.py"),
    Fault("cli/queues.py", "    check_writable(options.out, options.kept)\n", "", "test_table1.py"),
    Fault("cli/shared.py", "with open(path, \"a+b\") if path.exists() else tempfile.TemporaryFile(dir=path.parent):", "with open(path, \"a+b\"):", "test_table1.py"),
    Fault("training/kept.py", '{"started_from": self.started_from(cell)}', "{}", "test_classification_runs.py"),
    Fault("training/records.py", "if not abs(share - self.top1) <= 0.005:", "if abs(share - self.top1) > 0.005:", "test_records.py"),
    Fault("training/records.py", '"utf-8-sig" if number == 1 else "utf-8"', '"utf-8"', "test_records.py"),
    Fault("training/records.py", "with written_whole(path, new=True) as scratch:", "with written_whole(path) as scratch:", "test_records.py"),
    Fault("training/records.py", "        return kind.from_json(path.read_text(encoding=\"utf-8\"))\n    except (ValueError, TypeError)", "        return kind.from_json(path.read_text(encoding=\"utf-8\"))\n    except OverflowError", "test_records.py"),
    Fault("cli/classifiers.py", "    check_recipes(cells, table.recipe_of)\n", "", "test_table1.py"),
    Fault("cli/table.py", "    with refusing(), _of_a_checkout(root):\n        rendered", "    if True:\n        rendered", "test_records.py"),
    Fault("cli/table.py", "    except ModuleNotFoundError as error:\n", "    except ZeroDivisionError as error:\n", "test_commands.py"),
    Fault("cli/table.py", "    except FileNotFoundError as error:\n", "    except ZeroDivisionError as error:\n", "test_commands.py"),
    Fault("cli/adapt.py", "        raise typer.Exit(NOT_TRUSTED)", "        pass", "test_adapt.py"),
    Fault("cli/shared.py", 'str(error).replace(str(kept), "stdin")', "str(error)", "test_commands.py"),
    Fault("cli/shared.py", "    near = difflib.get_close_matches(wanted.lower(), list(known), n=1)\n", "    near = list(known)[:1]\n", "test_commands.py"),
    Fault("cli/__init__.py", "return sorted(super().list_commands(ctx), key=lambda name: (*ORDER, name).index(name))", "return super().list_commands(ctx)", "test_commands.py"),
    Fault("cli/__init__.py", 'HELP = ["-h", "--help"]', 'HELP = ["--help"]', "test_commands.py"),
    Fault("cli/__init__.py", "    for below in getattr(command, \"commands\", {}).values():\n        hide_types_of_flags(below)\n", "", "test_commands.py"),
    Fault("data/predictions.py", 'return self._texts(archive, "paths", self.num_items)', "return None", "test_page_parts.py"),
    Fault("training/classification_runs.py", '| {"seed": cell.seed} | data', "| data", "test_classification_runs.py"),
    Fault("training/queue.py", "        self._save(finished, runs, \"interrupted\" if pressed else None, began)\n", "", "test_queue.py"),
    Fault("cli/classifiers.py", "                        held_out(drawn)", "                        pass", "test_table1.py"),
    Fault("cli/records.py", "        raise typer.Exit(1)", "        pass", "test_table1.py"),
    Fault("training/records.py", "    record.path_under(Path())\n", "", "test_records.py"),
    Fault("training/records.py", "if odd or len(below)", "if len(below)", "test_records.py"),
    Fault("training/records.py", "return begins and (", "return (", "test_records.py"),
    Fault("training/records.py", "if wrong or record is None", "if record is None", "test_records.py"),
    Fault("training/records.py", "if _of_file(path, type(record)) == record:", "if True:", "test_records.py"),
    Fault("experiments/documents/table1.py", "abs(one.points) > 2 * one.standard_error", "abs(one.points) > one.standard_error", "test_table1_report.py"),
    Fault("experiments/documents/table1.py", "math.hypot(std / math.sqrt(len(runs)), theirs[1])", "std / math.sqrt(len(runs))", "test_table1_report.py"),
    Fault("experiments/documents/table1.py", "pooled if len(runs) < 3 else", "pooled if len(runs) < 2 else", "test_table1_report.py"),
    Fault("experiments/table1/published.py", "IMBALANCES = (200, 100, 10)", "IMBALANCES = (200, 100, 50, 10)", "test_table1_report.py"),
    Fault("experiments/table1/recipe.py", "below[len(BELOW) :] + later", "later + below[len(BELOW) :]", "test_table1.py"),
    Fault("experiments/table1/report.py", "if cell not in have]\n    return [f", "if cell in have]\n    return [f", "test_table1_report.py"),
    Fault("experiments/table1/report.py", '"" if len(later) == len(later_cells()) else', '"" if later else', "test_table1_report.py"),
    Fault("experiments/table1/report.py", "usual = USUAL[method]", 'usual = USUAL["softmax"]', "test_table1_report.py"),
    Fault("experiments/documents/table1.py", "in (*table1.COLUMNS, *table1.LATER_COLUMNS):", "in table1.COLUMNS:", "test_table1_report.py"),
    Fault("experiments/record/published.py", "self.numbers[COLUMNS.index((data_set, imbalance))]", "self.numbers[IMBALANCES.index(imbalance)]", "test_table1_report.py"),
    Fault("experiments/table1/report.py", 'record.complete and record.evaluated_on == "test"', "record.complete", "test_table1_report.py"),
    Fault("experiments/documents/table1_figure.py", "np.argsort(-np.asarray(record.counts)", "np.argsort(np.asarray(record.counts)", "test_table1_report.py"),
    Fault("experiments/table1/report.py", "column = table1.IMBALANCES.index(imbalance)", "column = sorted(table1.IMBALANCES).index(imbalance)", "test_table1_report.py"),
    Fault("experiments/documents/table1_figure.py", "styles = dict(zip(panel, zip(", "styles = dict(zip([m for m in panel if len(panel[m])], zip(", "test_table1_report.py"),
    # kernels of our own
    Fault("experiments/resnet32/kernels.py", "value / 255 - MEANS[channel]", "value / 256 - MEANS[channel]", FUSED),
    Fault("experiments/resnet32/kernels.py", "tap = column - pixel", "tap = column", FUSED),
    Fault("experiments/resnet32/kernels.py", "else 2 + pixel - column", "else column - pixel", FUSED),
    Fault("experiments/resnet32/kernels.py", "1 + pixel - 2 * column", "pixel - 2 * column", FUSED),
    Fault("experiments/resnet32/kernels.py", "& (before < GIVEN) & (packed < COLUMNS * FROM)[:, None]\n    return", "& (packed < COLUMNS * FROM)[:, None]\n    return", FUSED),
    Fault("experiments/resnet32/kernels.py", "down % 2 == 0", "down % 2 < 2", FUSED),
    Fault("experiments/resnet32/kernels.py", "2 - tap_row if TRANSPOSED else tap_row", "tap_row", FUSED),
    Fault("experiments/resnet32/kernels.py", "middle if tap_row == 1 else bottom", "bottom", FUSED),
    Fault("experiments/resnet32/kernels.py", "second += result * result", "second += result", FUSED),
    Fault("experiments/resnet32/kernels.py", "second_sum - tl.load(statistics + after) * first_sum", "second_sum", FUSED),
    Fault("experiments/resnet32/kernels.py", "positive = below * scale +", "positive = below +", FUSED),
    Fault("experiments/resnet32/kernels.py", "(program * PAIR + outs // TO) * (2 * TO)", "program * (2 * TO)", FUSED),
    Fault("experiments/resnet32/kernels.py", "(variance * pixels / (pixels - 1) - old)", "(variance - old)", FUSED),
    Fault("experiments/resnet32/kernels.py", "- per_y * tl.load(statistics + after)", "- per_y", FUSED),
    Fault("experiments/resnet32/kernels.py", "per_y * below.to(tl.float32) + constant", "constant", FUSED),
    Fault("experiments/resnet32/kernels.py", "tap = first + packed[:, None] // FROM - pixel", "tap = first + packed[:, None] // FROM", FUSED),
    Fault("experiments/resnet32/kernels.py", "tl.where(inside, tl.maximum(value, 0.0), 0.0)", "tl.maximum(value, 0.0)", FUSED),
    Fault("experiments/resnet32/fused.py", "gradients.extend([sums[0], sums[1],", "gradients.extend([sums[1], sums[0],", FUSED),
    Fault("experiments/resnet32/fused.py", "inner(shortcut)[..., half : half + channels]", "inner(shortcut)[..., :channels]", FUSED),
    Fault("experiments/resnet32/fused.py", "2 * number + 1, shortcut)", "2 * number + 1)", FUSED),
    Fault("experiments/resnet32/fused.py", "spare = [middle, x] if block.stride == 1", "spare = [middle, out] if block.stride == 1", FUSED),
    Fault("experiments/resnet32/fused.py", "scale = bn.weight * inverse", "scale = inverse", FUSED),
    Fault("training/queue.py", "        self.waiting.remove(cell)\n        self._leave_out_unneeded()\n", "        self.waiting.remove(cell)\n", "test_record.py"),
    Fault("training/queue.py", "    for cell in cells:\n        kind.check(cell)\n", "", "test_record.py"),
    Fault("training/classification_runs.py", "if recipe.adjusted:", "if False:", "test_record.py"),
    Fault("training/classification_runs.py", "if not means_softmax(its, drawn.prior):", "if False:", "test_record.py"),
    Fault("training/classification_runs.py", 'timed(replace(recipe, teacher=None, sampler="instance"), data)', "timed(recipe, data)", "test_record.py"),
    Fault("training/kept.py", "self._kind.made_from(cell) | needed))", "self._kind.made_from(cell)))", "test_classification_runs.py test_record.py"),
    Fault("training/recipe.py", "if not 1 <= self.teachers <= TEACHER_SEEDS:", "if self.teachers < 0:", "test_distillation.py"),
    Fault("cli/record.py", "        folder.mkdir(parents=True, exist_ok=True)\n        with tempfile", "        with tempfile", "test_record.py"),
    Fault("cli/record.py", 'folder /= f"smoke-test-{smoke_test}"', "pass", "test_record.py"),
    Fault("__main__.py", "if processes_together() == 1:", "if True:", "test_commands.py"),
    Fault("training/queue.py", "self._put_before(first, group)", "self._put_before(first, [cell])", "test_record.py"),
    Fault("training/queue.py", "added += [first, *self._put_needs_before(first, [first])]", "added += [first]", "test_record.py"),
    Fault("cli/classifiers.py", "                add_what_is_needed(one, (*chain, one.method))\n", "", "test_record.py"),
    Fault("cli/own_tables.py", "        if before in chain:", "        if before == method and len(chain) == 1:", "test_own_tables.py"),
    Fault("training/queue.py", "        size = self.settings.together\n        return [every", "        size = 4\n        return [every", "test_record.py"),
    Fault("training/queue.py", "added += [first, *", "added += [*", "test_record.py"),
    Fault("training/queue.py", "if (now := self.waiting.index(first)) > place:", "if (now := self.waiting.index(first)) < place:", "test_record.py"),
    Fault("training/distillation.py", "weight * temperature**2 * divergence", "weight * divergence", "test_distillation.py"),
    Fault("training/distillation.py", '"nesterov", "weight_decay", "ema", "sam", "clip")', '"nesterov", "weight_decay", "ema", "sam", "clip", "views")', "test_distillation.py"),
    Fault("training/classification_runs.py", "cell.imbalance, cell.seed, shown_alike(recipe))", "cell.imbalance, shown_alike(recipe))", "test_record.py"),
    Fault("training/classification_runs.py", "pool=self._pools.get(key),", "", "test_record.py"),
    Fault("experiments/documents/record.py", "known = [runs[other] - runs[one] for", "known = [runs[one] - runs[other] for", "test_record.py"),
    Fault("training/distillation.py", "shown % recipe.views", "0 * shown", "test_distillation.py"),
    Fault("training/distillation.py", "torch.stack(answers).mean(0)", "answers[0]", "test_distillation.py"),
    Fault("training/distillation.py", ".float() / temperature).softmax(1)", ".float()).softmax(1)", "test_distillation.py"),
    Fault("training/recipe.py", "first = TEACHER_SEEDS * (cell.seed + 1)", "first = TEACHER_SEEDS", "test_record.py"),
    Fault("training/kept.py", 'content["taught_by"] = self.taught_by(cell)', "pass", "test_record.py"),
    Fault("training/kept.py", "if changed := _changed(note, here):", "if changed := '':", "test_record.py"),
    Fault("training/classification_runs.py", "if logits_mean(recipe) != logits_mean(student):", "if False:", "test_record.py"),
    Fault("data/cifar.py", "places % LEFT_OUT != LEFT_OUT - 1", "places % LEFT_OUT >= 0", "test_record.py"),
    Fault("experiments/record/report.py", "if len(runs) < ENOUGH:", "if False:", "test_record.py"),
    Fault("experiments/record/report.py", "if len(runs) >= ENOUGH else", "if True else", "test_record.py"),
    Fault("experiments/record/report.py", "if number <= best[column][0]:", "if number < best[column][0]:", "test_record.py"),
    Fault("experiments/documents/record.py", "    for column in published.COLUMNS:\n        runs = ours.get(column, [])\n", "    for column, runs in ours.items():\n", "test_record.py"),
    Fault("experiments/documents/record.py", "if runs else [teacher.top1 for teacher in theirs[column]]", "", "test_record.py"),
    Fault("experiments/documents/record.py", "one['test']['teacher']['divergence']", "one['test']['student']['divergence']", "test_record.py"),
    Fault("cli/record.py", "if str(cell) not in known]", "]", "test_record.py"),
    Fault("cli/record.py", "{*plan, *needed_by(students, recipe_of)}", "plan", "test_record.py"),
    Fault("data/image_lists.py", "if found is not None and (column in LISTS", "if False and (column in LISTS", "test_images.py"),
    Fault("report/files.py", "if prior != priors[0]), None)", "if False), None)", "test_train.py"),
    Fault("report/files.py", "return file.absolute().parent.name if", "return file.stem if", "test_train.py"),
    Fault("report/files.py", "Prior.from_counts(record.counts, class_names", "Prior.from_counts(record.total, class_names", "test_train.py"),
    Fault("cli/predict.py", '            typer.echo(visible(f"note: {one.message}"), err=True)\n', "            pass\n", "test_train.py"),
    Fault("cli/training.py", '{"adjusted"} if "softmax" in wanted else set()', "set()", "test_train.py"),
    Fault("data/tags.py", "fewer * len(labels) <= len(names)", "False", "test_multilabel_predictions.py"),
    Fault("data/sources.py", 'if header[place] in LISTS else ""', 'if False else ""', "test_multilabel_predictions.py"),
    Fault("training/records.py", "if path.is_dir() or not path.exists():", "if False:", "test_records.py"),
    Fault("data/prediction_priors.py", 'if unknown else "does not"', 'if False else "does not"', "test_predictions.py"),
    Fault("cli/record.py", "*unrecorded(named, teachers)]", "]", "test_record.py"),
    Fault("cli/record.py", "recorded if students else teachers)", "recorded)", "test_record.py"),
    Fault("cli/record.py", "if table_of(one) == teachers_table]", "]", "test_record.py"),
    Fault("cli/record.py", "    if recorded.smoke_test is not None:\n        return {}\n", "", "test_record.py"),
    Fault("cli/record.py", "every = [*read_records(recorded.results, recorded.table), *recorded.read()]", "every = recorded.read()", "test_record.py"),
    Fault("cli/record.py", "*recorded.read()]", "]", "test_record.py"),
    Fault("cli/record.py", "known = recorded_weights(theirs, teachers)", "known = recorded_weights(needed_by(students, recipe_of), options.recorded(record.TEACHERS, Record))", "test_record.py"),
    Fault("cli/record.py", "    if not options.validate:\n        refuse_other_recipes(recorded, version)\n    recipe_of", "    recipe_of", "test_record.py"),
    Fault("cli/record.py", "            refuse_other_recipes(recorded, version)  # of another command with the same --out\n", "            pass\n", "test_record.py"),
    Fault("cli/record.py", "if one.complete != smoke_test and (", "if (", "test_record.py"),
    Fault("cli/record.py", 'mark=f"-{version.folder}" if own.of_next else "",', "", "test_record.py"),
    Fault("cli/record.py", "own.export / version.folder", "own.export", "test_record.py"),
    Fault("cli/run.py", "out = o.NEXT_RECORDS if _by_default(ctx, \"out\") else out", "pass", "test_record.py"),
    Fault("cli/run.py", "results = o.NEXT_RESULTS if _by_default(ctx, \"results\") else results", "pass", "test_record.py"),
    Fault("training/classification_runs.py", "'' if teaches else self._mark", "self._mark", "test_record.py"),
    Fault("training/queue.py", "                self.settings.log(f\"{first}: {why}\")\n                self.failed.add(first)\n", "                raise ValueError(why)\n", "test_record.py"),
    Fault("training/queue.py", "                if why := kind.refuses(teacher, weights):", "                if why := \"\":", "test_record.py"),
    Fault("cli/record.py", '(committed, "--results with another folder"), ', "", "test_record.py"),
    Fault("cli/record.py", "partial(record.recipe_of, version=version)", "record.recipe_of", "test_record.py"),
    Fault("experiments/record/recipe.py", "(version or published.RECORD)", "published.RECORD", "test_record.py"),
    Fault("training/classification_runs.py", "if known is None or (digest := weights_digest(weights)) == known:", "if (digest := weights_digest(weights)):", "test_record.py"),
    Fault("cli/classifiers.py", "if not fits(width := recipe_of(cell).width):", "if (width := recipe_of(cell).width) < 0:", "test_record.py"),
    Fault("experiments/record/recipe.py", "other = cell.method != student_on(cell.data_set, version).teacher", "other = False", "test_record.py"),
    Fault("experiments/record/recipe.py", "(validate and cell.imbalance == SUPERSET_IMBALANCE)", "False", "test_record.py"),
    Fault("experiments/record/recipe.py", "published.METHOD] = student_on(cell.data_set, version)", "published.METHOD] = SECOND", "test_record.py"),
    Fault("experiments/record/report.py", "for name, value in usual.items() if found.get(name) != value", "for name, value in {}.items()", "test_record.py"),
    Fault("experiments/record/report.py", "EARLIER | record.recipe", "record.recipe", "test_record.py"),
    Fault("experiments/record/report.py", "if of_next := [run for run in students.of_next if run.data_set == data_set]:", "if of_next := students.of_next:", "test_record.py"),
    Fault("experiments/record/report.py", "(published.RECORD, published.NEXT)", "(published.RECORD,)", "test_record.py"),
    Fault("experiments/record/exported.py", ", width=recipe.width)", ")", "test_record.py"),
    Fault("training/kept.py", "EARLIER | found if", "found if", "test_record.py"),
    Fault("training/classification_runs.py", "recipe.blocks / Recipe.blocks * recipe.width**2", "1.0", "test_classification_runs.py"),
    Fault("training/classification_runs.py", " * recipe.batch_size / Recipe.batch_size", "", "test_classification_runs.py"),
    Fault("training/classification_runs.py", "return each / self.cost(cell)", "return each", "test_classification_runs.py"),
    Fault("training/classification_runs.py", "each * sum(share * recipe.iterations for share", "each * sum(recipe.iterations for share", "test_classification_runs.py"),
    Fault("training/classification_runs.py", "run.logits, temperature).cpu()", "run.logits).cpu()", "test_distillation.py"),
    Fault("training/classification_runs.py", "temperature=temperature, weight=1.0)", "temperature=temperature, weight=run.recipe.distillation)", "test_distillation.py"),
    Fault("models/resnet_cifar.py", "[2 * first] * blocks", "[32] * blocks", "test_resnet_cifar.py"),
    Fault("training/distillation.py", "MIXING, start + step", "MIXING, start", "test_distillation.py"),
    Fault("training/classification.py", ") and self.pool is None  #", ")  #", "test_distillation.py"),
    Fault("losses/kernels.py", "there = row < number - start\n    if K <= C:", "there = row < number\n    if K <= C:", KERNELS),
    Fault("losses/kernels.py", "sums = sums * tl.exp(high - safe) + tl.exp(z - safe)", "sums = sums + tl.exp(z - safe)", KERNELS),
    Fault("losses/kernels.py", "tl.where(higher == float(\"-inf\"), 0.0, higher)", "higher", KERNELS),
    Fault("losses/kernels.py", "each = tl.log(whole) + (largest - chosen)", "each = tl.log(whole) + largest - chosen", KERNELS),
    Fault("losses/kernels.py", "    chosen += tl.load(shift + right, mask=known, other=0.0)\n", "", KERNELS),
    Fault("losses/kernels.py", "mask=known, other=float(\"nan\")).to(tl.float32)", "mask=known, other=0.0).to(tl.float32)", KERNELS),
    Fault("losses/kernels.py", "scale = tl.where(right == ignore, 0.0, scale)[:, None]", "scale = scale[:, None]", KERNELS),
    Fault("losses/kernels.py", "(1.0 - y) * z + tl.maximum(-z, 0.0)", "tl.maximum(z, 0.0) - z * y", KERNELS),
    Fault("losses/kernels.py", "(tl.log(whole) + (small - (whole - 1.0)))", "tl.log(whole)", KERNELS),
    Fault("losses/kernels.py", "        result = tl.where(right == ignore, 0.0, result)\n", "", KERNELS),
    Fault("losses/kernels.py", "(logits.shape[0] // ROWS + 1,)", "(logits.shape[0] // ROWS,)", KERNELS),
    Fault("losses/kernels.py", "custom_op if INTERPRETED else torch.library.triton_op", "custom_op", KERNELS),
    Fault("losses/kernels.py", "softmax_rows(logits.contiguous(), ", "softmax_rows(logits, ", KERNELS),
    Fault("losses/kernels.py", "sigmoid_slope(*ctx.saved_tensors, slope.contiguous(),", "sigmoid_slope(*ctx.saved_tensors, slope,", KERNELS),
    Fault("losses/kernels.py", "(classes > 0).sum() if reduction == \"batchmean\" else classes.sum()", "classes.sum()", KERNELS),
    Fault("losses/shared.py", "        and not (target.requires_grad or shift.requires_grad)\n", "", KERNELS),
    Fault("losses/shared.py", "(target.shape == logits.shape[:1] and is_integer(target))", "target.shape == logits.shape[:1]", KERNELS),
    Fault("losses/shared.py", "        or torch._C._are_functorch_transforms_active()\n", "", KERNELS),
    Fault("losses/shared.py", "type(tensor) is Tensor and tensor.device", "tensor.device", KERNELS),
    Fault("losses/shared.py", "@constant  # Dynamo", "# Dynamo", KERNELS),
    Fault("losses/balanced_softmax.py", "if weight is None and label_smoothing == 0 and target.ndim", "if label_smoothing == 0 and target.ndim", KERNELS),
    Fault("losses/balanced_sigmoid.py", "plain = foreground is weight is pos_weight is None and", "plain = weight is pos_weight is None and", KERNELS),
    # the report
    Fault("metrics/intervals.py", "(1 - shrunk) * p * (1 - p) * _unbiased(n)", "(1 - shrunk) * p * (1 - p)", "test_intervals.py"),
    Fault("metrics/intervals.py", "pull = z * z * share", "pull = 1e-9 * share", "test_intervals.py"),
    Fault("metrics/intervals.py", "for q in (mean, float((share * p).sum()))", "for q in (mean,)", "test_intervals.py"),
    Fault("metrics/intervals.py", "effective = 1 + spread / variance", "effective = spread / variance", "test_tail_metrics.py"),
    Fault("metrics/intervals.py", "1 + spread / variance if spread > 0 else items", "1 + spread / variance if spread > 0 else 1e9", "test_intervals.py"),
    Fault("metrics/intervals.py", "np.where(n > 0, np.minimum(centre + half, 1), 1.0)", "np.minimum(centre + half, 1)", "test_tail_metrics.py"),
    Fault("metrics/confusions.py", "rank[predicted] < rank[true]", "rank[predicted] != rank[true]", "test_tail_metrics.py"),
    Fault("metrics/confusions.py", "np.lexsort((predicted, true, -low))", "np.lexsort((predicted, true, -times / items[true]))", "test_tail_metrics.py"),
    Fault("metrics/sweep.py", "alpha=at - float(tau)", "alpha=-float(tau)", "test_tail_metrics.py"),
    Fault("metrics/sweep.py", "WORLDS[:, None] * np.log(", "-WORLDS[:, None] * np.log(", "test_tail_metrics.py"),
    Fault("data/predictions.py", "bad = np.isnan(outputs) | (outputs == np.inf)", "bad = np.isnan(outputs)", "test_predictions.py"),
    Fault("data/predictions.py", "                first += len(outputs)\n", "                first += 1\n", "test_predictions.py"),
    Fault("data/predictions.py", "{int(name): index for index, name in enumerate(classes)}", "{index: index for index in range(self.num_classes)}", "test_predictions.py"),
    Fault("data/predictions.py", "if found.dtype.itemsize > NAME_BYTES or found.dtype.itemsize * number > NAMES_BYTES:", "if False:", "test_predictions.py"),
    Fault("data/predictions.py", "        if math.prod(found.shape) != number:", "        if False:", "test_predictions.py"),
    Fault("data/predictions.py", "    if held != size:\n", "    if False:\n", "test_predictions.py"),
    Fault("data/predictions.py", "_header(stream)\n            if array.by_column:", "_header(stream)\n            if False:", "test_predictions.py"),
    Fault("report/files.py", "outputs, labels = outputs[:, columns], place[labels]", "outputs = outputs[:, columns]", "test_predictions.py"),
    Fault("report/files.py", "bin_confidence=np.full(bins.shape, np.nan)", "bin_confidence=np.zeros(bins.shape)", "test_predictions.py"),
    Fault("data/class_folders.py", "    _refuse_splits(path, classes)\n", "", "test_inspect.py"),
    Fault("data/class_folders.py", "    _refuse_splits(path, list(kept))", "    pass", "test_inspect.py"),
    Fault("data/class_folders.py", '("test", "testing")', '("test",)', "test_inspect.py"),
    Fault("data/sources.py", "numbered or all(os.path", "numbered and all(os.path", "test_inspect.py"),
    Fault("data/sources.py", "if numbered or all(", "if True or all(", "test_inspect.py"),
    Fault("data/reading.py", "        if len(row) != width:\n", "        if False:\n", "test_inspect.py"),
    Fault("data/class_folders.py", 'if name.lower() in TRAIN), "")', "), '')", "test_inspect.py"),
    Fault("report/changes.py", "known = tenths(change.value) and not", "known = not", "test_page_parts.py"),
    Fault("report/changes.py", "    if not tenths(change.value):\n        return \"\"\n", "", "test_page_parts.py"),
    Fault("report/count_specs.py", "places = range(len(names)) if in_rows else", "places =", "test_figures.py"),
    Fault("report/count_specs.py", "np.linspace(0, number_of_classes - 1, NAMED)", "np.linspace(0, number_of_classes // 2, NAMED)", "test_figures.py"),
    Fault("report/count_specs.py", "_column_names([ranks[place] for place in places])", "_column_names(list(places))", "test_figures.py"),
    Fault("report/count_specs.py", '"labelOverlap": "parity"', '"labelOverlap": False', "test_report_browser.py"),
    Fault("report/count_specs.py", "datum.name + ': ' + datum.counted", "datum.counted", "test_report_browser.py"),
    Fault("report/figures.py", "colours.get(found[1], found[0])", "colours[found[1]]", "test_figures.py"),
    Fault("report/inspection.py", 'prior.name(middle) if len(part) == 1 else f"{len(part):,} classes"', "prior.name(middle)", "test_inspect.py"),
    Fault("report/inspection.py", 'return "labels" if self.multilabel else self.unit', "return self.unit", "test_inspect.py"),
    Fault("report/inspection.py", 'else f"{low} to {high}"', 'else f"{prior.counts[middle]:,}"', "test_inspect.py"),
    Fault("report/inspection.py", "inner, members = order[1:-1], prior.groups()", 'inner, members = order[1:-1], {"many": order}', "test_inspect.py"),
    Fault("report/inspection.py", "< occurrences / 2", "<= occurrences / 2", "test_inspect.py"),
    Fault("report/inspection.py", "max(LVIS_THRESHOLD, min(0.1, 20 / prior.total))", "0.001", "test_inspect.py"),
    Fault("report/inspection.py", "length = math.log1p(int(prior.counts[middle])) / math.log1p(int(prior.counts.max())) * width", "length = int(prior.counts[middle]) / int(prior.counts.max()) * width", "test_inspect.py"),
    Fault("report/sections.py", 'for character in "<>&\\u2028\\u2029":', 'for character in "\\u2028\\u2029":', "test_report.py"),
    Fault("report/sections.py", "return html.escape(words.encode", "return str(words.encode", "test_report.py"),
    Fault("report/page_data.py", "if not seen.any():\n        return None", "if not seen.any():\n        return Headline(0.0, 0.0, 0.0)", "test_report.py"),
    Fault("report/page_data.py", "low, high = wilson_intervals(correct, items)", "low, high = wilson_intervals(items - correct, items)", "test_report.py"),
    Fault("report/page_data.py", 'rows = [classes | model["columns"]] if kind in ("classes", "marginal")', 'rows = [classes] if kind in ("classes", "marginal")', "test_figures.py"),
    Fault("report/page_data.py", '"as it is", sweep.as_it_is)', '"as it is", i)', "test_figures.py"),
    Fault("report/page_data.py", "heights[name] = last = max(values[name], last + room)", "heights[name] = last = values[name]", "test_figures.py"),
    Fault("report/figures.py", '{"data": {"name": "rows", "values": list(rows)}, "width": WIDTH}', '{"width": WIDTH}', "test_figures.py"),
    Fault("report/figures.py", "with written_whole(path) as scratch:", "scratch = path\n    if True:", "test_figures.py"),
    Fault("report/figures.py", '(b"tEXt", b"Description\\0"', '(b"tEXt", b"Comment\\0"', "test_figures.py"),
    Fault("report/changes.py", 'change and vars(change) | {"value": now[key]["value"] - was[key]["value"]}', "change and vars(change)", "test_page_parts.py"),
    Fault("cli/report.py", "paths and not any(isabs(path)", "paths and any(isabs(path)", "test_page_parts.py"),
    Fault("report/page.py", "write_text(path, self.to_html())", "Path(path).write_text(self.to_html(), encoding='utf-8')", "test_report.py"),
    Fault("report/sections.py", "for content in (*scripts, css)]", "for content in (*scripts[::-1], css)]", "test_report.py"),
    Fault("report/page_files/page.js", "ast: true, ", "", "test_report_browser.py"),
    Fault("metrics/intervals.py", "max(found - half, 0.0) if found > 0 else found", "found", "test_changes.py"),
    Fault("metrics/intervals.py", "((1 - shrunk) * own + shrunk * every) / items", "own.sum() / items.sum() / items", "test_intervals.py"),
    Fault("metrics/intervals.py", "((a.value - a.low, b.high - b.value), (a.high - a.value, b.value - b.low))", "((a.value - a.low, b.value - b.low), (a.high - a.value, b.high - b.value))", "test_changes.py"),
    Fault("metrics/answers.py", "    if any(not np.array_equal(target, each.target) for each in (*one, *other)):\n", "    if False:\n", "test_changes.py"),
    Fault("metrics/calibration.py", "(np.cumsum(n) - n / 2) * wanted // n.sum()", "np.floor(sure / n * wanted)", "test_changes.py"),
    Fault("metrics/evaluation.py", "math.floor(1000 * round(abs(value), 6) + 0.500001)", "round(1000 * abs(value))", "test_changes.py"),
    Fault("report/changes.py", "change_interval(k1, k2, n2, both if len(both) else None, items_before=n1)", "change_interval(k1, k2, n2, None, items_before=n1)", "test_page_parts.py"),
    Fault("report/changes.py", "return change.low > 0 or change.high < 0", "return True", "test_page_parts.py"),
    Fault("report/heat_map.py", "order = np.lexsort((chance, share))", "order = np.argsort(share, kind='stable')", "test_page_parts.py"),
    Fault("report/pictures.py", "surest = [index[lost[index] > 0] for _, index in reversed(model.members)]", "surest = [index[lost[index] > 0] for _, index in model.members]", "test_multilabel_report.py"),
    Fault("report/pictures.py", "target[:, j] == 1) & ~predicted[:, j]", "target[:, j] == 1) & predicted[:, j]", "test_multilabel_report.py"),
    Fault("report/pictures.py", "rows[np.argsort(scores[rows, j]", "rows[np.argsort(-scores[rows, j]", "test_multilabel_report.py"),
    Fault("report/multilabel_data.py", "return self.evaluation.members(self.cuts.many, self.cuts.few)", "return self.evaluation.members()", "test_multilabel_report.py"),
    Fault("report/multilabel_data.py", "scores, rows = evaluation.scores(cuts.many, cuts.few), evaluation.per_class", "scores, rows = evaluation.scores(), evaluation.per_class", "test_multilabel_report.py"),
    Fault("report/multilabel_data.py", "known = target >= 0", "known = target >= -1", "test_multilabel_report.py"),
    Fault("report/page_files/table.js", "what: title, of: \"before\"", "what: title, of: \"after\"", "test_page_reading.py"),
    Fault("report/page_files/page.css", "white-space: normal; overflow-wrap: anywhere; }", "}", "test_page_browser.py"),
    Fault("report/page_files/page.css", "@media screen and (max-width: 760px)", "@media (max-width: 760px)", "test_page_reading.py"),
    Fault("cli/shared.py", "b\",\" in first or alone else", "b\",\" in first else", "test_commands.py"),
    Fault("report/pictures.py", "return whole if inside and os.path.isfile(whole) else None", "return whole if os.path.isfile(whole) else None", "test_page_parts.py"),
    Fault("report/class_table.py", "union = items + predicted - correct", "union = items + predicted", "test_page_parts.py"),
    Fault("report/multilabel_changes.py", "return interval_of(now - was) or UNKNOWN", "return interval_of(now) or UNKNOWN", "test_page_parts.py"),
    Fault("report/page_data.py", "run.groups(model.cuts.many, model.cuts.few)[group].ece", "run.groups()[group].ece", "test_page_parts.py"),
    Fault("report/page_files/table.js", "(/^[=+\\-@\\t\\r]/.test(text) ? `'${text}` : text)", "text", "test_page_browser.py"),
    Fault("report/page_files/page.js", "{ value: -change.value, low: -change.high, high: -change.low }", "{ value: -change.value, low: -change.low, high: -change.high }", "test_page_browser.py"),
    Fault("report/page_files/page.js", "Math.floor(1000 * Math.abs(share) + 0.500001)", "Math.floor(1000 * Math.abs(share) + 0.4999)", "test_page_browser.py"),
    Fault("report/tables.py", "deviation:.{digits}f", "deviation:.1f", "test_detection_report.py"),
    Fault("report/tables.py", "known = [value for value in values if value is not None]", "known = [value or 0.0 for value in values]", "test_detection_report.py"),
    Fault("report/tables.py", "no_wrap=place > 0", "no_wrap=False", "test_tables.py"),
    Fault("report/tables.py", "Text(visible(cell)) for cell in row", "Text(cell) for cell in row", "test_tables.py"),
    Fault("data/prediction_priors.py", "prior = Prior.from_counts(dict.fromkeys(named.columns, 0) | found, total)", "pass", "test_report.py"),
    # measures of detectors, and what is adjusted afterwards
    Fault("metrics/detection_matching.py", "verified & exhaustive", "verified", "test_detection_measures.py"),
    Fault("metrics/detection_matching.py", "np.where(is_best, np.arange(len(place)), -1), first", "np.where(is_best, 0, -1), first", "test_detection_measures.py"),
    Fault("metrics/detection_matching.py", "& free[:, instance], value", ", value", "test_detection_measures.py"),
    Fault("metrics/detection_measures.py", "matches.class_rank < best)\n    return places", "matches.image_rank < best)\n    return places", "test_detection_measures.py"),
    Fault("metrics/detection_measures.py", "np.maximum.accumulate(keys[::-1])[::-1]", "keys", "test_detection_measures.py"),
    Fault("metrics/detection_measures.py", "+ _uncounted(matches, hits, iou)", "", "test_detection_measures.py"),
    Fault("metrics/detection_best.py", "detections.scores[rows] >= self._least[category]", "detections.scores[rows] > 2", "test_detection_measures.py"),
    Fault("metrics/detection.py", "- shift[columns]", "+ shift[columns]", "test_detection_measures.py"),
    Fault("losses/seesaw.py", "logits.detach().log_softmax(dim)", "logits.log_softmax(dim)", "test_detector_losses.py"),
    Fault("losses/federated.py", "chosen | (target > 0)", "chosen", "test_loss_contract.py"),
    Fault("losses/equalization_v2.py", "size * (1 - target) * negative", "size * (1 - target)", "test_detector_losses.py"),
    Fault("losses/seesaw.py", "    return rows.back(cross_entropy(", "    return (cross_entropy(", "test_loss_contract.py"),
    Fault("losses/seesaw.py", 'check_logs(log_prior, "log_prior", "prior.log()", of_probabilities=True)', "pass", "test_detector_losses.py"),
    Fault("losses/federated.py", "rows = Rows(logits, target, self.dim)", "rows = Rows(logits, target, 1)", "test_detector_losses.py"),
    Fault("losses/federated.py", "chances = self.chances.to(seen.device)", "chances = self.chances", "test_detector_losses.py"),
    Fault("losses/equalization_v2.py", "size = torch.where(counts, size, 0.0)", "pass", "test_detector_losses.py"),
    Fault("losses/equalization_v2.py", "        self.follow(logits)\n", "", "test_detector_losses.py"),
    Fault("losses/equalization_v2.py", 'grown = ("positives", "negatives")', "grown = ()", "test_detector_losses.py"),
    # detectors on whole batches
    Fault("models/batched_rcnn.py", "(shared >= matcher.high_threshold) | best", "shared >= matcher.high_threshold", "test_batched_rcnn.py"),
    Fault("models/batched_rcnn.py", "torch.where(there, labels, -1)", "labels", "test_batched_rcnn.py"),
    Fault("models/batched_rcnn.py", "> overlap).triu_(1)", "> overlap).triu_(0)", "test_batched_rcnn.py"),
    Fault("models/batched_rcnn.py", "range(1, boxes.shape[1] + 1)", "range(1, 49)", "test_batched_rcnn.py"),
    Fault("models/batched_rcnn.py", "+ self.corners[level - 2].repeat(1, 2)", "", "test_batched_rcnn.py"),
    Fault("models/batched_rcnn.py", "batch.first[image] + instance", "instance", "test_batched_rcnn.py"),
    Fault("models/batched_rcnn.py", "torch.where(counted, cost, 0.0).sum()", "cost.sum()", "test_batched_rcnn.py"),
    Fault("models/batched_rcnn.py", "return total / number", "return total", "test_detection_distributed.py"),
    Fault("models/batched_rcnn.py", "[rank * rows : (rank + 1) * rows]", "[:rows]", "test_detection_distributed.py"),
    Fault("training/resident.py", "[item, flipped(*item)] if", "[item, item] if", "test_batched_rcnn.py"),
    Fault("training/queue.py", "return 0 if self.trained else 1", "return 1", "test_queue.py"),
    Fault("training/detection.py", '= state.get("features_seconds")', '= None', "test_detection_tables.py"),
    Fault("experiments/voc2012_lt/recipe.py", "SECOND_TRIED = second_stage(TRIED,", "SECOND_TRIED = second_stage(BASE,", "test_detection_tables.py"),
    Fault("experiments/voc2012_lt/recipe.py", "    write_text(path, json.dumps(left))", "    path.parent.mkdir(parents=True, exist_ok=True)\n    path.write_text(json.dumps(left))", "test_detection_tables.py"),
    Fault("data/masks.py", "lengths - torch.where(turn > 2, lengths.roll(2), 0)", "lengths - torch.where(turn > 1, lengths.roll(2), 0)", "test_coco_images.py"),
    Fault("training/detection.py", "- last >= every, over())", "- last >= every, False)", "test_detection_training.py"),
    Fault("losses/shared.py", "(target == target) & ", "", "test_loss_contract.py"),
    Fault("losses/balanced_sigmoid.py", "torch.where(counts, target, 0).to(logits.dtype), counts", "target.to(logits.dtype), None", "test_loss_contract.py"),
    Fault("losses/balanced_sigmoid.py", "counts.any(dim).sum()", "counts.all(dim).sum()", "test_loss_contract.py"),
    Fault("losses/balanced_sigmoid.py", "rows.flat(foreground), rows.elements(weight)", "rows.flat(foreground), rows.flat(weight)", "test_losses.py"),
    Fault("losses/kernels.py", "inside = inside & (y == y) & (y != ignore)", "inside = inside & (y != ignore)", KERNELS),
    Fault("losses/kernels.py", "result = tl.where((y == y) & (y != ignore), result, 0.0)", "pass", KERNELS),
    Fault("losses/shared.py", "target = target.squeeze(dim) if", "target = target if", "test_loss_contract.py"),
    Fault("losses/shared.py", "loss.reshape(*rows, -1).movedim(-1, self.dim)", "loss.reshape(self.shape)", "test_loss_contract.py"),
    Fault("losses/shared.py", "    vector = vector.to(logits.device)\n", "", "test_loss_contract.py"),
    Fault("losses/shared.py", "self._buffers[name] = buffer.to(logits.device)", "pass", "test_loss_contract.py"),
    Fault("losses/shared.py", "type(logits) is not Tensor or logits.is_meta:", "type(logits) is not Tensor:", "test_loss_contract.py"),
    Fault("losses/balanced_sigmoid.py", "low >= 0 and (ignore_index < 0 or high < ignore_index)", "low >= 0", "test_losses.py"),
    Fault("losses/balanced_sigmoid.py", "low >= 0 and (ignore_index < 0 or high < ignore_index)", "ignore_index < 0 or high < ignore_index", "test_losses.py"),
    Fault("losses/balanced_sigmoid.py", "    if none_missing(target, ignore_index):\n", "    if False:\n", "test_losses.py"),
    Fault("losses/shared.py", "return torch.where(counts, smooth, 0.0), counts.sum()", "return smooth, counts.sum()", "test_loss_contract.py"),
    Fault("losses/shared.py", "return torch.where(counts, smooth, 0.0), counts.sum()", "return torch.where(counts, smooth, 0.0), rows_of(logits)", "test_loss_contract.py"),
    Fault("losses/balanced_softmax.py", "ignore_index, label_smoothing = -100, 0.0", "ignore_index = -100", "test_losses.py"),
    Fault("losses/shared.py", "self._lost = (*self._lost, name)\n                continue", "continue", "test_loss_contract.py"),
    Fault("losses/shared.py", "self._lost = (*self._lost, name)\n            return given", "return given", "test_huggingface.py"),
    Fault("losses/shared.py", "self._kept = {**self._kept, name: source}", "pass", "test_loss_contract.py"),
    Fault("losses/shared.py", "        if differ:\n            shown", "        if False:\n            shown", "test_loss_contract.py"),
    Fault("losses/shared.py", "if of_probabilities and low >= 0 and high < 1 and", "if low > high and", "test_losses.py"),
    Fault("samplers/resumable.py", "class ResumableSampler(DistributedSampler[int], ABC):", "from torch.utils.data import Sampler\nclass ResumableSampler(Sampler[int], ABC):", "test_samplers_frameworks.py"),
    Fault("samplers/resumable.py", 'getattr(owner, "num_processes", 1) > 1', "False", "test_samplers_frameworks.py"),
    Fault("serving/rebalanced.py", "text.ljust(-(-room // PAGE) * PAGE)", "text", "test_serving.py"),
    Fault("prior.py", "return restored_prior, (self.to_json(),)", "return Prior, (self._probabilities, self._counts, self._total, self.class_names, self.class_ids)", "test_prior.py"),
    Fault("models/balanced_head.py", "-1 if isinstance(head, nn.Linear) else -1 - len(head.kernel_size)", "-1", "test_balanced_head.py"),
    Fault("models/balanced_head.py", "                del module._forward_hooks[key]\n", "                pass\n", "test_balanced_head.py"),
    Fault("models/balanced_head.py", "        if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):\n            continue", "        if False:\n            continue", "test_balanced_head.py"),
    Fault("experiments/table2/control.py", "is None else ours - theirs", "is None else theirs - ours", "test_detection_report.py"),
    Fault("losses/shared.py", "return target.long() != ignore_index", "return target != ignore_index", "test_loss_contract.py"),
    Fault("losses/shared.py", "or torch.autograd.forward_ad._current_level >= 0", "", "test_loss_kernels.py"),
    Fault("training/detection.py", "signal.signal(signal.SIGINT, signal.SIG_IGN)", "pass", "test_detection_tables.py"),
    # what the queue promises for both kinds of runs
    Fault("training/progress.py", "if self.pressed or not self._training:", "if self.pressed:", "test_queue.py"),
    Fault("training/progress.py", "for number in (signal.SIGINT, signal.SIGTERM):", "for number in (signal.SIGINT,):", "test_queue.py"),
    Fault("training/queue.py", "if now - saved >= SAVE_EVERY and not over:", "if False:", "test_queue.py"),
    Fault("training/kept.py", "yield self._kind.agree(free)", "yield True", "test_queue.py"),
    Fault("training/kept.py", 'f"{record}.claim", self._path(cell, "claim")', 'f"{record}.claim", self._settings.claims / "files"', "test_queue.py"),
    Fault("training/kept.py", 'self._settings.claims / f"{record}.claim", self', 'self._path(cell, "record.claim"), self', "test_queue.py"),
    Fault("training/queue.py", "finished = str(cell) in self.recorded_by_now()", "finished = False", "test_queue.py"),
    Fault("training/kept.py", '        if self._settings.device.type == "cpu":\n', "        if False:\n", "test_queue.py"),
    Fault("training/weights.py", "    except (OSError, RuntimeError) as error:", "    except OSError as error:", "test_damaged_files.py"),
    Fault("training/weights.py", "    except Exception as error:", "    except RuntimeError as error:", "test_damaged_files.py"),
    Fault("models/weights.py", "if extra := sorted(given.keys() - own.keys()):", "if extra := sorted(set()):", "test_classifiers.py"),
    Fault("models/weights.py", "lacks {_named(missing)} of this network", "lacks {len(missing)} of this network", "test_classifiers.py"),
    Fault("models/classifiers.py", "without=f\"{last}.\", log=log)", "log=log)", "test_classifiers.py"),
    Fault("models/processes.py", "        torch.distributed.destroy_process_group()", "        pass", "test_processes.py"),
    Fault("experiments/resnet32/fused.py", "if height % 4 or width % 4 or", "if height % 4 or", FUSED),
    Fault("experiments/resnet32/fused.py", "    _check_sides(height, width, pair)\n    block =", "    block =", FUSED),
    Fault("training/kinds.py", "last > 2 * first + 1", "last > 2 * first", "test_queue.py"),
    Fault("training/kinds.py", "torch.as_tensor(self.losses)[: self.iteration]", "torch.as_tensor(self.losses)", "test_queue.py"),
    Fault("training/queue.py", "                self.warned.add(cell)\n", "", "test_queue.py"),
    Fault("cli/predict.py", "without if not whole.exists() and without.is_file() else whole", "whole", "test_train.py"),
    Fault("models/weights.py", "return own or tensors, bool(own)", "return tensors, bool(own)", "test_train_again.py"),
    Fault("models/weights.py", 'content.get("stride") == "1x1" else "3x3"', 'content.get("stride") == "?" else "3x3"', "test_classifiers.py"),
    Fault("models/weights.py", 'WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model")', 'WRAPPERS = ("model", "state_dict", "model_state_dict", "model_ema", "state_dict_ema")', "test_classifiers.py"),
    Fault("models/weights.py", "{name.removeprefix(prefix) for name in names} >= set(own):", "True:", "test_classifiers.py"),
    Fault("models/weights.py", "if all(name.startswith(prefix) for name in names) and ", "if ", "test_classifiers.py"),
    Fault("models/weights.py", "return bool(pairs) and all(isinstance(name, str)", "return all(isinstance(name, str)", "test_classifiers.py"),
    Fault("models/weights.py", "isinstance(error, pickle.UnpicklingError) and (found", "False and (found", "test_classifiers.py"),
    Fault("models/weights.py", 'map_location="cpu", weights_only=True)', 'map_location="cpu", weights_only=False)', "test_classifiers.py"),
    Fault("models/classifiers.py", "if of_a_run and first is not None", "if first is not None", "test_classifiers.py"),
    Fault("models/classifiers.py", "if has_small_stem(network) and size > SMALL:", "if False:", "test_train_again.py"),
    Fault("cli/training.py", "options.weights is not None and not has_small_stem(network)", "options.weights is not None", "test_train_again.py"),
    Fault("cli/trained.py", "sorted(models, key=lambda model: -_balanced(model))", "sorted(models, key=_balanced)", "test_train_again.py"),
    Fault("cli/trained.py", "if lead is not None and sure(lead) else", "if True else", "test_train_again.py"),
    Fault("cli/trained.py", "if top1 <= common:", "if top1 > common:", "test_train_again.py"),
    Fault("cli/trained.py", "all(one.low <= guessing for one in balanced)", "all(one.value > guessing for one in balanced)", "test_train_again.py"),
    Fault("cli/training.py", "if options.weights is None and (advice := few_images(len(data.train))):", "if advice := few_images(10**9):", "test_train_again.py"),
    Fault("training/images.py", "        self._planned -= sum(run.iteration for run in runs)  #", "        #", "test_train_progress.py"),
    Fault("training/queue.py", '"after its last iteration" if run.done else ', "", "test_queue.py"),
    Fault("training/run_folder.py", '{"resize": stored_side(self.size), ', '{"resize": self.size, ', "test_train.py"),
    Fault("cli/predict.py", 'if str(target) == "uniform":', "if False:", "test_train.py"),
    Fault("report/changes.py", 'return f"may have changed either way{ends}" if known and', "return stays if known and", "test_page_parts.py"),
    Fault("cli/training.py", "expected a number above 0 and below 1,000,000", "expected a number above 0", "test_train_again.py"),
    Fault("training/run_folder.py", "path.name if path.name != MODEL else", "path.name if path.name else", "test_train_again.py"),
    Fault("cli/predict.py", "listed(images or path.parent, line)", "listed(path.parent, line)", "test_train_again.py"),
    Fault("cli/image_sources.py", "given.held_out, seed=0)", "given.held_out, seed=time.time_ns() % 1000)", "test_train_again.py"),
    Fault("cli/__init__.py", "        time.sleep(SECONDS_FOR_THE_FIRST)", "        pass", "test_train_again.py"),
    Fault("cli/own_tables.py", "if place is not None and not place.exists() and not download:", "if False:", "test_own_tables.py"),
    Fault("cli/own_tables.py", "    data = known()\n    if not found", "    if not found", "test_own_tables.py"),
    Fault("cli/own_tables.py", "        _check_same_images(options.recorded(table.name, ImageRecord), data, known)\n", "        pass\n", "test_own_tables.py"),
    Fault("cli/own_tables.py", "for run in runs if run.complete != smoke_test}", "for run in runs}", "test_own_tables.py"),
    Fault("models/weights.py", "    except Exception as error:  # both", "    except RuntimeError as error:  # both", "test_damaged_files.py"),
    Fault("training/records.py", "kind = min(kinds, key=lambda kind: ", "kind = min(kinds[:1], key=lambda kind: ", "test_records.py"),
    Fault("training/classification_runs.py", "return logits.softmax(1) if declared is None else declared(logits)", "return logits.softmax(1)", "test_classification_runs.py"),
    Fault("training/classification_runs.py", "self.kernels.trained if recipe.backbone is None else self.kernels.frozen", "self.kernels.trained", "test_classification_runs.py"),
    Fault("cli/run.py", "args = [word, *args[:before], *args[before + 1 :]]", "pass", "test_commands.py"),
    Fault("samplers/resumable.py", "self.epoch, self.seed = before", "pass", "test_class_balanced_sampler.py"),
    Fault("experiments/table2/control.py", "record.recipe.get(\"start\") or record.method, record.backbone", "record.recipe.get(\"start\") or record.method", "test_detection_report.py"),
    Fault("experiments/table2/control.py", "abs(middle) <= 2 * error", "abs(middle) < 0", "test_detection_report.py"),
    Fault("models/mask_rcnn.py", "except URLError as error", "except KeyError as error", "test_detection_tables.py"),
    Fault("data/masks.py", "return row, place - starts[row]", "return row, place - starts[0]", "test_coco_images.py"),
    Fault("report/detections.py", "        if covered < least:", "        if covered <= least:", "test_detections.py"),
    Fault("report/detections.py", "    for mark in reversed(marks):\n        _outline", "    for mark in marks:\n        _outline", "test_detections.py"),
    Fault("report/detections.py", "size[0] - 1.0) for x in box", "size[0] + 9.0) for x in box", "test_detections.py"),
    Fault("report/detections.py", "text + \"...\" + after) > room", "text + \"...\") > room", "test_detections.py"),
    Fault("report/detections.py", "if c.isascii() else \"?\"", "if c else \"?\"", "test_detections.py"),
    Fault("report/compared.py", "\"point\": most == 1}", "\"point\": False}", "test_compared.py"),
    Fault("report/compared.py", "dashed=not one.right", "dashed=one.right", "test_compared.py"),
    Fault("report/compared.py", '"share": 100 * share}', '"share": share}', "test_compared.py"),
    Fault("metrics/detection_measures.py", "right[matches.order[matches.hits[matches.hits_iou == _number_of(iou)]]] = True", "right[matches.hits[matches.hits_iou == _number_of(iou)]] = True", "test_detection_measures.py"),
    Fault("metrics/detection_measures.py", "/ every for group in GROUPS}", "/ every[-1] for group in GROUPS}", "test_detection_measures.py"),
    Fault("cli/detect_pictures.py", "(-held[i], offsets[i + 1] - offsets[i])", "(-held[i], offsets[i] - offsets[i + 1])", "test_compared.py"),
    Fault("cli/detect_pictures.py", "found.scores[rows], kind=\"stable\")][:LISTED]", "found.scores[rows], kind=\"stable\")]", "test_compared.py"),
    Fault("metrics/detection.py", "if ids.get(name, identity) != identity and", "if identity not in categories and", "test_detection_inputs.py"),
    Fault("metrics/detection.py", "if key not in image and given:", "if False:", "test_detection_inputs.py"),
    Fault("metrics/detection.py", "image.setdefault(\"not_exhaustive_category_ids\", [])", "image[\"not_exhaustive_category_ids\"] = []", "test_detection_inputs.py"),
    Fault("metrics/detection.py", "not in (\"r\", \"c\", \"f\"):", "is None:", "test_detection_inputs.py"),
    Fault("metrics/detection.py", "np.argwhere(~np.isfinite(values))", "np.argwhere(values > np.inf)", "test_detection_inputs.py"),
    Fault("metrics/detection_measures.py", "matches.scores.min() >= 0 and matches.scores.max() <= 1", "True", "test_detection_inputs.py"),
    Fault("cli/detect.py", "        if not truth.has_masks:\n            truth.check_masks(found)\n", "", "test_detection_inputs.py"),
    Fault("cli/detect.py", "if tau is not None and not adjusts:", "if False:", "test_detection_inputs.py"),
    Fault("cli/detect.py", "        if path is not None:\n            raise ValueError(\"--prior is for", "        if False:\n            raise ValueError(\"--prior is for", "test_softmax_detectors.py"),
    Fault("models/softmax_detectors.py", "parts if background == 0 else parts[::-1]", "parts", "test_softmax_detectors.py"),
    Fault("metrics/detection.py", "softmax_shift(prior, tau=tau).numpy()", "softmax_shift(prior).numpy()", "test_softmax_detectors.py"),
    Fault("cli/detect.py", "if softmax and not isinstance(part, SoftmaxClassification):", "if softmax and not part:", "test_softmax_detectors.py"),
    Fault("data/masks.py", "runs = total[target] - (total - arranged)[chain]", "runs = total[target] - total[chain]", "test_damaged_inputs.py test_coco_images.py"),
    Fault("data/masks.py", "wrong |= np.bincount(of, runs, minlength=len(texts)) != pixels", "wrong |= np.bincount(of, runs, minlength=len(texts)) > pixels", "test_damaged_inputs.py test_coco_images.py"),
    Fault("metrics/detection.py", "prior.class_ids or ids, strict=True) if i != known)", "prior.class_ids or ids, strict=True) if i is known)", "test_damaged_inputs.py"),
    Fault("cli/detect.py", "SoftmaxClassification() if plain else seesaw", "SoftmaxClassification() if columns else seesaw", "test_softmax_detectors.py"),
    Fault("experiments/documents/voc2012_lt.py", "CUT: cut_part(records[CUT])", "CUT: cut_part(records[NAME])", "test_detection_report.py"),
    Fault("training/records.py", "removeprefix(f'{named or table}/')", "removeprefix(f'{table}/')", "test_detection_report.py"),
    Fault("experiments/voc2012_lt/report.py", "(1 if both[a] > both[b] else -1)", "(-1 if both[a] > both[b] else 1)", "test_detection_report.py"),
    Fault("experiments/documents/table2.py", "_range([run.seconds for run in runs if run.iterations])", "_range([run.seconds for run in runs])", "test_detection_report.py"),
    Fault("experiments/documents/table2.py", "low_to_high(values) if values else UNKNOWN", "low_to_high(values or [0.0])", "test_detection_report.py"),
    Fault("experiments/documents/voc2012_lt.py", "([COLUMNS, BESIDE], CHANCE, SEEN) if measures else ([COLUMNS],)", "([COLUMNS, BESIDE], CHANCE, SEEN)", "test_detection_report.py"),
    Fault("experiments/table2/report.py", "None if value is None else 100 * value", "None if value is None else value", "test_detection_report.py"),
    Fault("experiments/table2/report.py", "measures.get(\"segm\", measures.get(\"bbox\", {}))", "measures.get(\"bbox\", {})", "test_detection_report.py"),
    Fault("experiments/table2/control.py", "[found.get(seed) for seed in seeds]", "[*found.values()]", "test_detection_report.py"),
    Fault("experiments/table2/control.py", "if others and columns else", "if others else", "test_detection_report.py"),
    Fault("experiments/table2/control.py", "stdev(differences) / len(differences) ** 0.5", "stdev(differences) / len(differences)", "test_detection_report.py"),
    # the reference and the README's picture
    Fault("__init__.pyi", "from equipoise.losses.seesaw import seesaw_loss as seesaw_loss\n", "", "test_site.py"),
    Fault("losses/ldam.py", "max_margin   the margin of the rarest class, on the scale of cosines", "", "test_site.py"),
    Fault("prior.py", "  # one per class: ids of a COCO or LVIS file", "", "test_site.py"),
    Fault("metrics/evaluation.py", "\"\"\"How many test items were evaluated.\"\"\"", "pass", "test_site.py"),
    Fault("experiments/documents/tiny_imagenet_lt_figure.py", "\"accuracy\": mean(values), \"shown\": f\"{mean(values):.1f}\"", "\"accuracy\": values[0], \"shown\": f\"{values[0]:.1f}\"", "test_tiny_imagenet_lt.py"),
    Fault("experiments/documents/tiny_imagenet_lt_figure.py", "float(getattr(run, group))", "float(run.top1)", "test_tiny_imagenet_lt.py"),
    Fault("experiments/documents/table1.py", "text((*column, name)) for column in columns)] for name in methods", "text((*column, name)) for column in columns)] for name in table1.METHODS", "test_table1_report.py"),
    Fault("data/coco.py", "    if width < 0 or height < 0:\n", "    if width < 0 and height < 0:\n", "test_detection_inputs.py"),
    Fault("metrics/detection.py", "        check_masks_of(found, content, annotations)\n", "", "test_detection_inputs.py"),
    Fault("data/coco.py", "        check_masks_of(found, content, self.file)\n", "", "test_coco_images.py"),
    Fault("data/masks.py", "if 0 not in size and mine != size:", "if False:", "test_detection_inputs.py"),
    Fault("metrics/detection.py", "if len(polygon) < 6 or len(polygon) % 2:", "if len(polygon) % 2:", "test_damaged_inputs.py"),
    Fault("training/detection.py", "                \"categories\": [{\"id\": key, \"name\": name} for key, name in self.data.categories.items()],\n", "", "test_detection_tables.py"),
    Fault("data/coco.py", "        if ours != theirs:\n", "        if ours is None or theirs is None or ours[0] != theirs[0]:\n", "test_detection_tables.py"),
    Fault("cli/detect_pictures.py", " if (groups[classes] == group).any())", ")", "test_compared.py"),
    Fault("cli/shared.py", "    except BrokenPipeError:  # of `| head`, and not of a file: typer ends the command without a word\n        raise\n", "", "test_commands.py"),
    Fault("cli/__init__.py", "                show_warnings(lambda text: typer.echo(text, err=True))\n", "", "test_detection_inputs.py"),
    Fault("experiments/mosaic_lt/recipe.py", "if not (found := folder / \"heldout.json\").is_file():", "if not (found := folder / \"heldout.json\"):", "test_detection_tables.py"),
    # the queue beside other processes, files in odd places
    Fault("training/queue.py", "            return self._next_group(claims)\n", "            pass\n", "test_queue.py"),
    Fault("training/queue.py", "        if self.kind.agree(self.interrupts.pressed):\n            raise", "        if False:\n            raise", "test_queue.py"),
    Fault("training/queue.py", "if run.iteration > reached[cell]]", "]", "test_classification_runs.py"),
    Fault("training/kinds.py", 'all_finite(self.state_dict()["model"])', "True", "test_training.py"),
    Fault("files.py", "    if given.exists() and not given.is_file()", "    given = given.resolve()\n    if given.exists() and not given.is_file()", "test_files.py"),
    Fault("files.py", "    except OSError:  # a file system without links", "    except InterruptedError:", "test_files.py"),
    Fault("files.py", 'open(place, "xb")', 'open(place, "wb")', "test_files.py"),
    Fault("training/images.py", "np.tile(part, world()[0])", "part", "test_train.py"),
    Fault("training/images.py", '{"model": f"features-{width}", "augmentation": "none"}', '{"model": f"features-{width}"}', "test_train.py"),
    Fault("training/images.py", 'data | start', 'data', "test_train_again.py"),
    Fault("cli/training.py", 'or options.augment not in (None, "none")):', "):", "test_train.py"),
    Fault("cli/training.py", '"images", "weights") if', '"images") if', "test_train_again.py"),
    Fault("cli/run.py", "args[before - 1] not in with_value", "True", "test_commands.py"),
]
# fmt: on


def test_file(name: str) -> Path:
    """Where a test file lies below tests/; names are unique."""
    (path,) = (ROOT / "tests").rglob(name)
    return path


def broken(fault: Fault, source: Path) -> str:
    """Apply a fault to a copy of the package; what is wrong with the fault itself, or ""."""
    path = source / "equipoise" / fault.file
    text = path.read_text()
    if text.count(fault.old) != 1:
        return f"the text occurs {text.count(fault.old)} times, expected once"
    path.write_text(text.replace(fault.old, fault.new))
    return ""


class QuickestFirst:
    """A plugin of pytest: the tests of a file in the order of the seconds they took before; and what they take now."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.before, self.now = seconds, dict.fromkeys(seconds, 0.0)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        files = list(dict.fromkeys(item.path for item in items))
        items.sort(key=lambda item: (files.index(item.path), self.before.get(item.nodeid, 0.0)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.now[report.nodeid] = self.now.get(report.nodeid, 0.0) + report.duration


def run_tests(source: Path, tests: str, plugin: QuickestFirst) -> int:
    """The named test files against the package in `source`, in this process; pytest's exit code."""
    os.environ |= {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}  # for the processes that tests start
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(source))
    paths = [str(test_file(name)) for name in tests.split()]
    deselect = [f"--deselect={test_file(name.partition('::')[0])}::{name.partition('::')[2]}" for name in SLOW]
    quiet = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header"]
    return pytest.main([*quiet, *deselect, *paths], plugins=[plugin])


def start(fault: Fault | None, tests: str, folder: Path, seconds: dict[str, float]) -> int:
    """A process that runs `tests` with `fault` applied, and writes what it has to say to files; its id.

    Forked, so that PyTorch and the other libraries, which `import_libraries` imported, are not imported hundreds of times.
    """
    if pid := os.fork():
        return pid
    code = 98
    try:
        with open(folder / "output", "w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        source = Path(shutil.copytree(ROOT / "src", folder / "src"))
        problem = "" if fault is None else broken(fault, source)
        plugin = QuickestFirst(seconds)
        code = int(run_tests(source, tests, plugin)) if not problem else 99
        (folder / "seconds").write_text(json.dumps(plugin.now))
        print(problem)
    except BaseException:  # of this script itself: a process that was forked must not go on as if it had not been
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def judged(fault: Fault | None, code: int, output: str) -> str:
    """ "" where all is as it should be, else what is wrong."""
    if fault is None:
        return "" if code == 0 else f"the tests fail without a fault:\n{output[-3000:]}"
    return "" if code == 1 else f"NOT CAUGHT (pytest exit code {code}) {output[-300:]}"


def outcomes(tasks: list[tuple[Fault | None, str]], seconds: dict[str, float]) -> Generator[tuple[Fault | None, str]]:
    """What became of each task, as they end; as many at a time as there are cores.

    `seconds` of the tests say which of them go first; those of tests without a fault are added to it.
    """
    waiting, running = list(reversed(tasks)), {}  # type: ignore[var-annotated]
    with tempfile.TemporaryDirectory() as folder:
        try:
            while waiting or running:
                while waiting and len(running) < (os.cpu_count() or 1):
                    fault, tests = waiting.pop()
                    place = Path(folder) / str(len(waiting))
                    place.mkdir()
                    running[start(fault, tests, place, seconds)] = fault, place
                pid, status = os.wait()
                fault, place = running.pop(pid)
                if fault is None and (place / "seconds").exists():
                    seconds |= json.loads((place / "seconds").read_text())
                yield fault, judged(fault, os.waitstatus_to_exitcode(status), (place / "output").read_text())
                shutil.rmtree(place)
        finally:  # nobody wants to know the rest
            for pid in running:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def import_libraries() -> None:
    """What most tests import, but for the package itself: every process forked from this one has it."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before PyTorch is imported: threads do not survive a fork
    for name in ("torch", "torchvision", "sklearn.linear_model", "pandas", "typer"):
        importlib.import_module(name)


def main() -> None:
    import_libraries()
    wanted = " ".join(sys.argv[1:])
    faults = [fault for fault in FAULTS if wanted in f"{fault.file} {fault.old} {fault.new}"]
    every_test = sorted({name for fault in faults for name in fault.tests.split()})
    seconds: dict[str, float] = {}
    with closing(outcomes([(None, name) for name in every_test], seconds)) as without_faults:
        for _, problem in without_faults:
            if problem:
                sys.exit(problem)
    missed = 0
    for fault, problem in outcomes([(fault, fault.tests) for fault in faults], seconds):
        assert fault is not None
        missed += bool(problem)
        shown = f"{fault.file}: {fault.old.strip()!r} -> {fault.new.strip()!r}"
        print(f"{problem or 'caught':<8} {shown}", flush=True)
    print(f"{len(faults) - missed} of {len(faults)} faults caught")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
