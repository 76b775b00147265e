# SPDX-License-Identifier: BSD-3-Clause

"""Excludes the million objects of these libraries from the collections between tests."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="session")
def libraries_are_not_collected():
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
