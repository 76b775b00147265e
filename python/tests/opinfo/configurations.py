# SPDX-License-Identifier: BSD-3-Clause

"""How an op is run: its dtype, its part in a region, the replay engine, the policy."""

import dataclasses
import itertools

import torch

import remat_meta as remat

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)
MODES = ("region", "nested", "in_place")
REPLAYS = ("function", "tape", "auto")


def every_op(policy):
    return remat.PolicyTable().op("*", policy)


# Options of a region by name: they say which tensors are kept, and where.
STORE = {"offload_store": remat.host_memory_store()}
POLICIES = {
    "none": {},
    "all_save": {"policy": every_op(remat.CheckpointPolicy.SAVE)},
    "all_offload": {"policy": every_op(remat.CheckpointPolicy.OFFLOAD), **STORE},
    "save_matmuls": {"policy": "save_matmuls"},
    "save_compute_intensive": {"policy": "save_compute_intensive"},
    "recompute_pointwise": {"policy": "recompute_pointwise"},
    "safe_defaults": {"policy": "safe_defaults"},
    "copying_hooks": {"saved_tensors_hooks": (torch.clone, lambda copy: copy)},
}


@dataclasses.dataclass(frozen=True)
class Configuration:
    dtype: torch.dtype = torch.float32
    mode: str = "region"  # a key of harness.MODES
    replay: str = "function"
    policy: str = "none"

    def __str__(self):
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype}-{self.mode}-{self.replay}-{self.policy}"

    def checkpoint(self, region_name):
        """Returns a function that checkpoints a function."""
        options = {"region_name": region_name, "replay": self.replay, **POLICIES[self.policy]}
        if self.mode == "offload":
            options |= STORE
        return remat.checkpoint(**options)

    @property
    def steps(self):
        """Number of steps of a case: a tape of "auto" is trusted from the second step on."""
        return 2 if self.replay == "auto" else 1


# Without a policy, in float32: all modes, named calls and out= among them.
BASE = [
    Configuration(mode=mode, replay=replay)
    for mode in (*MODES, "save", "offload", "out")
    for replay in ("function", "tape")
]
PRODUCT = list(
    itertools.starmap(Configuration, itertools.product(DTYPES, MODES, REPLAYS, POLICIES))
)
EVERY = list(dict.fromkeys(BASE + PRODUCT))
