"""JPEG files decoded a batch at a time on the device: what Pillow makes of them, turned, cut and resized alike.

Without a GPU torchvision decodes on the CPU, through the same code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from equipoise.data import gpu_images
from equipoise.data.gpu_images import EncodedStream, GpuDecoder, collated, why_not_on
from equipoise.data.image_files import decode
from equipoise.data.images import ImageList

CPU = torch.device("cpu")
DEVICES = [CPU, torch.device("cuda", 0)] if torch.cuda.is_available() else [CPU]
LEFT_TO_PILLOW = ("cmyk.jpg", "progressive.jpg", "raw.jpg", "some.png")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageList:
    """A smooth picture in every orientation and kind; two shapes, so that two groups are resized."""
    folder = tmp_path_factory.mktemp("kinds")
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    picture = Image.fromarray(noise).resize((80, 60))
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        picture.save(folder / f"turn{orientation}.jpg", exif=exif, quality=95)
    picture.crop((0, 0, 70, 50)).save(folder / "other.jpg", quality=95)
    picture.convert("L").save(folder / "grey.jpg", quality=95)
    picture.convert("CMYK").save(folder / "cmyk.jpg", quality=95)
    picture.save(folder / "progressive.jpg", progressive=True, quality=95)
    picture.save(folder / "raw.jpg", keep_rgb=True, quality=95)
    picture.save(folder / "some.png")
    return ImageList.of_files(sorted(folder.iterdir()))


def batch_of(images: ImageList, size: int = 40, **options: Any) -> gpu_images.EncodedBatch:
    stream = EncodedStream(images, size, **options)
    return collated([stream[index] for index in range(len(stream))])


def differences(images: ImageList, found: Tensor, resize: Any) -> dict[str, int]:
    """The largest difference from what Pillow makes, within two pixels of the border: beyond the middle square Pillow
    looks at its neighbours, too."""
    kept = decode(images, found.shape[-1], resize=resize).pixels.astype(int)
    apart = np.abs(kept - found.cpu().numpy())[..., 2:-2, 2:-2].max((1, 2, 3))
    return {Path(path).name: int(value) for path, value in zip(images.paths, apart, strict=True)}


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("resize", ["shorter", "square"])
def test_a_device_decodes_what_pillow_does(images: ImageList, resize: Any, device: torch.device) -> None:
    found = GpuDecoder(40, resize, device)(batch_of(images, resize=resize))
    assert (found.shape, found.dtype, found.device) == ((len(images), 3, 40, 40), torch.uint8, device)
    apart = differences(images, found, resize)
    assert {name for name in LEFT_TO_PILLOW if apart[name]} == set()
    # the same JPEG decoder, two ways to round a resized pixel; nvJPEG has its own arithmetic and upsampling
    assert {name: value for name, value in apart.items() if value > (1 if device == CPU else 12)} == {}


def test_what_a_gpu_cannot_decode_well_comes_decoded(images: ImageList) -> None:
    stream = EncodedStream(images, 40)
    squares = {Path(images.paths[index]).name for index in range(len(stream)) if stream[index].square is not None}
    assert squares == set(LEFT_TO_PILLOW)


def test_every_file_is_read_once_also_one_that_comes_decoded(
    images: ImageList, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    read = gpu_images.read_bytes
    monkeypatch.setattr(gpu_images, "read_bytes", lambda source: opened.append(source) or read(source))
    monkeypatch.setattr(ImageList, "square", None)  # would read the file again
    stream = EncodedStream(images, 40)
    for index in range(len(images)):
        found = stream[index]
        if found.square is not None:
            np.testing.assert_array_equal(found.square, decode(images.subset([index]), 40).pixels[0])
    assert opened == [images.open(index) for index in range(len(images))]


def test_an_image_too_large_to_decode_with_others_comes_decoded(
    images: ImageList, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_images, "AT_ONCE", 80 * 60 - 1)
    found = GpuDecoder(40, "shorter", CPU)(batch_of(images))
    assert [Path(images.paths[row]).name for row in np.flatnonzero(batch_of(images).about[:, 0])] == ["other.jpg"]
    assert set(differences(images, found, "shorter").values()) <= {0, 1}


def test_worker_processes_hand_over_what_one_process_reads(images: ImageList) -> None:
    loader = DataLoader(EncodedStream(images, 40), batch_size=5, num_workers=2, collate_fn=collated)
    decoder = GpuDecoder(40, "shorter", CPU)
    assert torch.equal(torch.cat([decoder(batch) for batch in loader]), decoder(batch_of(images)))


def test_parts_of_a_batch_give_what_the_whole_gives(images: ImageList, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, batch = GpuDecoder(40, "shorter", CPU)(batch_of(images)), batch_of(images)
    seen = []

    def counted(content: list[Tensor], device: torch.device) -> list[Tensor]:
        seen.append(len(content))
        return real(content, device)

    real = gpu_images.decode_jpegs
    monkeypatch.setattr(gpu_images, "decode_jpegs", counted)
    monkeypatch.setattr(gpu_images, "AT_ONCE", 2 * 80 * 60)
    assert torch.equal(GpuDecoder(40, "shorter", CPU)(batch), whole)
    assert len(seen) > 1
    assert max(seen) == 2


def test_the_one_that_torchvision_refuses_is_decoded_by_pillow(
    images: ImageList, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, batch = GpuDecoder(40, "shorter", CPU)(batch_of(images)), batch_of(images)
    lengths = [int(length) for length in batch.about[:, 0] if length]
    bad, decoded, real = lengths[4], list[int](), gpu_images.decode_jpegs

    def refuse(content: list[Tensor], device: torch.device) -> list[Tensor]:
        if bad in map(len, content):
            raise RuntimeError("Unknown chroma subsampling")
        decoded.extend(map(len, content))
        return real(content, device)

    monkeypatch.setattr(gpu_images, "decode_jpegs", refuse)
    assert torch.equal(GpuDecoder(40, "shorter", CPU)(batch), whole)
    assert decoded == [length for length in lengths if length != bad]


def test_a_gpu_without_memory_is_an_error(images: ImageList, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(content: list[Tensor], device: torch.device) -> list[Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu_images, "decode_jpegs", refuse)
    with pytest.raises(torch.OutOfMemoryError):
        GpuDecoder(40, "shorter", CPU)(batch_of(images))


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("no image")
    stream = EncodedStream(ImageList.of_files(sorted(tmp_path.iterdir())), 8)
    with pytest.raises(ValueError, match=r"empty\.jpg cannot be read: an empty file$"):
        stream[0]
    with pytest.raises(ValueError, match=r"text\.jpg cannot be read: not an image that Pillow can read$"):
        stream[1]


def test_why_a_device_cannot_decode_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_on(CPU) == "there is no GPU to decode on"
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(gpu_images, "decode_jpegs", lambda content, device: [])
    assert why_not_on(gpu) is None

    def refuse(content: list[Tensor], device: torch.device) -> list[Tensor]:
        raise RuntimeError("torchvision not compiled with nvJPEG support")

    monkeypatch.setattr(gpu_images, "decode_jpegs", refuse)
    assert "not compiled with nvJPEG" in str(why_not_on(gpu))
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    assert "torchvision" in str(why_not_on(gpu))
