"""The Triton kernels of fused.py, which explains what they are for. Pointers come first, sizes in capitals last.

All of them see images as [pixels, channels]: pixel = (image · height + row) · width + column. What is convolved has a
border of zeros, one pixel wide, so that no tap needs a test whether it lies inside; in these tensors the same pixel is
at `_bordered`. Stored values have the type of the tensor they are stored in; sums are fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr


@triton.jit
def _bordered(pixel, HEIGHT: constexpr, WIDTH: constexpr):
    """Where a pixel of [N, HEIGHT, WIDTH] is in [N, HEIGHT + 2, WIDTH + 2]."""
    row = pixel // WIDTH % HEIGHT
    image = pixel // (WIDTH * HEIGHT)
    return (image * (HEIGHT + 2) + row + 1) * (WIDTH + 2) + pixel % WIDTH + 1


@triton.jit
def _unbordered(place, HEIGHT: constexpr, WIDTH: constexpr):
    """The pixel at a place of [N, HEIGHT + 2, WIDTH + 2], and whether it is not in the border."""
    column = place % (WIDTH + 2) - 1
    row = place // (WIDTH + 2) % (HEIGHT + 2) - 1
    image = place // ((WIDTH + 2) * (HEIGHT + 2))
    inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    return (image * HEIGHT + row) * WIDTH + column, inside


@triton.jit
def _load(source, mask, WHOLE: constexpr):
    """Values, 0 where the mask is not; without a look at it if the tile is WHOLE."""
    return tl.load(source) if WHOLE else tl.load(source, mask=mask, other=0.0)


@triton.jit
def normalise(
    images, out, places, HEIGHT: constexpr, WIDTH: constexpr, MEANS: constexpr, STDS: constexpr, BLOCK: constexpr
):
    """uint8 [N, 3, H, W] → bf16 [N, H + 2, W + 2, 4], as `normalise` in augmentation/cifar.py; the border and the last
    channel are 0."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = place < places
    pixel, inside = _unbordered(place, HEIGHT, WIDTH)
    inside = inside & there
    source = images + pixel // (HEIGHT * WIDTH) * (3 * HEIGHT * WIDTH) + pixel % (HEIGHT * WIDTH)
    for channel in tl.static_range(3):
        value = tl.load(source + channel * (HEIGHT * WIDTH), mask=inside, other=0).to(tl.float32)
        value = tl.where(inside, (value / 255 - MEANS[channel]) / STDS[channel], 0.0)
        tl.store(out + place * 4 + channel, value.to(out.dtype.element_ty), mask=there)
    tl.store(out + place * 4 + 3, tl.zeros((BLOCK,), out.dtype.element_ty), mask=there)


@triton.jit
def _kernel(
    weight,
    row,
    first,
    FROM: constexpr,
    GIVEN: constexpr,
    TO: constexpr,
    PAIR: constexpr,
    COLUMNS: constexpr,
    PACKED: constexpr,
    STRIDE: constexpr,
    TRANSPOSED: constexpr,
):
    """The weight as a matrix from COLUMNS columns of x, from column `first` on, to PAIR pixels of y, for a row of taps:
    [PACKED, PAIR · TO], 0 where a column is not among the three of a pixel."""
    packed = tl.arange(0, PACKED)
    column = first + packed[:, None] // FROM
    before = packed[:, None] % FROM
    outs = tl.arange(0, PAIR * TO)
    pixel = outs[None, :] // TO
    after = outs[None, :] % TO
    if TRANSPOSED:
        tap = 1 + pixel - 2 * column if STRIDE > 1 else 2 + pixel - column
        place = before * (9 * TO) + (row * 3 + tap) * TO + after
    else:
        tap = column - pixel
        place = after * (9 * GIVEN) + (row * 3 + tap) * GIVEN + before
    used = (tap >= 0) & (tap < 3) & (before < GIVEN) & (packed < COLUMNS * FROM)[:, None]
    return tl.load(weight + place, mask=used, other=0.0)


@triton.jit
def convolve(
    x,  # with a border
    weight,
    y,  # with a border if ANSWER
    added,  # likewise
    out_below,  # with a border
    y_below,
    statistics,  # of the layer below if TRANSPOSED, of this one if ANSWER
    partial,
    groups,  # of PAIR pixels
    HEIGHT: constexpr,  # of y
    WIDTH: constexpr,
    FROM: constexpr,  # channels of x
    GIVEN: constexpr,  # channels of x that the weight has
    TO: constexpr,  # channels of y
    PAIR: constexpr,  # adjacent pixels of y that are computed from the same columns of x
    COLUMNS: constexpr,  # of x that are multiplied at once, adjacent in memory
    SPAN: constexpr,  # of x that PAIR pixels need
    PACKED: constexpr,  # at least COLUMNS · FROM, and 16; a power of two
    KEPT: constexpr,  # the weight is loaded once for all tiles; COLUMNS is SPAN then, or more
    STRIDE: constexpr,
    TRANSPOSED: constexpr,  # y is the gradient of the output of a layer below: mask it, and sum dz and dz · ŷ
    RESIDUAL: constexpr,  # the output of the layer below has a shortcut in it, so that y_below alone is not its mask
    ANSWER: constexpr,  # y is relu(convolution · scale + shift [+ added]), and nothing is summed
    ADD: constexpr,
    EVEN: constexpr,  # the groups are whole tiles
    BLOCK: constexpr,
    TILES: constexpr,
):
    """3×3 convolution with padding 1, or its transpose; a program computes TILES times BLOCK groups of y.

    For a convolution it sums y and y².
    """
    program = tl.program_id(0)
    packed = tl.arange(0, PACKED)
    outs = tl.arange(0, PAIR * TO)
    after = outs % TO
    total = tl.zeros((BLOCK, PAIR * TO), tl.float32)
    second = tl.zeros((BLOCK, PAIR * TO), tl.float32)
    if KEPT:
        top = _kernel(weight, 0, 0, FROM, GIVEN, TO, PAIR, COLUMNS, PACKED, STRIDE, TRANSPOSED)
        middle = _kernel(weight, 1, 0, FROM, GIVEN, TO, PAIR, COLUMNS, PACKED, STRIDE, TRANSPOSED)
        bottom = _kernel(weight, 2, 0, FROM, GIVEN, TO, PAIR, COLUMNS, PACKED, STRIDE, TRANSPOSED)
    for tile in range(TILES):
        group = (program * TILES + tile) * BLOCK + tl.arange(0, BLOCK)
        there = (group < groups)[:, None]
        column = group % (WIDTH // PAIR) * PAIR
        row = group // (WIDTH // PAIR) % HEIGHT
        image = group // (WIDTH // PAIR * HEIGHT)
        if TRANSPOSED and STRIDE > 1:  # PAIR is 2
            pitch = WIDTH // STRIDE + 2  # a row of x
            corner = image * (HEIGHT // STRIDE + 2) * pitch + column // 2 + 1
        elif TRANSPOSED:
            pitch = WIDTH + 2
            corner = (image * (HEIGHT + 2) + row) * pitch + column
        else:
            pitch = WIDTH * STRIDE + 2
            corner = (image * (HEIGHT * STRIDE + 2) + row * STRIDE) * pitch + column * STRIDE
        source = x + (corner * FROM)[:, None] + packed[None, :]
        result = tl.zeros((BLOCK, PAIR * TO), tl.float32)
        for tap_row in tl.static_range(3):
            for first in tl.static_range(0, SPAN, COLUMNS):
                if TRANSPOSED and STRIDE > 1:  # a row of taps meets every second row
                    down = row + 1 - tap_row
                    met = there & (down % 2 == 0)[:, None] & (packed < COLUMNS * FROM)[None, :]
                    at = ((down // 2 + 1) * pitch + first) * FROM
                    values = tl.load(source + at[:, None], mask=met, other=0.0)
                else:
                    from_row = 2 - tap_row if TRANSPOSED else tap_row
                    at = source + (from_row * pitch + first) * FROM
                    mask = there & (packed < COLUMNS * FROM)[None, :]
                    values = _load(at, mask, EVEN and PACKED == COLUMNS * FROM)
                if KEPT:
                    kernel = top if tap_row == 0 else middle if tap_row == 1 else bottom
                else:
                    kernel = _kernel(weight, tap_row, first, FROM, GIVEN, TO, PAIR, COLUMNS, PACKED, STRIDE, TRANSPOSED)
                result = tl.dot(values, kernel, result)
        place = group[:, None] * (PAIR * TO) + outs[None, :]
        bordered = _bordered(group * PAIR, HEIGHT, WIDTH)[:, None] * TO + outs[None, :]
        if ANSWER:
            place = bordered
            scale = tl.load(statistics + 2 * TO + after)[None, :]
            result = result * scale + tl.load(statistics + 3 * TO + after)[None, :]
        if ADD:
            result += tl.load(added + place, mask=there, other=0.0).to(tl.float32)
        if ANSWER:
            result = tl.maximum(result, 0.0)
        if TRANSPOSED:
            below = tl.load(y_below + place, mask=there, other=0.0).to(tl.float32)
            if RESIDUAL:
                positive = tl.load(out_below + bordered, mask=there, other=0.0) > 0
            else:
                scale = tl.load(statistics + 2 * TO + after)[None, :]
                positive = below * scale + tl.load(statistics + 3 * TO + after)[None, :] > 0
            result = tl.where(positive, result, 0.0)
            second += result * below
        elif not ANSWER:
            second += result * result
        tl.store(y + place, result.to(y.dtype.element_ty), mask=there)
        if not ANSWER:
            total += result
    if not ANSWER:  # a row of partial for each pixel of a group
        place = partial + (program * PAIR + outs // TO) * (2 * TO) + after
        first_sum, second_sum = tl.sum(total, 0), tl.sum(second, 0)
        if TRANSPOSED:  # the sum of dz · ŷ from that of dz · y
            second_sum = (second_sum - tl.load(statistics + after) * first_sum) * tl.load(statistics + TO + after)
        tl.store(place, first_sum)
        tl.store(place + TO, second_sum)


@triton.jit
def weight_gradient(
    x,  # with a border
    dz,
    y,
    statistics,
    sums,
    dy,  # with a border
    partial,
    groups,  # of PAIR pixels
    HEIGHT: constexpr,  # of dz
    WIDTH: constexpr,
    FROM: constexpr,
    GIVEN: constexpr,
    TO: constexpr,
    PAIR: constexpr,  # adjacent pixels of dz that meet the same columns of x
    COLUMNS: constexpr,  # of x that are multiplied at once, adjacent in memory: 1, or 4
    SPAN: constexpr,  # columns that may be read; those beyond belong to the next row, or to no tensor
    PACKED: constexpr,  # at least COLUMNS · FROM
    ROWS: constexpr,  # rows of taps in a program: 1, or all 3 if COLUMNS is 4 and registers suffice for their sums
    STRIDE: constexpr,
    EVEN: constexpr,
    BLOCK: constexpr,
    TILES: constexpr,
):
    """dy = scale · (dz − mean(dz) − ŷ · mean(dz · ŷ)), and with it the weight's gradient over TILES times BLOCK groups:
    partial [programs, PAIR, TO, 9, GIVEN]. Programs of the second axis share the taps; the first of them stores dy.

    x beyond the last pixel is 0, so that dy, which is not, does not count there.
    """
    program = tl.program_id(0)
    tap_row = tl.program_id(1) // 3 if COLUMNS == 1 else tl.program_id(1) * ROWS
    first = tl.program_id(1) % 3 if COLUMNS == 1 else 0
    packed = tl.arange(0, PACKED)
    outs = tl.arange(0, PAIR * TO)
    after = outs % TO
    scale = tl.load(statistics + 2 * TO + after)
    share = -scale * (1.0 / (groups * PAIR))
    per_y = share * tl.load(sums + TO + after) * tl.load(statistics + TO + after)
    constant = (share * tl.load(sums + after) - per_y * tl.load(statistics + after))[None, :]
    scale, per_y = scale[None, :], per_y[None, :]
    pitch = WIDTH * STRIDE + 2
    readable = ((packed < COLUMNS * FROM) & (first + packed // FROM < SPAN))[None, :]
    result = tl.zeros((PACKED, PAIR * TO), tl.float32)
    middle = tl.zeros((PACKED, PAIR * TO), tl.float32)
    bottom = tl.zeros((PACKED, PAIR * TO), tl.float32)
    for tile in range(TILES):
        group = (program * TILES + tile) * BLOCK + tl.arange(0, BLOCK)
        column = group % (WIDTH // PAIR) * PAIR
        row = group // (WIDTH // PAIR) % HEIGHT
        image = group // (WIDTH // PAIR * HEIGHT)
        there = (group < groups)[:, None]
        place = group[:, None] * (PAIR * TO) + outs[None, :]
        slope, below = _load(dz + place, there, EVEN), _load(y + place, there, EVEN)
        slope = scale * slope.to(tl.float32) + (per_y * below.to(tl.float32) + constant)
        slope = slope.to(dy.dtype.element_ty)
        if tl.program_id(1) == 0:
            bordered = _bordered(group * PAIR, HEIGHT, WIDTH)[:, None] * TO + outs[None, :]
            tl.store(dy + bordered, slope, mask=there)
        corner = (image * (HEIGHT * STRIDE + 2) + row * STRIDE + tap_row) * pitch + column * STRIDE + first
        source = x + (corner * FROM)[:, None] + packed[None, :]
        mask, whole = there & readable, EVEN and PACKED == COLUMNS * FROM and COLUMNS <= SPAN
        values = _load(source, mask, whole)
        result = tl.dot(tl.trans(values), slope, result)
        if ROWS > 1:
            values = _load(source + pitch * FROM, mask, whole)
            middle = tl.dot(tl.trans(values), slope, middle)
            values = _load(source + 2 * pitch * FROM, mask, whole)
            bottom = tl.dot(tl.trans(values), slope, bottom)
    pixel = (outs // TO)[None, :]
    tap = first + packed[:, None] // FROM - pixel
    before = packed[:, None] % FROM
    used = (tap >= 0) & (tap < 3) & (before < GIVEN) & (packed < COLUMNS * FROM)[:, None]
    place = (((program * PAIR + pixel) * TO + after[None, :]) * 9 + tap_row * 3 + tap) * GIVEN + before
    tl.store(partial + place, result, mask=used)
    if ROWS > 1:
        tl.store(partial + place + 3 * GIVEN, middle, mask=used)
        tl.store(partial + place + 6 * GIVEN, bottom, mask=used)


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
def scale_shift_relu(
    y,
    statistics,
    shortcut,  # with a border, as out
    out,
    places,
    HEIGHT: constexpr,
    WIDTH: constexpr,
    CHANNELS: constexpr,
    ADD: constexpr,
    BLOCK: constexpr,
):
    """out = relu(y · scale + shift [+ shortcut]), and 0 in the border."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, CHANNELS)
    pixel, inside = _unbordered(at, HEIGHT, WIDTH)
    there = (at < places)[:, None]
    inside = inside[:, None] & there
    place = at[:, None] * CHANNELS + channel[None, :]
    scale = tl.load(statistics + 2 * CHANNELS + channel)[None, :]
    shift = tl.load(statistics + 3 * CHANNELS + channel)[None, :]
    source = y + pixel[:, None] * CHANNELS + channel[None, :]
    value = tl.load(source, mask=inside, other=0.0).to(tl.float32) * scale + shift
    if ADD:
        value += tl.load(shortcut + place, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(inside, tl.maximum(value, 0.0), 0.0)
    tl.store(out + place, value.to(out.dtype.element_ty), mask=there)


@triton.jit
def mask_and_sum(
    dout,
    out,  # with a border
    y,
    statistics,
    dz,
    partial,
    pixels,
    HEIGHT: constexpr,
    WIDTH: constexpr,
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
        bordered = _bordered(pixel, HEIGHT, WIDTH)[:, None] * CHANNELS + channel[None, :]
        slope = tl.load(dout + place, mask=there, other=0.0)
        slope = tl.where(tl.load(out + bordered, mask=there, other=0.0) > 0, slope, 0.0)
        tl.store(dz + place, slope, mask=there)
        normal = (tl.load(y + place, mask=there, other=0.0).to(tl.float32) - mean) * inverse
        total += tl.sum(slope.to(tl.float32), 0)
        second += tl.sum(slope.to(tl.float32) * normal, 0)
    tl.store(partial + program * (2 * CHANNELS) + channel, total)
    tl.store(partial + program * (2 * CHANNELS) + CHANNELS + channel, second)
