"""Networks by name: what is asked for and not there is named, with the extra that has it."""

from __future__ import annotations

import sys

import pytest

from equipoise.models.classifiers import make_backbone


@pytest.mark.parametrize(("library", "extra"), [("torchvision", "train"), ("timm", "timm")])
def test_a_name_that_is_not_found_says_which_library_is_missing(
    library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ValueError, match=rf"{library} is not installed: pip install 'equipoise\[{extra}\]'"):
        make_backbone("no_such_network", 32)
