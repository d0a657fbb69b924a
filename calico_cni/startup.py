"""Imported before everything else by a plugin's process: a module that hardly any call needs is loaded when one does.

``dataclasses`` imports ``inspect``, and with it ``ast``, ``dis`` and ``tokenize``: a fifth of what VERSION costs, for
nothing but the docstring of a dataclass that has none. Ours have one. (``importlib.util.LazyLoader`` does not help: the
interpreter looks at a module that is imported again, and that loads it.)
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def postpone(name: str) -> None:
    """Let a module be loaded when something in it is looked for; nothing changes where it is loaded already."""
    if name in sys.modules:
        return
    stand_in = ModuleType(name)

    def load(attribute: str) -> Any:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]
        real = import_module(name)
        # Who imported the stand-in has the whole module from now on.
        vars(stand_in).update(vars(real))
        return getattr(real, attribute)

    vars(stand_in)["__getattr__"] = load
    sys.modules[name] = stand_in


postpone("inspect")
