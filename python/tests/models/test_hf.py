# SPDX-License-Identifier: BSD-3-Clause

"""Models of Hugging Face Transformers: two optimizer steps, every bit as in a plain run."""

import pytest
from harness import MODES, VARIANTS, assert_bitwise_plain
from hf_models import CASES

pytestmark = pytest.mark.torch_warns


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_two_steps_are_bitwise_plain(case, variant, mode):
    assert_bitwise_plain(case, variant, mode)
