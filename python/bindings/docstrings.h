// SPDX-License-Identifier: BSD-3-Clause

// What help() says of the functions of the bindings. The first lines are what inspect.signature
// reads.
#pragma once

namespace remat::python {

constexpr const char* kCheckpointDoc =
    R"(checkpoint(*, region_name=None, preserve_rng_state=True, determinism_check="metadata", saved_tensors_hooks=None, recompute_state_hooks=(), early_stop=True, intercept=True, implicit_keep="keep", offload_store=None, generators=())
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
    the forward's; "none" does not. A difference raises ReplayMismatch in backward.
saved_tensors_hooks: (pack, unpack) or (pack, unpack, capture_context), for what the region keeps.
recompute_state_hooks: objects with snapshot() and restore(state), for state that fn changes.
early_stop: ends the replay after the last value that backward needs, by a BaseException in fn.
intercept: sees every op of the region, so that writes outside happen once and changes are found.
implicit_keep: "keep", "warn_once" or "error": a bare op reads a result of a SAVE call.
offload_store: where OFFLOAD calls keep values; see host_memory_store().

Raises TypeError or ValueError, naming the option. A decorator too.)";

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

constexpr const char* kNeedsTensorDoc =
    R"(recompute_needs_tensor(*tensors)
--

Tells the region that code which runs again reads these tensors, where they are results of SAVE
calls, in a way that remat cannot see (through .numpy() or a pointer), or before implicit_keep
complains. Views stand for the whole. Does nothing for other tensors, in a replay and outside.)";

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
