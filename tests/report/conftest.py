"""The browser that tests of pages share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.browser import PATIENCE, Driver, Open, ready, start
from selenium.webdriver.support.ui import WebDriverWait


@pytest.fixture(scope="session")
def driver() -> Iterator[Driver]:
    opened = start()
    yield opened
    opened.quit()


@pytest.fixture
def open_page(driver: Driver) -> Open:
    def opened(path: Path, width: int = 1200, height: int = 900) -> Driver:
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        driver.get("about:blank")
        for kind in ("browser", "performance"):
            driver.get_log(kind)  # what came before is not ours
        driver.get(path.as_uri())
        WebDriverWait(driver, PATIENCE).until(ready)
        return driver

    return opened
