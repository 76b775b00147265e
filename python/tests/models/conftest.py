# SPDX-License-Identifier: BSD-3-Clause

"""These libraries leave a million objects: the collections between tests pass them over."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="session")
def libraries_are_not_collected():
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
