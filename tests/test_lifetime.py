"""Plugins that TensorRT deletes are deleted once, whoever else holds them: under glibc's malloc check, which ends the process.

TensorRT holds one reference to the Python object that it got from `clone`, `attach_to_context` or `create_plugin`, and one more
for each capability interface that it asked for.
"""

from __future__ import annotations

import pytest

from tests.malloc_check import assert_whole, needs_malloc_check

# A plugin made by Python lies as pybind11 lays it out: reference count, type, then the C++ sides' addresses, the first of them
# IPluginV3's. Its table of virtual functions has the deleting destructor in the fourth place (Itanium C++ ABI).
PROGRAM = """
import ctypes, gc, sys, weakref
from trtconvert import adapter
from trtconvert.backend import select

Plugin, _ = adapter._classes(select("auto"))
for _ in range(20):
    plugin = Plugin(adapter._State("X", "1", ""))
    for _ in range(1 + int(sys.argv[1])):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(plugin))
    sides = ctypes.c_void_p.from_address(id(plugin) + 16).value
    side = ctypes.c_void_p.from_address(sides).value
    table = ctypes.c_void_p.from_address(side).value
    fourth = ctypes.c_void_p.from_address(table + 3 * ctypes.sizeof(ctypes.c_void_p)).value
    delete = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(fourth)
    kept = plugin if sys.argv[2] == "held" else None
    state = weakref.ref(plugin.state)
    del plugin
    delete(side)
    gc.collect()
    assert state() is None, "what the plugin had is not free"
print("whole")
"""


@needs_malloc_check
@pytest.mark.parametrize("held", ["held", "let go"])
@pytest.mark.parametrize("asked", [0, 1, 3])
def test_a_plugin_is_deleted_once(asked: int, held: str) -> None:
    assert_whole(PROGRAM, str(asked), held)
