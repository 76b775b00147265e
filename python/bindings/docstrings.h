// SPDX-License-Identifier: BSD-3-Clause

// Docstrings of the bindings' functions. inspect.signature reads their first lines.
#pragma once

namespace remat::python {

constexpr const char* kCheckpointDoc =
    R"(checkpoint(*, region_name=None, preserve_rng_state=True, determinism_check="metadata", saved_tensors_hooks=None, recompute_state_hooks=(), early_stop=True, intercept=True, implicit_keep="keep", offload_store=None, offload_inputs=False, generators=(), policy=None, replay="function", cuts=None, plan=None)
--

Checkpoints a function in three calls: checkpoint(options)(fn)(*args, **kwargs).

fn runs in the forward; what autograd saves in it is dropped, and fn runs again (the replay) when
backward reaches what it returned. Gradients, buffers and random streams are bitwise those of
fn(*args, **kwargs). Tensors at any depth of tuples, lists, dicts, named tuples and registered
pytree nodes among the arguments can be dropped by a region around this one; everything else is
passed to the replay as it is, containers as they were at the call. fn returns a Tensor or a nesting
of tuples, lists and dicts of Tensors, which is returned unchanged; another leaf raises RuntimeError.

region_name: names the region in messages.
preserve_rng_state: random ops draw the same numbers in the replay, from the default generators and
    `generators`.
determinism_check: "metadata" (or "default") compares each op and saved tensor of the replay with
    the forward's; "none" which op saves it, its shape, dtype and device. A difference raises ReplayMismatch in backward.
saved_tensors_hooks: (pack, unpack), (pack, unpack, capture_context) or a saved_tensors_hooks, for
    what the region keeps.
recompute_state_hooks: RecomputeStateHook objects, for state that fn changes.
early_stop: ends the replay after the last value that backward needs, by a BaseException in fn.
intercept: sees every op of the region, so that writes outside happen once and changes are found.
policy: what is kept of which op: a PolicyTable, the name of a preset, a list of ops to SAVE, or a function
(context, op, *args, **kwargs). None: what REMAT_POLICY says.
replay: "function" calls fn again; "tape" runs the recorded ops of the forward in C++, and raises where it
cannot; "auto" is "tape" where that can be done. Side effects of fn happen once under a tape.
cuts: Cuts, where the tape is cut into segments that backward replays one by one. Needs replay="tape".
plan: a MemoryPlan, carried out by replay="tape". Another step than the one that was planned warns,
    and is cut by bytes from the first op that differs.
implicit_keep: "keep", "warn_once" or "error": a bare op reads a result of a SAVE call.
offload_store: an OffloadStore, where OFFLOAD calls keep values; see offload() and host_memory_store().
offload_inputs: keeps the region's tensor arguments there too, but for parameters.

Raises TypeError or ValueError, naming the option. A decorator too.)";

constexpr const char* kRegionTapesDoc =
    R"(region_tapes()
--

The tapes that regions have recorded and backward has not used up, oldest first. str(tape) numbers
the records as Cuts.positions wants them; tape.ops names their ops, tape.bytes is the tape's own
size in host memory. A tape holds what it replays from: let go of it.)";

constexpr const char* kRegionDoc =
    R"(region(fn, name, *, recompute, keep="innermost_region")
--

Names a part of a region's function: region(fn, name, recompute=False)(*args, **kwargs).

recompute=False keeps what backward needs of the call and leaves it out of replays; True runs it
again. Outside of checkpoint() it is a plain call. fn returns None, a Tensor, or a nesting of them.
`name` is unique in the region, see name_scope. keep="all_regions" keeps it for the regions around
the innermost one too. Raises RuntimeError if fn is no function or recompute no bool, ValueError if
the name is empty; when called, RuntimeError if the name was used before.)";

constexpr const char* kNativeOpDoc =
    R"(native_op(fn, name, policy, keep="innermost_region")
--

As region(), with a CheckpointPolicy: SAVE, RECOMPUTE or OFFLOAD.)";

constexpr const char* kOpDoc =
    R"(op(fn, name, policy, keep="innermost_region")
--

Names the call of a custom autograd function: op(F.apply, name, policy)(*args, **kwargs).

The forward() of F takes part in it: it is decorated with auto_forward(), or calls get_handle(ctx).
It is entered in replays too, where auto_forward() or the handle answers for a SAVE call. `policy`: a
CheckpointPolicy. Outside of checkpoint() it is a plain call. Raises RuntimeError if fn is no function
or policy no CheckpointPolicy, ValueError if the name is empty; when called, RuntimeError if the name
was used before, ValueError if the forward() does not take part.)";

constexpr const char* kAutoForwardDoc =
    R"(auto_forward(*names)
--

Makes the forward() of a custom autograd function a named call, with the name and policy of the op()
that calls it; a decorator below @staticmethod. `names`: of the tensors that forward() gives to
ctx.save_for_backward(), in that order, for reports.

A SAVE call's body does not run in a replay. Called without op() it is a plain forward(). Raises
RuntimeError for a name that is used twice, ValueError for an empty one; when called, RuntimeError if
forward() saves more or fewer tensors than there are names. The arguments and results of forward()
that are tensors are found as region() finds them; what ctx.mark_dirty() and
ctx.mark_non_differentiable() were told is told again in the replay.)";

constexpr const char* kGetHandleDoc =
    R"(get_handle(ctx, name=None, policy=None, keep="innermost_region")
--

Makes the forward() of a custom autograd function a named call, and returns its RematHandle. `ctx`:
the one that forward() was given. Name and policy are those of the op() around if they are None.

    def forward(ctx, x):
        handle = remat.get_handle(ctx, "square", remat.CheckpointPolicy.SAVE)
        if (out := handle.maybe_load_saved()) is not None:
            return out
        x = handle.save_or_load_inputs(x)
        handle.save_for_backward({"x": x})
        return handle.record_outputs(x * x)

Raises RuntimeError if the name is used twice in a region or policy is no CheckpointPolicy, ValueError
if the name is empty, or if there is neither a name nor an op() around.)";

constexpr const char* kRematHandleDoc =
    "The named call that forward() of a custom function is, from get_handle() to record_outputs(). "
    "Used on the thread of forward() and while that runs. Outside of checkpoint() it passes on "
    "what "
    "it is given. Without record_outputs() the call counts as one that raised: ops outside may "
    "not read what a SAVE call has made then.";

constexpr const char* kMaybeLoadSavedDoc =
    "maybe_load_saved(): in the replay of a SAVE call what forward() is to return at once (one "
    "Tensor, or a tuple of them), else None. To be called first: in such a replay the other "
    "methods "
    "raise RuntimeError otherwise.";

constexpr const char* kSaveOrLoadInputsDoc =
    "save_or_load_inputs(*inputs): the inputs, one alone or a tuple of several. Those that are "
    "results of SAVE calls are kept, if forward() runs again.";

constexpr const char* kHandleSaveDoc =
    "save_for_backward({name: Tensor or None}): ctx.save_for_backward() of the values, in the "
    "dict's "
    "order, with names for reports. Raises ValueError for an empty name, RuntimeError for one with "
    "a "
    "dot and for other values.";

constexpr const char* kRecordOutputsDoc =
    "record_outputs(*outputs): what to return from forward(), one Tensor alone or a tuple of "
    "several. Ends the call. Raises RuntimeError for a leaf that requires grad.";

constexpr const char* kSaveForBackwardDoc =
    R"(save_for_backward(ctx, tensors)
--

ctx.save_for_backward(*tensors.values()) of a dict {name: Tensor or None}. Raises ValueError for an
empty name, RuntimeError for one with a dot and for other values.)";

constexpr const char* kPolicyTableDoc =
    R"(PolicyTable(): rules that say what becomes of a region's ops and named calls.

checkpoint(policy=save_matmuls().op(torch.ops.aten.topk, CheckpointPolicy.SAVE))(fn)(x)

op(op, policy): adds a rule for ops: torch.ops.aten.mm, torch.ops.aten.add.Tensor, or a string such as
"aten::mm", "mm", "aten.mm.default", "c10d::*", "tag:pointwise", "tag:view". Without an overload all are
meant; an op made of others (aten::linear) is matched whole by its name, and not by a glob.
call(name, policy): adds a rule for named calls, with * and ?: "block*/attention". It changes what the code
says of them. An op that a rule SAVEs is a call named "aten::mm#3": with "::" in it, a rule means these.
add(table): adds all rules of another table. These three return the table.

Rules for calls come before rules for ops; within each, the first that matches decides; after them come
safe_defaults(). Ops that no rule matches run again.

explain(call): what becomes of the call "block/aten::mm#3", and by which rule, as text.
to_json(), from_json(text, source), load(path): docs/policies.md has the format.

Raises ValueError for an op that cannot be, and for a file that is none, with its place.)";

constexpr const char* kSaveMatmulsDoc =
    "save_matmuls(): a PolicyTable that SAVEs what multiplies matrices.";
constexpr const char* kSaveComputeIntensiveDoc =
    "save_compute_intensive(): a PolicyTable that SAVEs matrix products, convolutions, attention "
    "and resampling.";
constexpr const char* kRecomputePointwiseDoc =
    "recompute_pointwise(): a PolicyTable that SAVEs all but pointwise ops, copies and views.";
constexpr const char* kSafeDefaultsDoc =
    "safe_defaults(): a PolicyTable that SAVEs what a second run might do differently, or must not "
    "do twice: "
    "indices and sizes that depend on data, and collectives. Part of every policy, after its own "
    "rules.";

constexpr const char* kSavedTensorsHooksDoc =
    R"(with saved_tensors_hooks(pack, unpack, *, capture_context=None): decides how saved tensors are kept.

Outside of regions it is torch.autograd.graph.saved_tensors_hooks. Around a region, or inside one, it
serves what SAVE and OFFLOAD calls keep, and around a region also the region's tensor arguments; not
what a replay makes again. The innermost pair serves, after it has been left too.

pack(tensor): gets a detached tensor on the memory of the saved one; returns any object to keep.
unpack(object): returns a Tensor of the same shape, dtype, device and values; once per load.
capture_context(): called where such a tensor is made; current_saved_tensor_info() has its result.

Raises TypeError if one of them is no function. Errors of the functions pass to the caller.)";

constexpr const char* kNeedsTensorDoc =
    R"(recompute_needs_tensor(*tensors)
--

Tells the region that code which runs again reads these tensors, where they are results of SAVE
calls, in a way that remat cannot see (through .numpy() or a pointer), or before implicit_keep
complains. Views stand for the whole. Does nothing for other tensors, in a replay and outside.)";

constexpr const char* kReplayClockDoc =
    R"(ReplayClock()

Counts the CPU time of replays from tapes while it is open: with ReplayClock() as clock: ...;
clock.cpu_seconds(). Ops in regions take some hundred nanoseconds more meanwhile. Any thread.)";

constexpr const char* kMemoryMeterDoc =
    R"(MemoryMeter()

Counts the memory that this thread, and the backwards that it begins, allocate from torch while the meter
is open: with MemoryMeter() as meter: ..., in the block or after it meter.peak_bytes(). current_bytes(device="cpu")
and peak_bytes(device="cpu") are bytes of all devices of that type, or of one ("cuda:1"); after the block those of its end. Blocks that are
older count nothing. Meters nest. RuntimeError where a torch profiler runs.)";

constexpr const char* kRecorderDoc =
    R"(Recorder(path, *, source_lines=False)

Writes all that the program does into a file, while open: with Recorder("step.rec") as recording: ...
Each op of any thread, in the forward, in replays and in backward, inside of regions and outside; what
autograd saves in regions; nodes of backward; memory. recording.mark("step 1") names a moment; stop()
ends it, and raises RuntimeError if the file could not be written to its end; report("step.html") ends it
and writes a page for browsers, which a notebook shows where the recorder is a cell's result. One at a time; none under
a torch profiler. REMAT_RECORD=FOLDER does the same for a whole process, with REMAT_RECORD_LINES=1 with
source lines: of each op the line of the program, which takes some hundred nanoseconds more. The program
remat-trace reads the file.)";

constexpr const char* kMemoryReportDoc =
    R"(memory_report()

What the regions of this process hold now and why, in bytes: a MemoryReport, whose str() is a text.
for region in report: for row in region: row.name, row.tensor, row.bytes, row.why. Each storage is
billed once, to the oldest region that has it; leaves that require grad are not. Regions whose
forward runs on another thread are left out. Any thread.

changes: what holds it that you have a choice about, and what another choice would free, by estimate,
each the most valuable one after those before it: change.reason, change.change, change.bytes (alone),
change.bytes_so_far, change.device, change.tensors, change.regions. changes_str(device="cuda:0",
wanted=2 << 30) is a text that says which of them are enough.)";

constexpr const char* kStepProfileDoc =
    R"(What a training step makes, keeps and costs, op by op: profile(fn)(*args) measures one.

len() counts the ops that make memory or write it. device is the accelerator whose memory the bytes are, "" for the CPU. plan(budget) gives the MemoryPlan for a budget: bytes, "8GB", or
"60%" of plain_peak_bytes; MemoryPlanner(profile) plans several; offload=store: what is kept may move to that store of
offload(). to_json() gives a text that
from_json() reads, save(path) a file for load(path). ValueError for other budgets and damaged text.)";

constexpr const char* kMemoryPlannerDoc =
    R"(MemoryPlanner(profile, offload=None)

Plans a measured step for all budgets at once, without torch. plan(budget) gives the fastest
plan found whose predicted peak is within the budget (bytes, or text as in StepProfile.plan());
frontier says what each budget buys. offload: a store of offload() with max_leaving_bytes, to which
plans may move what they keep.)";

constexpr const char* kMemoryPlanDoc =
    R"(Where a step is cut and what is kept of it, for a budget of bytes above what is alive when the
step begins: activations, their gradients and temporaries.

feasible, budget_bytes, predicted_peak_bytes, least_budget_bytes, predicted_overhead (time of what
runs again over that of the step, waits for copies included), offloaded_bytes, predicted_wait_us, peak_at, and limit, which says what stands in the way of a budget
that is too small. checkpoint(plan=plan)(fn) carries it out, with offload_store= if it was planned with one. table() is a text with a line per phase,
explain(where) one about a module or op, frontier() what other budgets buy. save(path) and load(path)
keep a plan with its profile. to_json() gives a text that from_json(text, profile) reads: ValueError
names the first op that differs from the profile's.)";

constexpr const char* kNameScopeDoc =
    "with name_scope(prefix): names of calls inside begin with the prefix and a slash. Scopes "
    "nest; to be entered in the function of a region.";

constexpr const char* kIsRecomputingDoc =
    "True while this thread runs a region's function again. From the question on, forward and "
    "replay are compared by their saved tensors only: the function may do other things in each.";

constexpr const char* kIsPlaceholderDoc =
    "True for a tensor without data: a stand-in for a SAVE result in a replay, a tensor on the "
    "device remat_meta, or a view of one.";

}  // namespace remat::python
