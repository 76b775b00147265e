# SPDX-License-Identifier: BSD-3-Clause

"""What the two public versions of torch_remat do, numbered, and the C++ test cases that check it.

The tests of this folder check the same numbers in Python.
"""

from typing import NamedTuple


class Behaviour(NamedTuple):
    claim: str  # what torch_remat does, or what remat does alone
    cases: list[str]  # names of test cases in tests/**/*.cpp, or sources that must not compile
    differs: str = ""  # what C++ does otherwise on purpose, or why it has no case


PEER = {
    # Calling
    1: Behaviour(
        "three calls; the function in the first is an error",
        ["A function runs once in the forward and once more in backward", "compile_fail/function_in_first_call.cpp"],
    ),
    2: Behaviour(
        "which options there are",
        ["An undefined generator is refused with its index", "A null state hook is refused with its index"],
        "generators, determinism, early stop and more",
    ),
    3: Behaviour("options and the function's keywords have no common names", [], "not in C++: keyword arguments"),
    4: Behaviour("arguments arrive unchanged", ["Arguments that are no tensors come back as they were"]),
    5: Behaviour("the wrapper has the function's metadata", [], "not in C++"),
    6: Behaviour("`region(fn, name, recompute)`", ["region() is native_op() by its other name"]),
    7: Behaviour(
        "a function that is none raises",
        ["A named call needs a function and a name"],
        "not callable: does not compile",
    ),
    8: Behaviour(
        "an empty name raises; the flag must be a bool",
        ["A named call needs a function and a name"],
        "the type of the flag: does not compile",
    ),
    9: Behaviour("a call outside of regions is plain", ["Outside of regions a named call is a plain one"]),
    10: Behaviour(
        "random state is not preserved, asking for it raises",
        ["Random ops draw the same numbers again, and the stream goes on as without remat"],
        "it is",
    ),
    11: Behaviour(
        "determinism checks are handed on, also with SAVE calls",
        ["Without determinism checks calls must still be the same"],
    ),
    # The region
    12: Behaviour(
        "the result is a tensor or a flat container of them",
        ["Results keep their type"],
        "containers to any depth, and structs",
    ),
    13: Behaviour(
        "a leaf that is no tensor raises",
        ["compile_fail/output_not_tensor.cpp", "Undefined and absent tensors stay so"],
        "undefined tensors are allowed",
    ),
    14: Behaviour("dicts and nested containers raise", ["Results keep their type"], "ordered maps and nesting work"),
    15: Behaviour("the container keeps its type", ["Results keep their type"]),
    16: Behaviour(
        "each output is a new view, in-place on it fails",
        ["An output written in place after the region is as plain, or both raise"],
        "outputs are returned as they are",
    ),
    17: Behaviour(
        "a tensor without bytes is saved as the trigger",
        ["Hooks get arguments and kept values once each, with a description"],
        "nothing is saved for it",
    ),
    18: Behaviour("the replay starts before any backward inside", ["A replay comes before any backward inside the region"]),
    19: Behaviour(
        "the whole function is replayed",
        ["Early stop ends a replay at the last saved tensor; without it the function runs to its end"],
    ),
    20: Behaviour(
        "a function that saves nothing is replayed",
        ["A region of SAVE calls only is not replayed"],
        "it is not",
    ),
    21: Behaviour(
        "later versions stop early; what only the tail reads is not kept",
        ["A call after the last saved tensor is not reached by a replay"],
    ),
    22: Behaviour("regions in regions raise", ["64 nested layers peak at two outputs a level"], "to any depth"),
    23: Behaviour(
        "an exception in the forward leaves nothing open",
        ["An exception of a call that nobody catches ends the region"],
    ),
    24: Behaviour(
        "all arguments are kept until backward",
        ["Results that nobody needs are freed with the function"],
        "not those of a region that is not replayed",
    ),
    25: Behaviour(
        "an older version drops arguments that only SAVE calls use",
        ["Results that nobody needs are freed with the function"],
        "all are kept where there is a replay",
    ),
    26: Behaviour(
        "an argument written before backward raises",
        ["A tensor argument written between forward and backward raises with its position"],
    ),
    # Phases
    27: Behaviour(
        "`is_recomputing()`",
        ["A function sees that it runs again", "Each backward runs a RECOMPUTE call again, and no SAVE call"],
    ),
    28: Behaviour(
        "SAVE runs once, the rest once more per backward",
        ["Each backward runs a RECOMPUTE call again, and no SAVE call"],
    ),
    29: Behaviour("another policy in the replay raises", ["A call with another policy in the replay is reported with both"]),
    30: Behaviour("a call that the forward did not make raises", ["A call that the forward did not make is reported at once"]),
    31: Behaviour("no_grad in a call stays out of the gradient", ["Calls with gradients off stay out of the gradient"]),
    32: Behaviour("autocast is as in the forward", ["Weights that a SAVE call cast are cast again by a replay"]),
    # Arguments and results of a call
    33: Behaviour(
        "tensors are looked for in flat containers",
        ["Results of every kind come back with their types"],
        "at any depth, and in structs with the trait",
    ),
    34: Behaviour("other arguments survive", ["Arguments that are no tensors reach the call as they are"]),
    35: Behaviour(
        "a RECOMPUTE call finds a SAVE call's result in its arguments",
        ["A SAVE call's result is found however a RECOMPUTE call comes by it"],
    ),
    36: Behaviour(
        "one that is hidden in an object or a capture raises in backward",
        ["A SAVE call's result is found however a RECOMPUTE call comes by it"],
        "it is found",
    ),
    37: Behaviour("what a call may return", ["Results of every kind come back with their types", "A call may return nothing"]),
    38: Behaviour("undefined leaves keep their position", ["Results of every kind come back with their types"]),
    39: Behaviour("containers keep their type", ["Results of every kind come back with their types"]),
    40: Behaviour(
        "a returned leaf that requires grad raises",
        ["A SAVE call may not return a new leaf or a parameter; a RECOMPUTE call may"],
        "differs for RECOMPUTE",
    ),
    41: Behaviour("results are plain tensors, subclasses pass", [], "not in C++: tensor subclasses"),
    42: Behaviour("a hook on a result fires once", ["A hook on a SAVE call's result fires once, with the right gradient"]),
    43: Behaviour("one tensor at two positions", ["One tensor at two positions is one tensor in the replay"]),
    44: Behaviour("a call of several ops is one unit", ["A SAVE call in a SAVE call belongs to it and takes no name"]),
    45: Behaviour("a SAVE call may return a view", ["A SAVE call may return an argument or a view of one"]),
    46: Behaviour(
        "results do not alias each other in the replay",
        ["Results alias each other in the replay as in the forward"],
        "they do",
    ),
    # Names
    47: Behaviour("names are unique in one phase of one region", ["A name is used once in a region"]),
    48: Behaviour(
        "messages and reports name region and call",
        ["The report names what a region holds and why", "A name is used once in a region"],
    ),
    49: Behaviour(
        "scopes of names nest, join and unwind",
        [
            "Name scopes join their prefixes and unwind with exceptions",
            "A name scope counts for the calls of the region that opened it",
        ],
    ),
    50: Behaviour("a scope needs a prefix", ["A name scope needs a prefix"]),
    51: Behaviour("scopes under compile", [], "not in C++: torch.compile"),
    52: Behaviour("SAVE calls in SAVE calls take no name", ["A SAVE call in a SAVE call belongs to it and takes no name"]),
    # Kept values
    53: Behaviour(
        "what a SAVE call saves inside stays with its node",
        ["A region of SAVE calls only is not replayed", "After one backward nothing is held"],
    ),
    54: Behaviour(
        "what it saves of an argument that runs again is not kept",
        ["A GPT-2 block keeps the least that its policies allow"],
    ),
    55: Behaviour(
        "the argument is recognised by its memory, in any view",
        ["A SAVE call may save any view of its argument"],
    ),
    56: Behaviour(
        "other dtypes and odd views are kept instead",
        ["A view of another dtype that a SAVE call saves of its argument is as plain"],
    ),
    57: Behaviour("a chain of SAVE calls keeps no results on top", ["An LSTM keeps the least that its policies allow"]),
    58: Behaviour(
        "calls in calls",
        [
            "A SAVE call in a SAVE call belongs to it and takes no name",
            "Only SAVE calls may be in a SAVE call; a RECOMPUTE call may have any in it",
        ],
    ),
    59: Behaviour("RECOMPUTE keeps nothing", ["A ResNet block keeps the least that its policies allow"]),
    60: Behaviour("a result that RECOMPUTE reads is kept once", ["A mixture of experts keeps the least that its policies allow"]),
    61: Behaviour(
        "a result that nobody or only SAVE reads is not kept",
        ["Results that nobody needs are freed with the function"],
    ),
    62: Behaviour("a result that is saved for backward is there in the replay", ["The report names what a region holds and why"]),
    63: Behaviour("each tensor of one call has its own fate", ["Each tensor of a SAVE call has its own fate"]),
    64: Behaviour("a RECOMPUTE result read by both kinds runs again", ["A GPT-2 block keeps the least that its policies allow"]),
    65: Behaviour(
        "a result of the region lives with its holder; reading it replays nothing",
        ["Reading a result outside starts no replay"],
    ),
    66: Behaviour("results of bare ops run again", ["A recording has the ops of forward, replay and backward"]),
    67: Behaviour("what is kept does not depend on what an op saved", ["Named calls with many results are bitwise as without"]),
    68: Behaviour(
        "undefined tensors keep their place among the saved",
        ["A handle runs a SAVE body once and a RECOMPUTE body twice"],
    ),
    # Placeholders
    69: Behaviour(
        "a bare op that reads a result raises in backward",
        ["A bare op may read a result, a view of it, or a view of that view"],
        "it is kept; `kError` below",
    ),
    70: Behaviour(
        "`recompute_needs_tensor` keeps it", ["recompute_needs_tensor keeps its tensor, and reports list it as explicit"]
    ),
    71: Behaviour("a view stands for the whole", ["recompute_needs_tensor keeps its tensor, and reports list it as explicit"]),
    72: Behaviour(
        "several at once; of two results only the one marked",
        ["recompute_needs_tensor keeps its tensor, and reports list it as explicit"],
    ),
    73: Behaviour("it does nothing where nothing is needed", ["recompute_needs_tensor does nothing for what needs no keeping"]),
    74: Behaviour(
        "a RECOMPUTE call may be given a bare view",
        ["A bare op may read a result, a view of it, or a view of that view"],
    ),
    75: Behaviour(
        "a result that lives on in views only can be kept",
        ["A bare op may read a result, a view of it, or a view of that view"],
    ),
    76: Behaviour(
        "a kept result comes back with its metadata, as no leaf",
        ["A placeholder has the metadata of what it stands for"],
    ),
    77: Behaviour(
        "placeholders have metadata and views; reads raise",
        [
            "A pointer to a placeholder's data raises in the replay, with call and region",
            "A placeholder has the metadata of what it stands for",
            "Ops of every class raise",
        ],
    ),
    78: Behaviour(
        "`is_placeholder`",
        [
            "A result that nobody reads again is a placeholder in the replay",
            "A tensor with data is never taken for a placeholder",
        ],
    ),
    # Writes in place
    79: Behaviour(
        "a tensor that a SAVE call kept, written later, raises",
        ["A tensor that a SAVE call kept may not be written before backward"],
    ),
    80: Behaviour("so does a kept result", ["A tensor that a SAVE call kept may not be written before backward"]),
    81: Behaviour(
        "a call that writes its argument and saves it",
        ["A function that writes its argument and saves it gets the new value"],
    ),
    82: Behaviour(
        "an argument with other strides in the replay raises",
        ["An argument that comes back with other strides raises, if a view of it was saved"],
    ),
    83: Behaviour(
        "no version check on what hooks packed",
        ["Hooks that keep the tensor itself raise when it was written"],
        "there is one if pack kept the tensor itself",
    ),
    # Several backwards
    84: Behaviour(
        "`retain_graph` gives the same gradients and replays each time",
        ["A kept graph gives the same gradients again", "Each backward runs a RECOMPUTE call again, and no SAVE call"],
    ),
    85: Behaviour(
        "kept results are released as the replay goes",
        ["After one backward nothing is held", "Backward lets go of each input as soon as its region is done"],
    ),
    86: Behaviour("`autograd::grad`, twice", ["A kept graph gives the same gradients again"]),
    87: Behaviour(
        "reading a rebuilt tensor twice in one backward raises",
        ["A custom function may ask twice for what it saved"],
        "it works",
    ),
    88: Behaviour("double backward is not supported", ["Double backward passes named calls"], "it is"),
    # Lifetimes
    89: Behaviour("a call that saves its own result makes no cycle", ["A call that saves its own result makes no cycle"]),
    90: Behaviour("the records make no cycle", ["A graph that is dropped frees all that its regions kept, without a backward"]),
    91: Behaviour(
        "a region leaves the list of live ones with its backward",
        ["A region that has gone through backward is not in the report"],
    ),
    92: Behaviour("after one backward nothing is held", ["After one backward nothing is held"]),
    # Gradients off
    93: Behaviour("under no_grad and inference mode all is plain", ["Where nothing is recorded named calls are plain"]),
    94: Behaviour(
        "enable_grad in such a region",
        ["A graph built under enable_grad in a region without gradients is a plain graph"],
    ),
    95: Behaviour("nothing requires grad", ["Where nothing is recorded named calls are plain"]),
    96: Behaviour("a SAVE call under no_grad does not run again", ["Calls with gradients off stay out of the gradient"]),
    97: Behaviour(
        "a RECOMPUTE call under no_grad does, and feeds a SAVE call",
        ["Calls with gradients off stay out of the gradient"],
    ),
    # Weights
    98: Behaviour(
        "tied weights under all pairs of policies",
        ["A weight that is used in several ways gets the gradient of plain code", "A tied weight in two regions, and frozen"],
    ),
    99: Behaviour(
        "a weight given as argument is rebuilt",
        ["A GPT-2 block keeps the least that its policies allow"],
        "kept by its own storage, which costs nothing",
    ),
    100: Behaviour(
        "a captured weight is kept without a copy and not billed",
        ["A GPT-2 block keeps the least that its policies allow", "The report names what a region holds and why"],
    ),
    # Hooks on saved tensors
    101: Behaviour(
        "outside of regions as torch's own",
        ["A saved tensor's description is available in pack only", "Unpack must return a tensor like the one packed"],
    ),
    102: Behaviour(
        "in regions they get what SAVE calls keep",
        ["Hooks get arguments and kept values once each, with a description"],
    ),
    103: Behaviour(
        "pack once, in the forward; unpack once per load",
        [
            "Hooks get arguments and kept values once each, with a description",
            "Each backward of a kept graph unpacks again, and packs nothing",
        ],
    ),
    104: Behaviour(
        "unpack works after the scope has gone",
        ["The innermost guard around a region serves, even after it is gone"],
    ),
    105: Behaviour(
        "the innermost pair around a region gets its arguments too",
        ["The innermost guard around a region serves, even after it is gone"],
    ),
    106: Behaviour("the pair of the options wins", ["The hooks of the options win over a guard around the region"]),
    107: Behaviour(
        "a pair inside a SAVE call gets what that call saves",
        [
            "A guard inside a SAVE call gets what the call saves under it",
            "A guard in a region gets what SAVE calls under it keep, once, and nothing of bare code",
        ],
    ),
    108: Behaviour(
        "pack also sees a dummy of torch's checkpoint",
        ["Hooks get arguments and kept values once each, with a description"],
        "it does not",
    ),
    109: Behaviour("what a tensor is can be asked in pack", ["A saved tensor's description is available in pack only"]),
    110: Behaviour("a context is captured where a tensor is made", ["A context is that of the place where a tensor is made"]),
    111: Behaviour(
        "pack gets a detached tensor on the same memory",
        ["Hooks get arguments and kept values once each, with a description"],
        "parameters as such: Python only",
    ),
    112: Behaviour("packed memory may be freed", ["Storages that were packed may be freed"]),
    113: Behaviour(
        "results are unpacked first, then the rest as nodes run",
        [
            "Results of SAVE calls are unpacked first, in order, then what nodes want",
            "Results that hooks have are asked for when the function has been entered",
        ],
    ),
    114: Behaviour(
        "an offloaded run is bitwise the plain one",
        ["Under hooks gradients are bitwise as plain", "A GPT-2 block of named calls is bitwise as without"],
    ),
    # State hooks
    115: Behaviour(
        "snapshots at entry and after each SAVE call; restored there in the replay",
        ["State is read at entry and after each SAVE call, and restored at these places"],
    ),
    116: Behaviour(
        "without hooks state drifts",
        ["State is read at entry and after each SAVE call, and restored at these places"],
        "an op that it changes raises",
    ),
    117: Behaviour("several hooks in order", ["Several state hooks are asked in their order"]),
    118: Behaviour(
        "a second replay is as the first",
        ["State is read at entry and after each SAVE call, and restored at these places"],
    ),
    # Reports
    119: Behaviour(
        "a report inside a region only",
        ["Outside of regions there is no current one", "The report can be asked for inside a region"],
        "`memory_report()` works anywhere",
    ),
    120: Behaviour(
        "a line per region, then one per tensor; bytes add up",
        ["Names of one tensor share a line, other views have their own"],
        "differs in its words",
    ),
    121: Behaviour("saved tensors have names or numbers", ["Names of one tensor share a line, other views have their own"]),
    122: Behaviour("names of one storage in one row", ["Names of one tensor share a line, other views have their own"]),
    123: Behaviour("views of a part of a storage", ["A storage held by parts of it says how much of it they use"]),
    124: Behaviour("a footer on what is rebuilt and offloaded", ["What an argument of the call gives is rebuilt and not held"]),
    125: Behaviour(
        "a finished call whose graph is gone is marked",
        ["A region that has gone through backward is not in the report"],
    ),
    126: Behaviour(
        "names follow the tensor",
        ["Tensors that a call saves after its handle ended stay apart from those of other calls"],
    ),
    127: Behaviour("names of saved tensors are checked", ["Names of saved tensors are checked"]),
    128: Behaviour("a report on a whole model, in groups", ["Regions that hold alike are one group, in natural order"]),
    129: Behaviour("each storage is billed once", ["The report names what a region holds and why"]),
    130: Behaviour("a report unpacks nothing, parameters do not count", ["What hooks or a store hold is not billed"]),
    131: Behaviour(
        "it cannot look through a region's node",
        ["A graph is walked by what the caller can see of its nodes"],
        "it can",
    ),
    132: Behaviour("a freed graph makes it raise", [], "it does not"),
    # Out of memory, and traces
    133: Behaviour("live tensors with a node are found", [], "not in C++: the garbage collector's list"),
    134: Behaviour("an observer prints the report when memory runs out", [], "not in C++: torch's allocator observer"),
    135: Behaviour("the report is lost after a backward", [], "not in C++"),
    136: Behaviour("a memory snapshot as annotation", [], "not in C++"),
    137: Behaviour(
        "a trace with a line per call",
        [
            "Two traces of calls collect at the same time, each for its thread",
            "A recording has the ops of forward, replay and backward",
        ],
        "a recording has the ops, too",
    ),
    138: Behaviour(
        "scopes of a trace",
        [
            "Two traces of calls collect at the same time, each for its thread",
            "A recording has the ops of forward, replay and backward",
        ],
    ),
    # torch.compile
    139: Behaviour("compiled regions", [], "not in C++: torch.compile"),
    140: Behaviour("compiled regions", [], "not in C++: torch.compile"),
    141: Behaviour("compiled regions", [], "not in C++: torch.compile"),
    142: Behaviour("compiled regions", [], "not in C++: torch.compile"),
    143: Behaviour("compiled regions", [], "not in C++: torch.compile"),
    144: Behaviour("`func.grad` and `vmap` fail", [], "not in C++"),
}

SEED = {
    1: Behaviour(
        "three calls",
        ["A function runs once in the forward and once more in backward", "compile_fail/function_in_first_call.cpp"],
    ),
    2: Behaviour(
        "results nested to any depth, exact containers only",
        ["Results keep their type", "compile_fail/output_not_tensor.cpp"],
    ),
    3: Behaviour("the replay comes before inner backwards", ["A replay comes before any backward inside the region"]),
    4: Behaviour("a trigger without bytes", ["Hooks get arguments and kept values once each, with a description"]),
    5: Behaviour("a forward that raises unwinds", ["An exception of a call that nobody catches ends the region"]),
    6: Behaviour(
        "`is_recomputing()`",
        ["A function sees that it runs again", "Each backward runs a RECOMPUTE call again, and no SAVE call"],
    ),
    7: Behaviour(
        "`retain_graph` is noticed",
        ["A kept graph gives the same gradients again", "Each backward runs a RECOMPUTE call again, and no SAVE call"],
    ),
    8: Behaviour("else all is gone after one backward", ["After one backward nothing is held"]),
    9: Behaviour("a handle answers in the replay of a SAVE call", ["A handle runs a SAVE body once and a RECOMPUTE body twice"]),
    10: Behaviour(
        "saved tensors come back in their order, undefined ones too",
        ["A handle runs a SAVE body once and a RECOMPUTE body twice"],
    ),
    11: Behaviour("RECOMPUTE runs twice and keeps nothing", ["A handle runs a SAVE body once and a RECOMPUTE body twice"]),
    12: Behaviour("`save_or_load_inputs`", ["A custom function that reads a SAVE call's result gets its value"]),
    13: Behaviour("outside of regions a handle only saves", ["Handles outside of regions only pass on"]),
    14: Behaviour("`record_outputs` of one and of several", ["A handle may record several results"]),
    15: Behaviour("placeholders have the number and shapes of the results", ["A handle may record several results"]),
    16: Behaviour(
        "a result that is a view",
        ["Results alias each other in the replay as in the forward"],
        "aliasing is kept",
    ),
    17: Behaviour("a saved result is real in backward", ["A call that saves its own result makes no cycle"]),
    18: Behaviour(
        "a handle without gradients does nothing",
        ["Tensors that a call saves after its handle ended stay apart from those of other calls"],
        "SAVE skips it too",
    ),
    19: Behaviour("a SAVE handle that is not asked raises", ["A SAVE handle that is not asked in the replay raises"]),
    20: Behaviour("a name twice raises", ["A name is used once in a region"]),
    21: Behaviour("another policy in the replay raises", ["A call with another policy in the replay is reported with both"]),
    22: Behaviour(
        "records that are left over raise",
        [
            "A call that is missing in the replay is reported at the op in its place",
            "A call that is missing at the end of the replay is reported there",
        ],
        "up to the stop",
    ),
    23: Behaviour("`op(fn, name, policy)(args)` restores its context", ["Misused handles raise in the forward"]),
    24: Behaviour("`op` of what is no function", ["Misused handles raise in the forward"], "does not compile"),
    25: Behaviour("names alone make a custom function a call", ["A handle runs a SAVE body once and a RECOMPUTE body twice"]),
    26: Behaviour("as many names as saved tensors", ["Misused handles raise in the forward"]),
    27: Behaviour("a name twice among them raises", ["Names of saved tensors are checked"]),
    28: Behaviour("the context reaches backward", ["A function's context reaches its backward"]),
    29: Behaviour(
        "a SAVE call's ops run once in all",
        ["A SAVE call runs once, a RECOMPUTE call twice"],
        "its function does not run again either",
    ),
    30: Behaviour("a RECOMPUTE call runs twice", ["A SAVE call runs once, a RECOMPUTE call twice"]),
    31: Behaviour("several results", ["Results of every kind come back with their types"]),
    32: Behaviour("RECOMPUTE reads SAVE calls' results", ["A SAVE call's result is found however a RECOMPUTE call comes by it"]),
    33: Behaviour(
        "`retain_graph`",
        ["A kept graph gives the same gradients again", "Each backward runs a RECOMPUTE call again, and no SAVE call"],
    ),
    34: Behaviour(
        "a bare op on a SAVE call's result raises in backward",
        ["A bare op may read a result, a view of it, or a view of that view"],
        "as 69",
    ),
    35: Behaviour("outside of regions it just runs", ["Outside of regions a named call is a plain one"]),
    36: Behaviour("bad arguments raise", ["A named call needs a function and a name"]),
    37: Behaviour("a name twice raises", ["A name is used once in a region"]),
    38: Behaviour("native results in the report", ["The report names what a region holds and why"]),
    39: Behaviour(
        "placeholders: views work, reads raise",
        [
            "A pointer to a placeholder's data raises in the replay, with call and region",
            "A placeholder has the metadata of what it stands for",
            "Ops of every class raise",
        ],
    ),
    40: Behaviour("the report by call", ["Names of one tensor share a line, other views have their own"]),
    41: Behaviour(
        "the trace",
        [
            "Two traces of calls collect at the same time, each for its thread",
            "A recording has the ops of forward, replay and backward",
        ],
    ),
}

OURS = [
    Behaviour(
        "a call that is renamed, or in another scope or order, raises with both names",
        ["A call with another name in the replay is reported with both"],
    ),
    Behaviour("a SAVE call on other arguments raises", ["A SAVE call on other arguments is reported with both"]),
    Behaviour("`implicit_keep = kError`", ["implicit_keep = kError raises where a bare op reads a SAVE call's result"]),
    Behaviour("`implicit_keep = kWarnOnce`", ["implicit_keep = kWarnOnce warns once in a process, and keeps"]),
    Behaviour("OFFLOAD without a place raises in the forward", ["OFFLOAD needs a place to keep things in"]),
    Behaviour(
        "a store gets what the region makes, no weights",
        [
            "A store gets what OFFLOAD calls make, and gives it back once per backward",
            "A store gets no weight that a custom function saves",
        ],
    ),
    Behaviour(
        "errors of pack and of stores reach the caller",
        ["A pack that throws ends the forward, also in a SAVE call", "An error of a store reaches the caller"],
    ),
    Behaviour("SAVE with `intercept = false` raises", ["A SAVE call needs a region whose ops are seen"]),
    Behaviour(
        "a call that throws an exception which the function catches",
        [
            "A call whose exception the function catches throws it again in the replay",
            "A call that threw may have read a SAVE call's result",
        ],
    ),
    Behaviour(
        "what such a call wrote",
        [
            "A RECOMPUTE call's write into its argument stays if the call throws afterwards",
            "A SAVE call that wrote outside and threw is refused when the region ends",
        ],
    ),
    Behaviour("a SAVE call that threw in the forward only raises", ["A SAVE call that threw in the forward only is an error"]),
    Behaviour("a region in a named call", ["A region in a named call has names and policies of its own"]),
    Behaviour("SAVE in regions inside regions", ["A SAVE call runs once per region around its own, and once if all keep it"]),
]
