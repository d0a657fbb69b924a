"""Something that happens at whatever line of a program: tried before each of its lines, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any


@contextmanager
def at_line(number: int, act: Callable[[], None], *modules: ModuleType) -> Iterator[list[str]]:
    """Act before the ``number``-th line of the modules that this thread runs in the block; give the lines it has run.

    What ``act`` raises is raised there, as from the handler of a signal; nothing is counted after that.
    """
    files = {module.__file__ for module in modules}
    lines: list[str] = []

    def line(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            lines.append(f"{frame.f_code.co_filename}, line {frame.f_lineno}")
            if len(lines) == number:
                act()
        return line

    def call(frame: FrameType, _event: str, _argument: object) -> Any:
        return line if frame.f_code.co_filename in files else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield lines
    finally:
        sys.settrace(before)
