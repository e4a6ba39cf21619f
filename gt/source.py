"""Places in the user's source, as recording notes them: a code object and the offset of an instruction.

Owns: ``location``, ``assigned_name``. Next: ``gt.ir.blame`` (whose frames they are), ``capture`` (which reads them).
"""

from __future__ import annotations

import dis
import linecache
import types
from functools import lru_cache

from gt.ir.graph import Location


@lru_cache(maxsize=1 << 16)
def location(code: types.CodeType, lasti: int) -> Location:
    """Give the line of a raw source position."""
    line = next((line for start, stop, line in code.co_lines() if start <= lasti < stop), None) or code.co_firstlineno
    return Location(code.co_filename, line, code.co_qualname, linecache.getline(code.co_filename, line).strip())


@lru_cache(maxsize=1 << 16)
def assigned_name(code: types.CodeType, lasti: int) -> str:
    """Give the variable that the instruction after a call stores into, or "" (``h = relu(x)`` gives "h")."""
    for instruction in dis.get_instructions(code):
        if instruction.offset > lasti:  # which of a call lies behind it, in its cache
            return instruction.argval if instruction.opname in ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL") else ""
    return ""
