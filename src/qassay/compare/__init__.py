"""Two models side by side: which weights belong together, and whether they hold the same.

`qassay.compare(reference, other)` is a function of the API (`qassay.api.compare`). Python binds a
package under its name as soon as anything in it is imported, in place of a function of that name;
so this package can be called, and does what the function does.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # By name: the API lies above this package, and nothing of it is needed until it is called.
        return import_module("qassay.api").compare(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
