# SPDX-License-Identifier: BSD-3-Clause

"""Installs in torch what remat needs there, at the first use: see Note [First use] in before_region.h."""

import functools
import importlib.abc
import importlib.machinery
import sys
import threading

from . import _C

_lock = threading.RLock()
_is_done = False


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module and is its loader, until the module has been loaded."""

    def __init__(self, name, call):
        self._name, self._call = name, call

    def find_spec(self, name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if name == self._name else None
        if spec:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        self._call()


def after_import(name, call):
    """Calls call() once: now if the module has been imported, else right after its import. Does not import it, since some
    modules take seconds to import and most programs never need them."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Finder(name, call))


@functools.cache
def _install_once():
    from . import _compile, _default_group

    _C._start_recordings()
    _default_group.watch()
    _compile.install()


def on_first_use():
    """Lets remat notice torch.func.functional_call, torch.compile and the default process group.

    Returns False while a functional_call is open that remat did not see begin; the next call tries again.
    """
    global _is_done
    if not _is_done:
        from . import _functional

        with _lock:
            _install_once()
            _is_done = _is_done or _functional.install()  # another thread may have been first
    return _is_done


# Dynamo calls a function with this mark while it traces, so the first use may be in a compiled function.
on_first_use._dynamo_marked_constant = True  # type: ignore[attr-defined]


def before_first_region():
    """Lets remat notice backward passes of torch. Raises RuntimeError in a functional_call that began before the first use."""
    from . import _engine

    if not on_first_use():
        raise RuntimeError(
            "[checkpoint] functional_call: expected the first use of remat before torch.func.functional_call, got the first "
            "region inside one, whose parameters a replay could not find. "
            "Call remat_meta.checkpoint() once before functional_call."
        )
    with _lock:
        _engine.install()
