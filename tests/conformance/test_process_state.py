"""What a target may change in its process is put back after each case."""

import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from conformance.process_state import settings_kept


def settings() -> tuple:
    return list(warnings.filters), np.geterr(), sys.getrecursionlimit(), os.getcwd()


@pytest.mark.parametrize("raises", [False, True])
def test_settings_are_put_back(tmp_path: Path, raises: bool) -> None:
    before = settings()
    try:
        with settings_kept():
            warnings.simplefilter("ignore")
            np.seterr(all="raise")
            sys.setrecursionlimit(before[2] + 1)
            os.chdir(tmp_path)
            assert all(now != then for now, then in zip(settings(), before, strict=True))
            if raises:
                raise ValueError
    except ValueError:
        assert raises
    assert settings() == before
