"""Charts as files: the page's specifications, or an experiment's own, rendered by vl-convert without a browser."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from equipoise.files import written_whole
from equipoise.report.specs import CONFIG, SCHEMA, Spec

VEGA_LITE = "6.4"
WIDTH = 620
SCALE = 2  # pixels of a PNG per pixel of the chart
FONT = "Liberation Sans, Arial, sans-serif"  # the first comes with vl-convert


def standing_alone(spec: Spec, rows: Sequence[Spec], *, title: str = "", subtitle: str = "") -> Spec:
    """A chart of the page as a separate figure: with its rows, a size, and the light page's colours on white."""
    made: Spec = finished(spec) | {"data": {"name": "rows", "values": list(rows)}, "width": WIDTH}
    del made["autosize"]
    if title:
        words = {"text": title, "subtitle": subtitle, "limit": WIDTH, "anchor": "start", "offset": 12}
        made["title"] = words | {"fontSize": 14, "subtitleColor": "#5b636e", "subtitleFontSize": 12}
    return made


def finished(spec: Spec) -> Spec:
    """A chart with the colours of the light page in place of the variables that name them, on white."""
    css = (resources.files("equipoise.report") / "page_files" / "page.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", css[: css.index("}")]))
    config = CONFIG | {"font": FONT, "background": "white", "padding": 12}
    made: Spec = {"$schema": SCHEMA} | spec | {"config": config}
    coloured: Spec = json.loads(
        re.sub(r"var\(--([\w-]+)\)", lambda found: colours.get(found[1], found[0]), json.dumps(made))
    )
    return coloured


def heading(text: str) -> Spec:
    """The title of one of several panels."""
    return {"text": text, "fontSize": 16, "fontWeight": 500}


def digest(text: str) -> str:
    """Identifies what a figure shows, so that a picture can be compared with the records."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def save(spec: Spec, path: str | Path, *, note: str = "") -> Path:
    """Write a figure as PNG, SVG or PDF, by the file's ending; a `note` is kept in a PNG as its description."""
    vl_convert = renderer()
    path = Path(path)
    text = json.dumps(spec)
    if path.suffix == ".png":
        content = _packed(vl_convert.vegalite_to_png(text, vl_version=VEGA_LITE, scale=SCALE), note)
    elif path.suffix == ".svg":
        content = vl_convert.vegalite_to_svg(text, vl_version=VEGA_LITE).encode()
    elif path.suffix == ".pdf":
        content = vl_convert.vegalite_to_pdf(text, vl_version=VEGA_LITE)
    else:
        raise ValueError(f"{path} cannot be written: a figure is .png, .svg or .pdf")
    with written_whole(path) as scratch:
        scratch.write_bytes(content)
    return path


def renderer() -> Any:
    """vl-convert, which contains Vega and Vega-Lite and needs no network."""
    try:
        import vl_convert  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise ImportError("the page needs vl-convert-python: pip install 'equipoise[report]'") from None
    return vl_convert


def _packed(png: bytes, note: str) -> bytes:
    """A PNG compressed to about a third of what vl-convert writes, with the note as its description."""
    chunks: list[tuple[bytes, bytes]] = []
    place = 8
    while place < len(png):
        size = int.from_bytes(png[place : place + 4])
        chunks.append((png[place + 4 : place + 8], png[place + 8 : place + 8 + size]))
        place += 12 + size
    pixels = zlib.decompress(b"".join(content for kind, content in chunks if kind == b"IDAT"))
    head = [chunk for chunk in chunks if chunk[0] not in (b"IDAT", b"IEND")]
    text = [(b"tEXt", b"Description\0" + note.encode("latin-1"))] if note else []
    made = png[:8]
    for kind, content in [*head, *text, (b"IDAT", zlib.compress(pixels, 9)), (b"IEND", b"")]:
        made += len(content).to_bytes(4) + kind + content + zlib.crc32(kind + content).to_bytes(4)
    return made
