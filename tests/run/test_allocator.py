"""Freed memory is kept: a process that allocates the same block again faults no pages in."""

import subprocess
import sys

import pytest

from t5x_lite.run import allocator

PROGRAM = """
import ctypes, resource, sys
from t5x_lite.run.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
size = 128 << 20
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = library.malloc(size)
    ctypes.memset(block, 1, size)
    library.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc is Linux's")
def test_the_second_time_no_page_is_new(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", PROGRAM, how]))
        for how in ("keep", "leave")
    }
    assert faults["keep"] < 100
    # 32768 pages, or one in 512 of them where the kernel gives huge ones.
    assert faults["leave"] > faults["keep"]


@pytest.mark.parametrize(("platforms", "done"), [("cuda", False), ("tpu,cpu", False)])
def test_an_accelerators_host_is_left_alone(monkeypatch, platforms, done):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert allocator.keep_freed_memory() is done


def test_the_devices_of_the_machine_decide_where_nothing_is_said(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(allocator.glob, "glob", lambda pattern: [pattern])
    assert not allocator.keep_freed_memory()
