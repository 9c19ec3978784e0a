"""Safe end of a command's process after SIGINT (Ctrl-C), SIGTERM or SIGHUP.

The process prints one line and exits with code 130, 143 or 129.

    at_start()                  # from here on a signal ends the process at once
    with watching() as watch:   # here it raises, so that `with` blocks clean up
        command.run()
    watch.leave(130)            # without the end of the interpreter

A signal raises KeyboardInterrupt or `Terminated` in the main thread. Five measures make that safe:

- The interpreter is not finalized after a signal or an error, because destructors of XLA and
TensorFlow would run while their threads still work, and crash or hang.
- During an import no exception is raised, because extension modules would abort the process. The
process ends at once, and unfinished files are removed.
- Python drops an exception that is raised in a destructor or a garbage collection callback, such as
JAX's. `watching` then raises the signal again.
- The main thread may be in C++ for minutes, for example in a compilation. A separate thread then
removes unfinished files and ends the process after `GRACE_SECONDS`, or at a second signal.
- SIGHUP means that the terminal was closed and cannot be written to, so output goes to /dev/null.
Under `nohup` the signal is ignored.

Importing this module is cheap: no JAX, no NumPy. `quiet_import` hides TensorFlow's C++ log lines.
"""

import atexit
import contextlib
import os
import re
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 5.0
"""Seconds for the main thread to clean up after a signal."""
_EXIT_SECONDS = 30.0
"""Maximum seconds of `atexit` functions after an error."""
_SAME_SECONDS = 1.0
"""Seconds in which a repeated signal is ignored, because some launchers forward Ctrl-C."""
_AGAIN_SECONDS = 0.05
_LINES = {
    signal.SIGINT: "error: interrupted",
    signal.SIGTERM: "error: terminated",
    signal.SIGHUP: "error: the terminal was closed",
}
_SHOW_CURSOR = "\x1b[?25h"
standard_errors = [2]
"""File descriptors of standard error; the last one is used if descriptor 2 is redirected."""


class Terminated(KeyboardInterrupt):
    """Exception for SIGTERM or SIGHUP; code that cleans up after Ctrl-C also handles it."""

    def __init__(self, signum: int = signal.SIGTERM) -> None:
        super().__init__()
        self.signum = signum


def interruption(signum: int) -> KeyboardInterrupt:
    """Return the exception that a signal raises."""
    return KeyboardInterrupt() if signum == signal.SIGINT else Terminated(signum)


def leave_terminal(signum: int) -> None:
    """After SIGHUP, redirect terminal output to /dev/null, because the terminal was closed."""
    if signum != signal.SIGHUP:
        return
    for descriptor in (1, *standard_errors):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, descriptor)
                os.close(nothing)


def at_start() -> None:
    """Make SIGINT, SIGTERM and SIGHUP end this process at once, without cleanup.

    When the interpreter is finalized, they are ignored: the work is done, and the exit code stays.
    """
    atexit.register(_ignore)  # registered first, so it runs last
    for signum in SIGNALS:
        if signal.getsignal(signum) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(signum, _end_at_once)


def _ignore() -> None:
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def line_of(signum: int) -> str:
    """Return the last line that a command prints after a signal."""
    return _LINES[signal.Signals(signum)]


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` within the `with` block, and a second SIGTERM end the process.

    The handler of SIGINT stays unchanged.
    """
    import threading

    def stop(signum: int, frame: Any) -> None:
        del frame
        signal.signal(signum, signal.SIG_DFL)
        raise Terminated

    main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if main_thread else None
    try:
        yield
    finally:
        if main_thread:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@contextlib.contextmanager
def watching() -> Iterator["Watch"]:
    """Make SIGINT, SIGTERM and SIGHUP raise an exception within the `with` block."""
    watch = Watch()
    ignored = [one for one in SIGNALS if signal.getsignal(one) is signal.SIG_IGN]
    handlers = {one: signal.signal(one, watch.handle) for one in SIGNALS if one not in ignored}
    try:
        with watch.hooks():
            yield watch
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def ended_by(
    signums: Collection[int], *, seconds: float, may_end: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """End the process at a second signal or `seconds` after the first, even if C++ code hangs.

    Python's own handlers wait until the main thread returns from C++, which may never happen during
    a compilation. Outside the main thread, this function does nothing.
    """
    import threading

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
            leave_terminal(first)
            _write(f"{line_of(first)}\n")
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


class Watch:
    """Signal handling of a process that runs one command.

    Attributes:
      signum: signal that asked this process to end; None before a signal, and 0 after `finish`,
        which ignores later signals.
    """

    def __init__(self) -> None:
        import threading

        self.signum: int | None = None
        self._ending = threading.Lock()
        self._was_dropped = False

    def handle(self, signum: int, frame: Any) -> None:
        """Handle a signal: the first one raises an exception in the main thread."""
        if self.signum is None:
            self.signum = signum
            leave_terminal(signum)
            if _is_importing(frame):
                self._end(signum)
            raise interruption(signum)

    @contextlib.contextmanager
    def hooks(self) -> Iterator[None]:
        """Start the thread that receives signals, and hide the tracebacks that a signal causes."""
        import socket
        import threading

        received, sent = socket.socketpair()
        sent.setblocking(False)
        threading.Thread(target=self._watch, args=(received,), daemon=True, name="signals").start()
        before = sys.unraisablehook, threading.excepthook
        sys.unraisablehook = self._dropped(sys.unraisablehook)
        threading.excepthook = self._silent(threading.excepthook)
        descriptor = signal.set_wakeup_fd(sent.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            sys.unraisablehook, threading.excepthook = before
            if not self.signum:
                sent.close()  # this ends the thread

    def finish(self) -> None:
        """Ignore later signals, so that the process ends with the command's own exit code."""
        self.signum = self.signum or 0

    def claim(self) -> None:
        """Let only the first calling thread end the process; other threads wait forever."""
        self.finish()
        if not self._ending.acquire(blocking=False):
            while True:
                time.sleep(1)

    def leave(self, code: int) -> None:
        """Clean up and end this process with an exit code."""
        from t5x_lite.core.files import remove_unfinished

        _end_children()
        with contextlib.suppress(Exception):
            remove_unfinished()
            _remove_generated()
            _remove_temporary()
        self._exit(code)

    def leave_after_error(self, code: int) -> None:
        """Run `atexit` functions for at most `_EXIT_SECONDS`, and end this process."""
        import atexit
        import threading

        self.finish()
        _end_children()
        timer = threading.Timer(_EXIT_SECONDS, self._exit, (code,))
        timer.daemon = True
        timer.start()
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        self.leave(code)

    def _exit(self, code: int) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)

    def _watch(self, received: Any) -> None:
        """Receive signals in a thread, and end the process if the main thread takes too long."""
        first = last = None
        foreign = 0
        with received:
            while True:
                left = None if first is None else first + GRACE_SECONDS - time.monotonic()
                if left is not None and left <= 0:
                    break
                if self._was_dropped:
                    self._raise_again()
                received.settimeout(None if left is None else min(left, _AGAIN_SECONDS))
                try:
                    byte = received.recv(1)
                except TimeoutError:
                    continue
                if not byte:
                    return
                if byte[0] not in SIGNALS:
                    continue
                now = time.monotonic()
                if signal.getsignal(byte[0]) != self.handle:
                    # Training and the server end by themselves after one signal. A second Ctrl-C
                    # of training raises, which the main thread may be too busy to notice.
                    foreign += byte[0] == signal.SIGINT
                    if foreign < 2 or first is not None:
                        continue
                elif first is not None and now - first > _SAME_SECONDS:
                    break
                elif first is not None:
                    continue
                first, last = now, byte[0]
        assert last is not None
        self._end(self.signum or last)

    def _end(self, signum: int) -> None:
        self.claim()
        leave_terminal(signum)
        cursor = _SHOW_CURSOR if os.isatty(standard_errors[-1]) else ""
        _write(f"{cursor}{line_of(signum)}\n")
        self.leave(128 + signum)

    def _dropped(self, hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def handle(dropped: Any) -> None:
            if self.signum is None:
                hook(dropped)
            elif isinstance(dropped.exc_value, KeyboardInterrupt):
                self._was_dropped = True

        return handle

    def _raise_again(self) -> None:
        """Send the signal to the main thread again; Python ignored the exception that it raised."""
        import threading

        main, signum = threading.main_thread().ident, self.signum
        self._was_dropped = False
        if main is not None and signum:
            self.signum = None
            signal.pthread_kill(main, signum)

    def _silent(self, hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def handle(failed: Any) -> None:
            if self.signum is None:
                hook(failed)

        return handle


def _is_importing(frame: Any) -> bool:
    """Return True if the frame or one of its callers runs an import.

    Extension modules abort the process if an exception is raised in their imports.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _end_at_once(signum: int, frame: Any) -> None:
    del frame
    leave_terminal(signum)
    _write(f"{line_of(signum)}\n")
    os._exit(128 + signum)


def _write(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(standard_errors[-1], text.encode())


def _remove_generated() -> None:
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name.startswith("__autograph_generated_file") and path:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _remove_temporary() -> None:
    import gc

    kind = tempfile.TemporaryDirectory
    for one in [one for one in gc.get_objects() if type(one) is kind]:
        with contextlib.suppress(Exception):
            one.cleanup()


def _end_children() -> None:
    """End worker processes, which would otherwise wait for their next task."""
    processes = sys.modules.get("multiprocessing.process")
    for child in () if processes is None else processes.active_children():
        with contextlib.suppress(Exception):
            child.kill()


_LOG_LINE = re.compile(
    rb"[IWE]\d{4} \d\d:\d\d:|WARNING: All log messages before absl::InitializeLog"
)


@contextlib.contextmanager
def without_log_lines() -> Iterator[None]:
    """Hide C++ log lines on standard error (file descriptor 2) within the `with` block."""
    sys.stderr.flush()
    try:
        saved = os.dup(2)
    except OSError:  # standard error is closed: nothing to hold back
        yield
        return
    with tempfile.TemporaryFile() as held:
        standard_errors.append(saved)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            standard_errors.remove(saved)
            os.close(saved)
            held.seek(0)
            for line in held:
                if not _LOG_LINE.match(line):
                    os.write(2, line)


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Hide TensorFlow's C++ log messages in a `with` block that imports it.

    Importing JAX sets TF_CPP_MIN_LOG_LEVEL to 1, so TensorFlow would print long warnings for each
    data error.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    with without_log_lines():
        yield
