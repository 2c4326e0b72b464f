"""Images of every kind decoded to RGB squares; those that cannot be are named with the reason, and nothing stops."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch.utils.data import DataLoader
from torchvision import transforms

from equipoise.data.image_files import check_images, decode, open_rgb
from equipoise.data.image_stream import ImageStream
from equipoise.data.images import ImageList, read_images


def scene(width: int = 60, height: int = 40) -> NDArray[np.uint8]:
    """A smooth picture without symmetry, so that every turn of it is another."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    return (255 * np.stack([x, y, x * y], axis=2)).astype(np.uint8)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def listed(folder: Path, files: dict[str, bytes]) -> ImageList:
    """A list of these files, with classes a and b in turn."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    lines = [f"{name} {'ab'[number % 2]}\n" for number, name in enumerate(files)]
    (folder / "list.txt").write_text("".join(lines))
    return read_images(folder / "list.txt")


SCENE = Image.fromarray(scene())
JPEG = encoded(Image.fromarray(scene(640, 480)), "JPEG", quality=90)


def rgb(content: bytes) -> NDArray[np.int64]:
    return np.asarray(open_rgb(content)).astype(np.int64)


# ------------------------------------------------------------------ every kind of image


@pytest.mark.parametrize("turn", range(1, 9))
def test_exif_orientation_is_applied(turn: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    content = encoded(SCENE, "PNG", exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))))
    assert (rgb(content) == expected).all()
    assert (np.asarray(open_rgb(content, upright=False)) == scene()).all()


def test_broken_exif_data_do_not_hide_the_image(tmp_path: Path) -> None:
    content = encoded(SCENE, "JPEG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff")
    images = listed(tmp_path, {"a.jpg": content, "b.jpg": encoded(SCENE, "JPEG")})
    decoded = decode(images, 8)
    assert len(decoded.bad) == 0
    assert (decoded.pixels[0] == decoded.pixels[1]).all()


def test_grey_palette_transparent_cmyk_and_16_bits_become_rgb() -> None:
    grey = np.asarray(SCENE.convert("L"))
    as_grey = np.repeat(grey[..., None], 3, axis=2)
    assert (rgb(encoded(Image.fromarray(grey))) == as_grey).all()
    assert (rgb(encoded(Image.fromarray(grey.astype(np.uint16) * 257))) == as_grey).all()
    assert (rgb(encoded(Image.fromarray(grey.astype(np.int32) * 257), "TIFF")) == as_grey).all()
    few = SCENE.quantize(16)
    assert (rgb(encoded(few)) == np.asarray(few.convert("RGB"))).all()
    assert (rgb(encoded(few, transparency=bytes(range(16)))) == np.asarray(few.convert("RGB"))).all()
    assert (rgb(encoded(SCENE.convert("RGBA"))) == scene()).all()
    assert (rgb(encoded(SCENE.convert("1"))) == np.asarray(SCENE.convert("1").convert("RGB"))).all()
    cmyk = rgb(encoded(SCENE.convert("CMYK"), "JPEG", quality=100, subsampling=0))
    assert np.abs(cmyk - scene()).max() <= 8  # JPEG at quality 100: a few levels of rounding in each of four channels


def test_of_an_animation_the_first_frame_is_taken() -> None:
    frames = [Image.new("RGB", (6, 4), colour) for colour in ("red", "blue")]
    content = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert rgb(content)[0, 0].tolist() == [255, 0, 0]


# ------------------------------------------------------------------ squares


def test_the_shorter_side_is_kept_whole_and_the_middle_of_the_longer(tmp_path: Path) -> None:
    wide = np.zeros((40, 80, 3), np.uint8)
    wide[:, 20:60] = 255
    images = listed(
        tmp_path, {"a.png": encoded(Image.fromarray(wide)), "b.png": encoded(Image.fromarray(wide[:, 30:50]))}
    )
    kept = decode(images, 20).pixels
    assert kept.shape == (2, 3, 20, 20)
    assert kept.dtype == np.uint8
    assert (kept[..., 1:-1] == 255).all()
    assert (kept >= 200).all()  # at the edge the filter reaches one pixel too far
    squeezed = decode(images, 20, resize="square").pixels[0, 0]
    assert (squeezed[:, [0, 3, 16, 19]] == 0).all()
    assert (squeezed[:, 6:14] == 255).all()


def test_shrinking_averages_what_falls_together(tmp_path: Path) -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 200
    content = encoded(Image.fromarray(stripes))
    pixels = decode(listed(tmp_path, {"a.png": content, "b.png": content}), 8).pixels
    assert (pixels[..., 1:-1] == 100).all()  # every pixel of the result covers as many of both


def test_squares_are_those_of_torchvision(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (80, 120, 3)).astype(np.uint8)
    images = listed(
        tmp_path, {"a.png": encoded(Image.fromarray(noise)), "b.png": encoded(Image.fromarray(noise[:, ::-1]))}
    )
    usual = transforms.Compose([transforms.Resize(20), transforms.CenterCrop(20)])
    theirs = [np.asarray(usual(images.read(index))).transpose(2, 0, 1) for index in range(2)]
    assert (decode(images, 20).pixels == np.stack(theirs)).all()


def test_a_reduced_jpeg_looks_like_the_whole_one_made_small(tmp_path: Path) -> None:
    images = listed(tmp_path, {"a.jpg": JPEG, "b.jpg": JPEG})
    pixels = decode(images, 48).pixels[0]
    assert open_rgb(JPEG, at_least=48).size == (80, 60)
    whole = open_rgb(JPEG).resize((64, 48), Image.Resampling.BILINEAR).crop((8, 0, 56, 48))
    difference = pixels.astype(int) - np.asarray(whole).transpose(2, 0, 1)
    assert np.abs(difference).max() <= 6  # two filters on a picture that changes by 5 levels from pixel to pixel


def test_decoding_reduced_never_goes_below_the_size() -> None:
    for side in (1, 47, 48, 59, 60, 61, 119, 120, 121, 240, 480, 481, 9999):
        assert min(open_rgb(JPEG, at_least=side).size) >= min(side, 480)


def test_rows_are_those_of_the_list_with_any_number_of_threads(tmp_path: Path) -> None:
    files = {f"{n}.png": encoded(Image.new("RGB", (4 + n % 3, 4), (n, n, n))) for n in range(100)}
    files["50.png"] = b"no image"
    images = listed(tmp_path, files)
    calls: list[tuple[int, int]] = []
    for workers in (1, 3):
        decoded = decode(images, 4, workers=workers, progress=lambda done, total: calls.append((done, total)))
        assert decoded.pixels[:, 0, 0, 0].tolist() == [n if n != 50 else 0 for n in range(100)]
        assert [(bad.index, bad.name) for bad in decoded.bad] == [(50, "50.png")]
        assert decoded.good.tolist() == [n for n in range(100) if n != 50]
    assert calls == [(32, 100), (64, 100), (96, 100), (100, 100)] * 2


def test_pixels_can_lie_in_a_file(tmp_path: Path) -> None:
    images = listed(tmp_path, {"a.png": encoded(SCENE), "b.png": encoded(SCENE)})
    decoded = decode(images, 8, store=tmp_path / "deep" / "pixels.npy")
    in_memory = decode(images, 8)
    assert (np.load(tmp_path / "deep" / "pixels.npy", mmap_mode="r") == in_memory.pixels).all()
    assert (decoded.pixels == in_memory.pixels).all()
    assert in_memory.pixels.any()


def test_a_file_of_pixels_is_whole_or_not_there(tmp_path: Path) -> None:
    images = listed(tmp_path, {"a.png": encoded(SCENE), "b.png": encoded(SCENE)})

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode(images, 8, store=tmp_path / "store" / "pixels.npy", progress=stop)
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.parametrize(
    ("size", "resize", "message"), [(0, "shorter", "size is 0"), (8, "longer", "resize is 'longer'")]
)
def test_wrong_sizes_are_refused(tmp_path: Path, size: int, resize: Any, message: str) -> None:
    images = listed(tmp_path, {"a.png": encoded(SCENE), "b.png": encoded(SCENE)})
    with pytest.raises(ValueError, match=message):
        decode(images, size, resize=resize)


# ------------------------------------------------------------------ bad images

PNG = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)))
BAD: dict[str, tuple[bytes | None, str]] = {
    "missing.png": (None, "no such file"),
    "empty.jpg": (b"", "an empty file"),
    "text.jpg": (b"<html>404 Not Found</html>", "not an image that Pillow can read"),
    "cut.jpg": (JPEG[: len(JPEG) // 2], "cut off"),
    "cut.png": (PNG[: len(PNG) // 2], "cut off"),
    "tail.jpg": (JPEG[:-200], "cut off"),
    "bomb.png": (b"", "more than 178,956,970 pixels"),
    "folder.png": (None, "a folder, not a file"),
    "pipe.png": (None, "no ordinary file"),
    "loop.png": (None, "too many levels of symbolic links"),
}


def bad_list(folder: Path) -> ImageList:
    """One good image of each class, then one of each bad kind."""
    bomb = bytearray(PNG)
    bomb[16:24] = (20_000).to_bytes(4, "big") * 2  # the header's width and height
    files = {"good-a.png": encoded(SCENE), "good-b.png": encoded(SCENE)}
    files |= {name: content or b"" for name, (content, _) in BAD.items()}
    files["bomb.png"] = bytes(bomb[:29]) + _checksum(bytes(bomb[12:29])) + bytes(bomb[33:])
    images = listed(folder, files)
    for name in ("missing.png", "folder.png", "pipe.png", "loop.png"):
        (folder / name).unlink()
    (folder / "folder.png").mkdir()
    os.mkfifo(folder / "pipe.png")
    (folder / "loop.png").symlink_to(folder / "loop.png")
    return images


def _checksum(part: bytes) -> bytes:
    import zlib

    return zlib.crc32(part).to_bytes(4, "big")


@pytest.mark.parametrize("how", ["check", "decode", "decode small"])
def test_bad_images_are_named_with_their_reasons(tmp_path: Path, how: str) -> None:
    images = bad_list(tmp_path)
    bad = check_images(images, workers=2) if how == "check" else decode(images, 64 if how == "decode" else 8).bad
    assert {item.name: item.reason for item in bad} == {name: reason for name, (_, reason) in BAD.items()}
    assert bad.indices.tolist() == list(range(2, 12))
    assert bad.reasons["cut off"] == 3
    assert next(iter(bad.reasons)) == "cut off"
    kept = images.without(bad)
    assert kept.paths == ("good-a.png", "good-b.png")
    assert len(check_images(kept)) == 0
    assert "\n" not in str(bad)
    assert str(bad).startswith("10 images cannot be read (3 cut off, 1 ")


def test_a_file_that_may_not_be_read_is_a_bad_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = listed(tmp_path, {"a.png": encoded(SCENE), "b.png": encoded(SCENE)})
    real = Image.open

    def refuse(file: Any, *rest: Any) -> Any:  # root may read everything, so the mode of the file is not enough
        if str(file).endswith("b.png"):
            raise PermissionError(13, "Permission denied", file)
        return real(file, *rest)

    monkeypatch.setattr(Image, "open", refuse)
    (item,) = check_images(images)
    assert (item.index, item.reason) == (1, "no permission to read it")


def test_reading_one_image_names_it(tmp_path: Path) -> None:
    images = bad_list(tmp_path)
    assert (np.asarray(images.read(0)) == scene()).all()
    for index, (name, (_, reason)) in enumerate(BAD.items(), start=2):
        with pytest.raises(ValueError, match=f"{name} cannot be read: {reason}") as caught:
            images.read(index)
        assert "\n" not in str(caught.value)


def test_a_large_image_is_no_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)  # 2,400 pixels are more, but less than twice as many
    images = listed(tmp_path, {"a.png": encoded(SCENE), "b.png": encoded(SCENE)})
    assert len(check_images(images)) == 0
    assert images.read(0).size == (60, 40)


def test_an_interrupt_drops_what_has_not_begun() -> None:
    go_on, opened = threading.Event(), []

    class Slow:
        """300 images; after the first part each waits until some time after the interrupt."""

        def __len__(self) -> int:
            return 300

        def key(self, index: int) -> str:
            return str(index)

        def open(self, index: int) -> bytes:
            opened.append(index)
            assert index < 32 or go_on.wait(60)
            return encoded(SCENE)

    def stop(done: int, total: int) -> None:
        threading.Timer(0.5, go_on.set).start()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode(Slow(), 8, workers=1, progress=stop)
    assert opened == list(range(64))


# ------------------------------------------------------------------ one by one


def test_a_stream_gives_what_decoding_keeps(tmp_path: Path) -> None:
    files = {f"{n}.jpg": encoded(Image.fromarray(np.roll(scene(96, 64), n, axis=1)), "JPEG") for n in range(6)}
    images = listed(tmp_path, files)
    for resize in ("shorter", "square"):
        kept = torch.from_numpy(decode(images, 16, resize=resize).pixels)
        stream = ImageStream(images, 16, resize=resize)
        assert len(stream) == 6
        loader = DataLoader(stream, batch_size=4, num_workers=2)
        pixels, labels = zip(*loader, strict=True)
        assert torch.equal(torch.cat(pixels), kept)
        assert torch.cat(labels).tolist() == images.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert torch.equal(stream[-1][0], stream[5][0])


def test_a_stream_names_the_image_that_it_cannot_decode(tmp_path: Path) -> None:
    stream = ImageStream(bad_list(tmp_path), 8)
    assert stream[0][0].dtype == torch.uint8
    with pytest.raises(ValueError, match=r"list\.txt: cut\.jpg cannot be read: cut off"):
        stream[list(BAD).index("cut.jpg") + 2]
    with pytest.raises(IndexError, match="image 12 of 12"):
        stream[12]
    with pytest.raises(ValueError, match="size is 0"):
        ImageStream(stream.images, 0)
