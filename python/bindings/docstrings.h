// SPDX-License-Identifier: BSD-3-Clause

// Docstrings of the bindings' functions. inspect.signature reads their first lines.
#pragma once

namespace remat::python {

constexpr const char* kCheckpointDoc =
    R"(checkpoint(*, region_name=None, preserve_rng_state=True, determinism_check="metadata", saved_tensors_hooks=None, recompute_state_hooks=(), early_stop=True, intercept=True, implicit_keep="keep", offload_store=None, offload_inputs=False, generators=(), policy=None, replay="function", cuts=None, plan=None)
--

Checkpoints a function in three calls: checkpoint(options)(fn)(*args, **kwargs).

fn runs in the forward, and its saved tensors are dropped. When backward reaches the outputs, fn runs
again (the replay). Gradients, buffers and random streams are bitwise those of fn(*args, **kwargs).
Tensors among the arguments, at any depth of tuples, lists, dicts, named tuples and registered pytree
nodes, can be dropped by a region around this one. The replay gets all other arguments as they are, and
containers as they were at the call. fn must return a Tensor, or a nesting of tuples, lists and dicts of
Tensors, which is returned unchanged. Any other leaf raises RuntimeError.

region_name: name of the region in messages.
preserve_rng_state: random ops that use the default generators or `generators` draw the same numbers in
    the replay.
determinism_check: "metadata" (or "default") compares each op and saved tensor of the replay with
    the forward's; "none" compares only which op saves a tensor, its shape, dtype and device. A
    difference raises ReplayMismatch in backward.
saved_tensors_hooks: (pack, unpack), (pack, unpack, capture_context) or a saved_tensors_hooks, for
    the tensors that the region keeps.
recompute_state_hooks: RecomputeStateHook objects, for state that fn changes.
early_stop: ends the replay after the last value that backward needs, by raising a BaseException in fn.
intercept: sees every op of the region, so that memory from outside is written once, and changes of memory
    that the replay reads are found.
policy: decides which ops' results are kept. A PolicyTable, the name of a preset, a list of ops to SAVE,
    or a function (context, op, *args, **kwargs). None: the policy of REMAT_POLICY.
replay: "function" calls fn again; "tape" runs the recorded ops of the forward in C++, and raises if that
    is impossible; "auto" uses a tape where possible, else calls fn. With a tape, side effects of fn happen
    once.
cuts: Cuts of the tape into segments that backward replays one by one. Needs replay="tape".
plan: a MemoryPlan; implies replay="tape". A step that differs from the planned one warns, and is cut
    by bytes from the first op that differs.
implicit_keep: "keep", "warn_once" or "error", for a bare op that reads a result of a SAVE call.
offload_store: the OffloadStore in which OFFLOAD calls keep values; see offload() and host_memory_store().
offload_inputs: also keeps the region's tensor arguments, except parameters, in offload_store.

Raises TypeError or ValueError that names the option. Can be used as a decorator.)";

constexpr const char* kRegionTapesDoc =
    R"(region_tapes()
--

Returns the tapes that regions have recorded and backward has not used up, oldest first. str(tape)
numbers the records as Cuts.positions does, tape.ops names their ops, and tape.bytes is the tape's own
size in host memory. Do not keep a tape, because it holds the tensors from which it replays.)";

constexpr const char* kRegionDoc =
    R"(region(fn, name, *, recompute, keep="innermost_region")
--

Names a part of a region's function: region(fn, name, recompute=False)(*args, **kwargs).

recompute=False keeps what backward needs of the call, so that replays leave the call out; True runs the
call again. Outside checkpoint() it is a plain call. fn returns None, a Tensor, or a nesting of these.
`name` must be unique in the region, see name_scope. keep="all_regions" keeps the values not only for the
innermost region but also for the regions around it. Raises RuntimeError if fn is no function or recompute
no bool, ValueError if the name is empty; when called, RuntimeError if the name was used before.)";

constexpr const char* kNativeOpDoc =
    R"(native_op(fn, name, policy, keep="innermost_region")
--

Like region(), with a CheckpointPolicy (SAVE, RECOMPUTE or OFFLOAD) in place of `recompute`.)";

constexpr const char* kOpDoc =
    R"(op(fn, name, policy, keep="innermost_region")
--

Names the call of a custom autograd function: op(F.apply, name, policy)(*args, **kwargs).

The forward() of F must take part: decorate it with auto_forward(), or call get_handle(ctx) in it. Replays
enter forward(), too; there auto_forward() or the handle provides the results of a SAVE call. `policy` is
a CheckpointPolicy. Outside checkpoint() it is a plain call. Raises RuntimeError if fn is no function
or policy no CheckpointPolicy, ValueError if the name is empty; when called, RuntimeError if the name
was used before, ValueError if the forward() does not take part.)";

constexpr const char* kAutoForwardDoc =
    R"(auto_forward(*names)
--

A decorator, to put below @staticmethod, that makes the forward() of a custom autograd function a named
call, with the name and policy of the op() that calls it. `names` are names for reports of the tensors
that forward() passes to ctx.save_for_backward(), in that order.

The body of a SAVE call does not run in a replay. Without op(), forward() runs as if it were not
decorated. Tensors among the arguments and results of forward() are found as by region(). The replay
repeats calls of ctx.mark_dirty() and ctx.mark_non_differentiable(). Raises RuntimeError for a name that
is used twice, ValueError for an empty name; when called, RuntimeError if forward() saves more or fewer
tensors than there are names.)";

constexpr const char* kGetHandleDoc =
    R"(get_handle(ctx, name=None, policy=None, keep="innermost_region")
--

Makes the forward() of a custom autograd function a named call, and returns its RematHandle. `ctx`
is the first argument of forward(). If name and policy are None, those of the surrounding op() apply.

    def forward(ctx, x):
        handle = remat.get_handle(ctx, "square", remat.CheckpointPolicy.SAVE)
        if (out := handle.maybe_load_saved()) is not None:
            return out
        x = handle.save_or_load_inputs(x)
        handle.save_for_backward({"x": x})
        return handle.record_outputs(x * x)

Raises RuntimeError if the name is used twice in a region or policy is no CheckpointPolicy, ValueError
if the name is empty, or if there is neither a name nor a surrounding op().)";

constexpr const char* kRematHandleDoc =
    "The forward() of a custom function as a named call, from get_handle() to record_outputs(). "
    "Use it on the thread of forward() and while forward() runs. Outside checkpoint() its methods "
    "return their arguments. Without record_outputs() the call counts as one that raised, and then "
    "ops outside the call may not read tensors that a SAVE call has made.";

constexpr const char* kMaybeLoadSavedDoc =
    "maybe_load_saved(): in the replay of a SAVE call, returns the result that forward() must "
    "return at once (a Tensor or a tuple of Tensors); else None. Call it first, or the other "
    "methods raise RuntimeError in such a replay.";

constexpr const char* kSaveOrLoadInputsDoc =
    "save_or_load_inputs(*inputs): returns a single input as it is, several inputs as a tuple. "
    "Inputs that are results of SAVE calls are kept if a replay will run forward() again.";

constexpr const char* kHandleSaveDoc =
    "save_for_backward({name: Tensor or None}): calls ctx.save_for_backward() with the values, in "
    "the dict's order, with names for reports. Raises ValueError for an empty name, RuntimeError "
    "for a name with a dot and for other values.";

constexpr const char* kRecordOutputsDoc =
    "record_outputs(*outputs): ends the call and returns what forward() must return: a single "
    "output as it is, several as a tuple. Raises RuntimeError for a leaf that requires grad.";

constexpr const char* kSaveForBackwardDoc =
    R"(save_for_backward(ctx, tensors)
--

Calls ctx.save_for_backward(*tensors.values()) for a dict {name: Tensor or None}. Raises ValueError for
an empty name, RuntimeError for a name with a dot and for other values.)";

constexpr const char* kPolicyTableDoc =
    R"(PolicyTable(): rules that give policies to a region's ops and named calls.

checkpoint(policy=save_matmuls().op(torch.ops.aten.topk, CheckpointPolicy.SAVE))(fn)(x)

op(op, policy): adds a rule for ops: torch.ops.aten.mm, torch.ops.aten.add.Tensor, or a string such as
"aten::mm", "c10d::*", "tag:pointwise". A name without an overload matches all overloads. The name of a
composite op (aten::linear) matches the op as a whole; a glob does not match composite ops.
call(name, policy): adds a rule for named calls, which overrides the policy in the code. `name` may have
* and ?, as in "block*/attention". An op that a rule SAVEs is a call with a name such as "aten::mm#3",
which a rule with "::" in its name can match.
add(table): adds all rules of another table. op(), call() and add() return the table.

Rules for calls come first, then rules for ops, then safe_defaults(). The first rule that matches decides.
Ops that no rule matches run again.

explain(call): returns a text on the policy of a call, such as "block/aten::mm#3", and the rule that gives it.
to_json(), from_json(text, source), load(path): docs/how-to/policies.md has the format.

Raises ValueError for an invalid op, and for an invalid file, with the place in it.)";

constexpr const char* kSaveMatmulsDoc = "save_matmuls(): a PolicyTable that SAVEs matrix products.";
constexpr const char* kSaveComputeIntensiveDoc =
    "save_compute_intensive(): a PolicyTable that SAVEs matrix products, convolutions, attention "
    "and resampling.";
constexpr const char* kRecomputePointwiseDoc =
    "recompute_pointwise(): a PolicyTable that SAVEs all but pointwise ops, copies and views.";
constexpr const char* kSafeDefaultsDoc =
    "safe_defaults(): a PolicyTable that SAVEs ops whose results may differ in a second run, such "
    "as indices and sizes that depend on data, and ops that must not run twice, such as "
    "collectives. Every policy has these rules after its own.";

constexpr const char* kSavedTensorsHooksDoc =
    R"(with saved_tensors_hooks(pack, unpack, *, capture_context=None): decides how saved tensors are kept.

Outside regions it acts like torch.autograd.graph.saved_tensors_hooks. Around or inside a region, its
functions get the tensors that SAVE and OFFLOAD calls keep, and around a region also the region's tensor
arguments, but no recomputed tensors. The innermost pair is used, also after its block has ended.

pack(tensor): gets a detached alias of the saved tensor; returns any object to keep.
unpack(object): returns a Tensor of the same shape, dtype, device and values. Called once per load.
capture_context(): called where a tensor for pack is made; current_saved_tensor_info() has its result.

Raises TypeError if one of them is no function. Errors of the functions reach the caller.)";

constexpr const char* kNeedsTensorDoc =
    R"(recompute_needs_tensor(*tensors)
--

Tells the region that recomputed code reads these results of SAVE calls. Use it where remat cannot see
the read (.numpy() or a pointer), or to avoid the warning or error of implicit_keep. A view stands for
its whole tensor. Does nothing for other tensors, in a replay, and outside regions.)";

constexpr const char* kMemoryMeterDoc =
    R"(MemoryMeter()

Counts the memory that this thread, and the backward passes that it begins, allocate from torch while
the meter is open: with MemoryMeter() as meter: ..., and meter.peak_bytes() in the block or after it.
current_bytes(device="cpu") and peak_bytes(device="cpu") are bytes of all devices of that type, or of one
("cuda:1"). After the block they keep their last values. Memory that was allocated before the meter
opened does not count. Meters nest. Raises RuntimeError while a torch profiler runs.)";

constexpr const char* kRecorderDoc =
    R"(Recorder(path, *, source_lines=False)

Writes all that the program does into a file, until it is stopped: with Recorder("step.rec") as recording: ...
It records each op of any thread, in the forward, in replays and in backward, inside regions and outside;
the tensors that autograd saves in regions; nodes of backward; memory. recording.mark("step 1") names a
moment; stop() ends the recording, and raises RuntimeError if the file could not be written completely;
report("step.html") ends it and writes a page for browsers, which a notebook shows if the recorder is a
cell's result. There can be one recorder at a time, and none under a torch profiler. source_lines also
records the program's line for each op, which costs some hundred nanoseconds per op.)";

constexpr const char* kMemoryReportDoc =
    R"(memory_report()

Returns what the regions of this process hold now and why, in bytes: a MemoryReport, with str() for text.
for region in report: for row in region: row.name, row.tensor, row.bytes, row.why. Each storage is
billed once, to the oldest region that has it; leaves that require grad are not billed. Regions whose
forward runs on another thread are left out. Thread-safe.

changes: the choices that hold memory, and estimates of what other choices would free. Each change frees
the most after those before it. changes_str(device="cuda:0", wanted=2 << 30) is a text that says which of
the changes are enough.)";

constexpr const char* kStepProfileDoc =
    R"(The tensors and the cost of a training step, op by op: profile(fn)(*args) measures one.

len() counts the ops that allocate or write memory. device is the accelerator whose memory is counted, ""
for the CPU. plan(budget) returns the MemoryPlan for a budget: bytes, "8GB", or "60%" of plain_peak_bytes.
With offload=store, a store of offload(), the plan may move kept tensors to the store. MemoryPlanner(profile)
plans several budgets. to_json() returns a text that from_json() reads; save(path) writes a file that
load(path) reads. Raises ValueError for other budgets and damaged text.)";

constexpr const char* kMemoryPlannerDoc =
    R"(MemoryPlanner(profile, offload=None)

Plans a measured step for all budgets at once, without torch. plan(budget) returns the fastest plan
found whose predicted peak is within the budget (bytes, or text as in StepProfile.plan()). frontier lists
the overhead for each budget. Plans may move kept tensors to `offload`, a store of offload() that has
max_leaving_bytes.)";

constexpr const char* kMemoryPlanDoc =
    R"(The cuts of a step and the tensors that it keeps, for a budget of bytes beyond what is alive when the
step begins: activations, their gradients and temporaries.

predicted_overhead is the time of recomputation and of waits for copies, divided by the time of the step.
limit says what prevents a budget that is too small. checkpoint(plan=plan)(fn) carries the plan out; pass
offload_store= if it was planned with a store. table() returns a text with a line per phase, explain(where)
a text about a module or op, frontier() the overhead for other budgets. save(path) writes the plan with its
profile for load(path). to_json() returns a text that from_json(text, profile) reads, which raises a
ValueError that names the first op that differs from the profile's.)";

constexpr const char* kNameScopeDoc =
    "with name_scope(prefix): names of calls in the block begin with the prefix and a slash. "
    "Scopes nest. Enter them in the function of a region.";

constexpr const char* kIsRecomputingDoc =
    "True while this thread replays a region's function. After this call, forward and replay are "
    "compared by their saved tensors only, because the function may do other things in each.";

constexpr const char* kIsPlaceholderDoc =
    "True for a tensor without data: a stand-in for a SAVE result in a replay, a tensor on the "
    "device remat_meta, or a view of one.";

}  // namespace remat::python
