"""A browser for the pages of tests."""

from collections.abc import Iterator

import pytest

from mmrl.environments.browser import Browser
from tests.web_pages import PATIENT


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for the pages of these tests."""
    browser = Browser(folder=str(tmp_path_factory.mktemp("pages")), **PATIENT)
    yield browser
    browser.close()
