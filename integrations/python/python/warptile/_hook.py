"""Tells torch's compiler about `warptile.attention` when that compiler is first imported, so that `import warptile` imports no torch."""

import importlib.abc
import sys
import warnings
from importlib.machinery import PathFinder

_COMPILER = "torch._dynamo"


def _register():
    try:
        from . import _compile  # noqa: F401
    except Exception as error:  # Other functions must still compile with a torch that refuses this.
        warnings.warn(f"torch.compile does not know warptile.attention: {error}", RuntimeWarning, stacklevel=2)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the compiler as other finders do, and registers once it is loaded."""

    def find_spec(self, name, path=None, target=None):
        if name != _COMPILER:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            # Not before: a spec may be asked for by someone who loads nothing.
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _register()

        spec.loader.exec_module = exec_module
        return spec


def install():
    if _COMPILER in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Finder())
