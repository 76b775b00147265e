# SPDX-License-Identifier: BSD-3-Clause

"""Installs in torch what remat needs there, at the first use: see Note [First use] in first_use.h."""

import functools
import threading

from . import _C

_lock = threading.RLock()
_is_done = False


@functools.cache
def _install_once():
    from . import _compile, _default_group

    _C._start_recordings()
    _default_group.watch()
    _compile.install()


def on_first_use():
    """Makes torch.func.functional_call, torch.compile and the default process group known to remat.

    Returns False while a functional_call is open that remat did not see begin; the next call tries again.
    """
    global _is_done
    if not _is_done:
        from . import _functional

        with _lock:
            _install_once()
            _is_done = _is_done or _functional.install()  # another thread may have been first
    return _is_done


# Dynamo calls such a function while it traces. So a compiled function may be the first user.
on_first_use._dynamo_marked_constant = True  # type: ignore[attr-defined]


def before_first_region():
    """Makes torch's engine known to remat. Raises RuntimeError in a functional_call that began before the first use."""
    from . import _engine

    if not on_first_use():
        raise RuntimeError(
            "[checkpoint] functional_call: expected the first use of remat before torch.func.functional_call, got the first "
            "region inside one, whose parameters a replay could not find. "
            "Call remat_meta.checkpoint() once before functional_call."
        )
    with _lock:
        _engine.install()
