# SPDX-License-Identifier: BSD-3-Clause

"""Plans that offload kept values: bits, peaks, files, and stores that do not fit the plan."""

import copy
import functools
import pickle

import pytest
import torch
from same import DEVICE, assert_equal
from torch.nn import functional as F

import remat_meta as remat

WINDOW = 1 << 18


class Block(torch.nn.Module):
    """A block whose results take long to compute for their size."""

    def __init__(self, size):
        super().__init__()
        self.up, self.down = torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)
        self.norm = torch.nn.LayerNorm(size)

    def forward(self, x):
        return x + self.down(F.dropout(F.gelu(self.up(self.norm(x))), 0.1))


def make_store(**options):
    limits = {"min_bytes": 4096, "max_leaving_bytes": WINDOW, "prefetch_bytes": WINDOW}
    return remat.offload("host", **{**limits, **options})


class Step:
    def __init__(self, layers=6, size=256):
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(Block(size) for _ in range(layers))
        self.x = torch.randn(128, size, requires_grad=True)
        self.run(self.loss)  # makes the gradients

    def loss(self):
        return functools.reduce(lambda h, layer: layer(h), self.layers, self.x).square().mean()

    def run(self, loss):
        """Returns the peak, and the tensors that must be the same."""
        self.layers.zero_grad(set_to_none=False)
        self.x.grad = None if self.x.grad is None else self.x.grad.zero_()
        torch.manual_seed(3)
        with remat.MemoryMeter() as meter:
            result = loss()
            result.backward()
            value = result.detach().clone()
            del result
            peak = meter.peak_bytes(DEVICE)
        return peak, [value, self.x.grad.clone(), *(p.grad.clone() for p in self.layers.parameters())]


@pytest.fixture(scope="module")
def step():
    return Step()


@pytest.fixture(scope="module")
def profile(step):
    return remat.profile(step.loss)()


@pytest.fixture(scope="module")
def moved(profile):
    """Returns a store, and a plan for it that offloads something."""
    store = make_store()
    planner = remat.MemoryPlanner(profile, offload=store)
    plans = [planner.plan(f"{share}%") for share in range(20, 100, 5)]
    return store, max(plans, key=lambda plan: plan.offloaded_bytes)


def test_planned_moves_are_bitwise_and_within_the_peak(step, moved):
    store, plan = moved
    assert plan.feasible and plan.offloaded_bytes > 0
    _, plain = step.run(step.loss)
    planned = remat.checkpoint(plan=plan, offload_store=store)(step.loss)
    for _ in range(3):
        before = store.stats()["left_bytes"]
        peak, got = step.run(planned)
        assert_equal(plain, got)
        assert peak <= plan.predicted_peak_bytes
        # A tensor that is needed before it has left stays.
        assert 0 < store.stats()["left_bytes"] - before <= plan.offloaded_bytes
    assert store.stats()["away_bytes"] == store.stats()["leaving_bytes"] == 0


def test_a_link_makes_no_plan_slower(profile):
    alone, linked = remat.MemoryPlanner(profile), remat.MemoryPlanner(profile, offload=make_store())
    for share in range(20, 100, 10):
        without, with_link = alone.plan(f"{share}%"), linked.plan(f"{share}%")
        assert with_link.feasible >= without.feasible
        if without.feasible:
            assert with_link.predicted_overhead <= without.predicted_overhead


def test_a_plan_that_moves_is_saved_and_loaded(step, moved, tmp_path):
    store, plan = moved
    plan.save(tmp_path / "plan.json")
    loaded = remat.MemoryPlan.load(tmp_path / "plan.json")
    assert loaded.to_json() == plan.to_json() == pickle.loads(pickle.dumps(plan)).to_json()
    assert loaded.offloaded_bytes == plan.offloaded_bytes and loaded.predicted_wait_us == plan.predicted_wait_us
    assert "offloads" in loaded.table() and "offloads" in loaded.explain()
    _, plain = step.run(step.loss)
    assert_equal(plain, step.run(remat.checkpoint(plan=loaded, offload_store=store)(step.loss))[1])


def test_its_cuts_say_what_moves(step, moved):
    store, plan = moved
    moves = [kept for kept in plan.cuts.keep if len(kept) == 3]
    assert moves and all(kept[2] is remat.CheckpointPolicy.OFFLOAD for kept in moves)
    _, plain = step.run(step.loss)
    region = remat.checkpoint(replay="tape", cuts=plan.cuts, offload_store=store)
    assert_equal(plain, step.run(region(step.loss))[1])


def test_a_plan_that_moves_wants_its_store(moved):
    _, plan = moved
    with pytest.raises(ValueError, match=r"region 'step': plan: expected the offload_store that it was planned with"):
        remat.checkpoint(plan=plan, region_name="step")
    for limit, other in {"min_bytes": 4097, "prefetch_bytes": WINDOW + 1, "max_leaving_bytes": None}.items():
        with pytest.raises(ValueError, match=rf"region 'step': offload_store: expected {limit} of at most .* Use the store"):
            remat.checkpoint(plan=plan, region_name="step", offload_store=make_store(**{limit: other}))
    for other in ({"max_bytes": 1 << 20}, {"host_bytes": 1 << 20}):
        with pytest.raises(ValueError, match="offload_store: expected .* of at least 9223372036854775807.*would stay"):
            remat.checkpoint(plan=plan, region_name="step", offload_store=make_store(**other))
    with pytest.raises(ValueError, match="expected min_bytes of at most"):
        remat.checkpoint(plan=plan, region_name="step", offload_store=remat.mask_store())
    # Stores that copy at once, and user hooks, leave nothing under way.
    remat.checkpoint(plan=plan, offload_store=remat.host_memory_store())


def test_a_store_without_limits_cannot_be_planned_for(profile):
    with pytest.raises(ValueError, match="max_leaving_bytes: expected a limit, got none"):
        profile.plan("50%", offload=remat.offload("host"))
    for make in (lambda store: profile.plan("50%", offload=store), lambda store: remat.MemoryPlanner(profile, offload=store)):
        for other in ("host", remat.host_memory_store()):
            with pytest.raises(TypeError, match=r"offload: expected a store of remat.offload\(\), got"):
                make(other)


def test_stores_stay_in_their_process():
    for store in (make_store(), remat.host_memory_store(), remat.mask_store()):
        with pytest.raises(TypeError, match="expected what stays in its process, got a store to pickle"):
            pickle.dumps(store)
    model = remat.auto_checkpoint(Block(8), "50%", offload=make_store())
    with pytest.raises(TypeError, match="state_dict"):
        pickle.dumps(model)
    copy.deepcopy(model)


def test_a_plan_for_another_device_is_refused(profile):
    other = "cpu" if DEVICE == "cuda" else "cuda"
    with pytest.raises(ValueError, match=f"terms: expected {other}, the device of this store, got {DEVICE}"):
        profile.plan("50%", offload=make_store(device=other))


def test_windows_that_leave_no_room_are_told(profile):
    with pytest.warns(UserWarning, match="nothing moves: .* smaller ones"):
        plan = profile.plan("50%", offload=make_store(max_leaving_bytes=64 << 20))
    assert plan.offloaded_bytes == 0


def test_wrong_guesses_of_the_order_stay_within_the_peak(step, profile):
    store = make_store()
    planner = remat.MemoryPlanner(profile, offload=store)
    plans = [planner.plan(f"{share}%") for share in (40, 60, 80)]
    _, plain = step.run(step.loss)
    for _ in range(3):  # takes turns: each store is used in another order than the last time
        for plan in plans:
            if plan.feasible:
                peak, got = step.run(remat.checkpoint(plan=plan, offload_store=store)(step.loss))
                assert_equal(plain, got)
                assert peak <= plan.predicted_peak_bytes


def test_terms_are_measured_once(tmp_path):
    store = remat.offload(("host", "disk"), directory=tmp_path, host_bytes=1 << 22, min_bytes=0)
    terms = store.terms()
    host, disk = terms["places"]
    assert host["name"] == "host memory" and disk["name"] == "disk"
    assert host["max_bytes"] == 1 << 22 and disk["max_bytes"] is None
    for place in (host, disk):
        assert place["out_gbps"] > 0 and place["in_gbps"] > 0 and place["latency_us"] >= 0
    assert terms["min_bytes"] == 0 and terms["max_leaving_bytes"] is None
    assert store.terms() == store.terms(DEVICE) == store.terms(torch.device(DEVICE)) == terms
    assert store.stats()["left_count"] == 0
    with pytest.raises(ValueError, match="got host memory of 4095 bytes"):
        remat.offload("host", host_bytes=4095).terms()
    assert remat.offload("host", host_bytes=10_000_000).terms()["places"][0]["max_bytes"] == 10_000_000


def planned_model(offload, **options):
    """Returns a model within a budget, whose steps are planned, and its plain twin."""
    torch.manual_seed(0)
    plain = torch.nn.Sequential(*(Block(256) for _ in range(6)))
    model = remat.auto_checkpoint(copy.deepcopy(plain), "50%", offload=offload, **options)
    x = torch.randn(512, 256)
    results = []
    for which in (plain, model):
        for i in range(6):
            which.zero_grad(set_to_none=False)
            torch.manual_seed(i)
            which(x).square().mean().backward()
        results.append([p.grad.clone() for p in which.parameters()])
    assert_equal(*results)
    return model


def test_a_model_within_a_budget_moves_what_it_keeps(tmp_path):
    store = make_store()
    model = planned_model(store, plan=tmp_path / "plan.json")
    plan = remat.memory_plan(model)
    assert plan.feasible and plan.offloaded_bytes > 0
    assert 0 < store.stats()["left_bytes"]
    assert store.stats()["away_bytes"] == 0
    # A copy of the model shares the store.
    before = store.stats()["left_bytes"]
    assert remat.memory_plan(planned_model(store, plan=tmp_path / "plan.json")).offloaded_bytes == plan.offloaded_bytes
    assert store.stats()["left_bytes"] > before
    with pytest.raises(ValueError, match="expected a plan that moves nothing, as auto_checkpoint.* has no store"):
        planned_model(None, plan=tmp_path / "plan.json")


def test_a_model_within_a_budget_wants_an_engine_with_limits():
    for other in ("host", remat.host_memory_store(), remat.mask_store()):
        with pytest.raises(TypeError, match=r"\[auto_checkpoint\] offload: expected a store of remat.offload\(\), got"):
            remat.auto_checkpoint(Block(8), "50%", offload=other)
    with pytest.raises(ValueError, match=r"\[auto_checkpoint\] 'Block': .*max_leaving_bytes: expected a limit, got none"):
        remat.auto_checkpoint(Block(8), "50%", offload=remat.offload("host"))
