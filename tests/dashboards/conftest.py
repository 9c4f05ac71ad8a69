import shutil
from pathlib import Path

import pytest

from tests.dashboards.synthetic import write_sweep


@pytest.fixture(scope="session")
def chromium() -> str:
    """The system's Chromium, or the one that playwright brings."""
    from playwright.sync_api import sync_playwright

    installed = shutil.which("chromium")
    if installed is not None:
        return installed
    with sync_playwright() as playwright:
        brought = playwright.chromium.executable_path
    assert Path(brought).exists(), "there is no Chromium: type `playwright install chromium`"
    return brought


@pytest.fixture(scope="session")
def demo_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_sweep(tmp_path_factory.mktemp("sweep"))
