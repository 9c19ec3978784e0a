"""Freed memory is kept: a process that allocates the same block again faults no pages in."""

import subprocess
import sys

import pytest

from t5x_lite.core import accelerators, devices

PROGRAM = """
import ctypes, resource, sys
from t5x_lite.core.accelerators import keep_freed_memory
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


GIVES_BACK = """
import ctypes
from t5x_lite.core import accelerators, devices
assert accelerators.keep_freed_memory()
import jax
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
size, sizes = 128 << 20, []
def step(value):
    block = library.malloc(size)
    while not sizes and library.malloc(1 << 20) < block:
        pass  # until something lies above it: it leaves a hole, and not the heap's end
    ctypes.memset(block, 1, size)
    sizes.append(devices._resident())
    library.free(block)
    return value + 1
before = devices._resident()
careful = devices.within_memory(step, share=(before + size / 2) / devices.of_host())
assert careful(1) == 2
assert sizes[0] > before + 0.9 * size
assert devices._resident() < before + 0.1 * size
assert careful(2) == 3
assert sizes[1] > before + 0.9 * size
assert devices._resident() < before + 0.1 * size
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc is Linux's")
@pytest.mark.slow
def test_beyond_a_share_of_the_memory_nothing_is_kept(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    subprocess.run([sys.executable, "-c", GIVES_BACK], check=True)


def test_a_container_s_memory_is_the_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "_LIMITS", (tmp_path / "memory.max",))
    machine = devices.of_host()
    (tmp_path / "memory.max").write_text("max\n")
    assert devices.of_host() == machine > 2**20
    (tmp_path / "memory.max").write_text("1048576\n")
    assert devices.of_host() == 2**20


def test_a_step_on_an_accelerators_host_is_itself(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert devices.within_memory(max) is max


@pytest.mark.parametrize(("platforms", "done"), [("cuda", False), ("tpu,cpu", False)])
def test_an_accelerators_host_is_left_alone(monkeypatch, platforms, done):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert accelerators.keep_freed_memory() is done


def test_the_devices_of_the_machine_decide_where_nothing_is_said(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(accelerators.glob, "glob", lambda pattern: [pattern])
    assert not accelerators.keep_freed_memory()


ONE_ARENA = """
import sys, tempfile
from t5x_lite import cli
from t5x_lite.commands import runs
def arenas(*_, **__):
    import ctypes, threading
    threads = [threading.Thread(target=bytearray, args=(1000,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    library = ctypes.CDLL(None)
    library.fopen.restype, library.fopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p] * 2
    library.fclose.argtypes = [ctypes.c_void_p]
    library.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
    file = library.fopen(b"/dev/stdout", b"w")
    library.malloc_info(0, file)
    library.fclose(file)
runs.train.options.run = arenas
sys.exit(cli.main())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc is Linux's")
def test_all_threads_of_a_training_share_the_memory_that_is_kept(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    command = [sys.executable, "-c", ONE_ARENA, "--debug", "train", "configs/tiny_pretrain.py"]
    told = subprocess.check_output(command, text=True)
    assert told.count("<heap nr=") == 1
