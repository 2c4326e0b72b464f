"""Draw the pictures of the report's documentation: run the demonstration, open its report in Chromium, photograph it.

    python tools/pictures.py                     about two minutes; writes docs/images/report-*.png and inspect.svg
    python tools/pictures.py --report FILE       photograph a report that is there already

Needs the extra [dev], Chromium and its driver (Debian: apt-get install chromium chromium-driver).
"""

from __future__ import annotations

import argparse
import base64
import io
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from equipoise.cli.inspect import show_inspection
from equipoise.data.digits import load_digits_lt
from equipoise.data.sources import Source
from equipoise.files import write_text, written_whole
from equipoise.report.inspection import look

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


def browser() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
    for flag in FLAGS:
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def photograph(
    driver: webdriver.Chrome, page: Path, out: Path, *, width: int, theme: str, section: str = "", height: int = 0
) -> None:
    """The top of the page, or one section of it, in a window of some width."""
    size = {"width": width, "height": height or 900, "deviceScaleFactor": 1.25, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    driver.get(page.resolve().as_uri())
    while not driver.execute_script("return document.documentElement.dataset.ready"):
        time.sleep(0.1)
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    if section:
        move = "const s = document.getElementById('alpha'); s.value = 8; s.dispatchEvent(new Event('input'))"
        driver.execute_script(move)
        found = "const r = [...document.querySelectorAll('section')].find(s => s.textContent.startsWith(arguments[0]))"
        box = driver.execute_script(f"{found}.getBoundingClientRect(); return [r.y + scrollY, r.height]", section)
        clip |= {"y": box[0], "height": box[1]}
    time.sleep(0.5)
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    with written_whole(out) as scratch:
        picture.save(scratch, optimize=True)
    print(f"{out.name}: {out.stat().st_size / 1e3:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, help="a report that is there already")
    options = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    show_inspection(look(Source(Path("digits/train"), load_digits_lt(50).prior, "images")), console)
    console.print()  # or the last line is cut off
    plain = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # no fonts from the network
    shown = console.export_svg(title="equipoise inspect", unique_id="inspect", code_format=plain)
    write_text(IMAGES / "inspect.svg", shown)
    with tempfile.TemporaryDirectory() as folder:
        page = options.report
        if page is None:
            subprocess.run([sys.executable, "-m", "equipoise", "demo", "--out", folder], check=True)
            page = Path(folder) / "report.html"
        driver = browser()
        try:
            photograph(driver, page, IMAGES / "report-top.png", width=1160, height=1330, theme="light")
            photograph(driver, page, IMAGES / "report-phone.png", width=390, height=844, theme="dark")
            section = "If class frequencies change"
            photograph(driver, page, IMAGES / "report-sweep.png", width=1160, theme="light", section=section)
        finally:
            driver.quit()


if __name__ == "__main__":
    main()
