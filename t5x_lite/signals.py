"""The end of a process after a signal, also while its main thread is in C++.

with ended_by((signal.SIGTERM,), seconds=30):
    ...                                     # JAX allocates more than there is, and never returns
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator


@contextlib.contextmanager
def ended_by(
    signums: Collection[int], *, seconds: float, may_end: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """End the process if it still runs some seconds after a signal, or at the second signal.

    Python's own handlers wait until the main thread is back from C++: it may allocate or compile
    there for ever. Here another thread learns of the signal. Nothing happens where this is not the
    main thread.

    Args:
      signums: the signals.
      seconds: how long the main thread has to end by itself.
      may_end: whether the process may be ended; asked at the end of that time.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    left = threading.Event()

    def watch() -> None:
        first = None
        while first is None:
            came = os.read(reading, 1)
            if not came or left.is_set():
                return
            first = came[0] if came[0] in signums else None
        second = threading.Thread(target=lambda: os.read(reading, 1), daemon=True)
        second.start()
        second.join(seconds)
        if not left.is_set() and may_end():
            text = "terminated" if first == signal.SIGTERM else "interrupted"
            os.write(2, f"error: {text}\n".encode())
            os._exit(128 + first)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    finally:
        left.set()
        signal.set_wakeup_fd(before)
        os.write(writing, b"\0\0")  # both readers end
        thread.join(1.0)
        os.close(writing)
        os.close(reading)
