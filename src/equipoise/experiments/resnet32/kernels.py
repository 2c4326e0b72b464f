"""The Triton kernels of fused.py, which explains what they are for. Pointers come first, sizes in capitals last.

All of them see images as [pixels, channels]: pixel = (image · height + row) · width + column. Stored values have the
type of the tensor they are stored in; sums are fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr


@triton.jit
def normalise(images, out, pixels, IMAGE: constexpr, MEANS: constexpr, STDS: constexpr, BLOCK: constexpr):
    """uint8 [N, 3, H, W] → bf16 [N, H, W, 3], as augment.normalise."""
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = pixel < pixels
    source = images + pixel // IMAGE * (3 * IMAGE) + pixel % IMAGE
    for channel in tl.static_range(3):
        value = tl.load(source + channel * IMAGE, mask=there, other=0).to(tl.float32)
        value = (value / 255 - MEANS[channel]) / STDS[channel]
        tl.store(out + pixel * 3 + channel, value.to(out.dtype.element_ty), mask=there)


@triton.jit
def convolve(
    x,
    weight,
    y,
    added,
    out_below,
    y_below,
    statistics_below,
    partial,
    pixels,
    HEIGHT: constexpr,  # of y
    WIDTH: constexpr,
    FROM_HEIGHT: constexpr,  # of x
    FROM_WIDTH: constexpr,
    FROM: constexpr,  # channels of x
    TO: constexpr,  # channels of y
    TAPS: constexpr,  # taps multiplied at once: 1, or the 3 of a row, whose pixels are adjacent in memory
    PACKED: constexpr,  # at least TAPS · FROM, and 16; a power of two
    STRIDE: constexpr,
    TRANSPOSED: constexpr,  # y is the gradient of the output of a layer below: mask it, and sum dz and dz · ŷ
    ADD: constexpr,
    BLOCK: constexpr,
    TILES: constexpr,
):
    """3×3 convolution with padding 1, or its transpose; a program computes TILES times BLOCK pixels of y.

    For a convolution it sums y and y².
    """
    program = tl.program_id(0)
    packed = tl.arange(0, PACKED)
    step = packed // FROM  # 0 to TAPS − 1, more where nothing is
    before = packed % FROM
    after = tl.arange(0, TO)
    total = tl.zeros((TO,), tl.float32)
    second = tl.zeros((TO,), tl.float32)
    for tile in range(TILES):
        pixel = (program * TILES + tile) * BLOCK + tl.arange(0, BLOCK)
        there = pixel < pixels
        column = pixel % WIDTH
        row = pixel // WIDTH % HEIGHT
        image = pixel // (WIDTH * HEIGHT)
        result = tl.zeros((BLOCK, TO), tl.float32)
        for tap in tl.static_range(0, 9, TAPS):
            if TRANSPOSED:
                from_row = row + 1 - tap // 3
                left = column + 1 - tap % 3 - (TAPS - 1)
                inside = there & (from_row >= 0)
                if STRIDE > 1:  # then TAPS is 1
                    inside = inside & (from_row % STRIDE == 0) & (left % STRIDE == 0) & (left >= 0)
                    from_row = from_row // STRIDE
                    left = left // STRIDE
                taps = weight + (before * (9 * TO) + (tap + TAPS - 1 - step) * TO)[:, None] + after[None, :]
            else:
                from_row = row * STRIDE + tap // 3 - 1
                left = column * STRIDE + tap % 3 - 1
                inside = there & (from_row >= 0)
                taps = weight + after[None, :] * (9 * FROM) + tap * FROM + packed[:, None]
            inside = inside & (from_row < FROM_HEIGHT)
            if TAPS == 1:
                inside = (inside & (left >= 0) & (left < FROM_WIDTH))[:, None]
            else:
                from_column = left[:, None] + step[None, :]
                inside = inside[:, None] & (from_column >= 0) & (from_column < FROM_WIDTH)
            source = x + (((image * FROM_HEIGHT + from_row) * FROM_WIDTH + left) * FROM)[:, None] + packed[None, :]
            if PACKED == TAPS * FROM:
                values = tl.load(source, mask=inside, other=0.0)
                kernel = tl.load(taps)
            else:
                values = tl.load(source, mask=inside & (step < TAPS)[None, :], other=0.0)
                kernel = tl.load(taps, mask=(step < TAPS)[:, None], other=0.0)
            result = tl.dot(values, kernel.to(values.dtype), result)
        place = pixel[:, None] * TO + after[None, :]
        if ADD:
            result += tl.load(added + place, mask=there[:, None], other=0.0).to(tl.float32)
        if TRANSPOSED:
            result = tl.where(tl.load(out_below + place, mask=there[:, None], other=0.0) > 0, result, 0.0)
        rounded = result.to(y.dtype.element_ty)
        tl.store(y + place, rounded, mask=there[:, None])
        value = rounded.to(tl.float32)
        total += tl.sum(value, 0)
        if TRANSPOSED:
            mean = tl.load(statistics_below + after)[None, :]
            inverse = tl.load(statistics_below + TO + after)[None, :]
            normal = (tl.load(y_below + place, mask=there[:, None], other=0.0).to(tl.float32) - mean) * inverse
            second += tl.sum(value * normal, 0)
        else:
            second += tl.sum(value * value, 0)
    tl.store(partial + program * (2 * TO) + after, total)
    tl.store(partial + program * (2 * TO) + TO + after, second)


@triton.jit
def weight_gradient(
    x,
    dy,
    partial,
    pixels,
    HEIGHT: constexpr,  # of dy
    WIDTH: constexpr,
    FROM_HEIGHT: constexpr,  # of x
    FROM_WIDTH: constexpr,
    FROM: constexpr,
    TO: constexpr,
    TAPS: constexpr,  # taps summed at once: 1, or the 3 of a row, whose pixels are adjacent in memory
    PACKED: constexpr,  # at least TAPS · FROM
    STRIDE: constexpr,
    BLOCK: constexpr,
    TILES: constexpr,
):
    """A tap or a row of taps of the weight's gradient, over TILES times BLOCK pixels: partial [programs, TO, 9, FROM].

    One tap at a time, the sums of many channels fit into registers.
    """
    program = tl.program_id(0)
    tap = tl.program_id(1) * TAPS
    tap_row = tap // 3
    packed = tl.arange(0, PACKED)
    tap_column = tap % 3 + packed // FROM
    after = tl.arange(0, TO)
    result = tl.zeros((PACKED, TO), tl.float32)
    for tile in range(TILES):
        pixel = (program * TILES + tile) * BLOCK + tl.arange(0, BLOCK)
        there = pixel < pixels
        column = pixel % WIDTH
        row = pixel // WIDTH % HEIGHT
        image = pixel // (WIDTH * HEIGHT)
        from_row = row * STRIDE + tap_row - 1
        from_column = column[:, None] * STRIDE + tap_column[None, :] - 1
        inside = (there & (from_row >= 0) & (from_row < FROM_HEIGHT))[:, None]
        inside = inside & (from_column >= 0) & (from_column < FROM_WIDTH) & (packed < TAPS * FROM)[None, :]
        left = ((image * FROM_HEIGHT + from_row) * FROM_WIDTH + column * STRIDE + tap % 3 - 1) * FROM
        values = tl.load(x + left[:, None] + packed[None, :], mask=inside, other=0.0)
        slope = tl.load(dy + pixel[:, None] * TO + after[None, :], mask=there[:, None], other=0.0)
        result = tl.dot(tl.trans(values), slope, result)
    place = ((program * TO + after[None, :]) * 9 + tap) * FROM + packed[:, None]
    tl.store(partial + place, result, mask=(packed < TAPS * FROM)[:, None])


@triton.jit
def finish_statistics(
    partial,
    gain,
    bias,
    running_mean,
    running_variance,
    statistics,
    programs,
    pixels,
    momentum,
    epsilon,
    CHANNELS: constexpr,
    BLOCK: constexpr,
):
    """From the sums of y and y²: statistics [4, C] = mean, 1/deviation, scale, shift; updates the running ones."""
    channel = tl.program_id(0) * 16 + tl.arange(0, 16)
    total = tl.zeros((16,), tl.float32)
    squares = tl.zeros((16,), tl.float32)
    for start in range(0, programs, BLOCK):
        row = start + tl.arange(0, BLOCK)
        there = (row < programs)[:, None]
        place = partial + row[:, None] * (2 * CHANNELS) + channel[None, :]
        total += tl.sum(tl.load(place, mask=there, other=0.0), 0)
        squares += tl.sum(tl.load(place + CHANNELS, mask=there, other=0.0), 0)
    mean = total / pixels
    variance = tl.maximum(squares / pixels - mean * mean, 0.0)
    inverse = 1 / tl.sqrt(variance + epsilon)
    scale = tl.load(gain + channel) * inverse
    tl.store(statistics + channel, mean)
    tl.store(statistics + CHANNELS + channel, inverse)
    tl.store(statistics + 2 * CHANNELS + channel, scale)
    tl.store(statistics + 3 * CHANNELS + channel, tl.load(bias + channel) - mean * scale)
    old = tl.load(running_mean + channel)
    tl.store(running_mean + channel, old + momentum * (mean - old))
    old = tl.load(running_variance + channel)
    tl.store(running_variance + channel, old + momentum * (variance * pixels / (pixels - 1) - old))


@triton.jit
def scale_shift_relu(y, statistics, shortcut, out, pixels, CHANNELS: constexpr, ADD: constexpr, BLOCK: constexpr):
    """out = relu(y · scale + shift [+ shortcut])."""
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, CHANNELS)
    there = (pixel < pixels)[:, None]
    place = pixel[:, None] * CHANNELS + channel[None, :]
    scale = tl.load(statistics + 2 * CHANNELS + channel)[None, :]
    shift = tl.load(statistics + 3 * CHANNELS + channel)[None, :]
    value = tl.load(y + place, mask=there, other=0.0).to(tl.float32) * scale + shift
    if ADD:
        value += tl.load(shortcut + place, mask=there, other=0.0).to(tl.float32)
    tl.store(out + place, tl.maximum(value, 0.0).to(out.dtype.element_ty), mask=there)


@triton.jit
def mask_and_sum(
    dout,
    out,
    y,
    statistics,
    dz,
    partial,
    pixels,
    CHANNELS: constexpr,
    BLOCK: constexpr,
    TILES: constexpr,
):
    """dz = dout where out > 0; partial [programs, 2, C]: the sums of dz and of dz · ŷ."""
    program = tl.program_id(0)
    channel = tl.arange(0, CHANNELS)
    mean = tl.load(statistics + channel)[None, :]
    inverse = tl.load(statistics + CHANNELS + channel)[None, :]
    total = tl.zeros((CHANNELS,), tl.float32)
    second = tl.zeros((CHANNELS,), tl.float32)
    for tile in range(TILES):
        pixel = (program * TILES + tile) * BLOCK + tl.arange(0, BLOCK)
        there = (pixel < pixels)[:, None]
        place = pixel[:, None] * CHANNELS + channel[None, :]
        slope = tl.load(dout + place, mask=there, other=0.0)
        slope = tl.where(tl.load(out + place, mask=there, other=0.0) > 0, slope, 0.0)
        tl.store(dz + place, slope, mask=there)
        normal = (tl.load(y + place, mask=there, other=0.0).to(tl.float32) - mean) * inverse
        total += tl.sum(slope.to(tl.float32), 0)
        second += tl.sum(slope.to(tl.float32) * normal, 0)
    tl.store(partial + program * (2 * CHANNELS) + channel, total)
    tl.store(partial + program * (2 * CHANNELS) + CHANNELS + channel, second)


@triton.jit
def normalisation_gradient(dz, y, statistics, sums, dy, pixels, CHANNELS: constexpr, BLOCK: constexpr):
    """dy = scale · (dz − mean(dz) − ŷ · mean(dz · ŷ))."""
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, CHANNELS)
    there = (pixel < pixels)[:, None]
    place = pixel[:, None] * CHANNELS + channel[None, :]
    mean = tl.load(statistics + channel)[None, :]
    inverse = tl.load(statistics + CHANNELS + channel)[None, :]
    scale = tl.load(statistics + 2 * CHANNELS + channel)[None, :]
    slope_mean = tl.load(sums + channel)[None, :] / pixels
    product_mean = tl.load(sums + CHANNELS + channel)[None, :] / pixels
    slope = tl.load(dz + place, mask=there, other=0.0).to(tl.float32)
    normal = (tl.load(y + place, mask=there, other=0.0).to(tl.float32) - mean) * inverse
    result = scale * (slope - slope_mean - normal * product_mean)
    tl.store(dy + place, result.to(dy.dtype.element_ty), mask=there)
