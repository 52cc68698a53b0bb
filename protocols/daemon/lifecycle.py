"""
The life of a daemon process: start, the ready line, signals, drain, exit code.

==========  ======================================================================
exit code   means
==========  ======================================================================
0           drained after SIGTERM or SIGINT
1           could not start, or had to end by itself
78          the configuration is wrong (EX_CONFIG of sysexits.h)
==========  ======================================================================
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any, Final, Protocol

from protocols.daemon import garbage
from protocols.descriptors import raise_limit
from protocols.errors import ConfigError, GatewayError
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.daemon")

EXIT_CONFIG: Final = 78
DRAIN_S_MAX: Final = 20.0
"""After SIGTERM; what has not ended by then is cut off."""

SWITCH_S: Final = 0.00005
"""How soon a busy event loop lets another thread in: the store's writer has a disk to feed, and
Python's own 5 ms are longer than a commit takes."""

# Measured on big socket reads: 2.4M to 9.4M messages a second (performance rule 12).
_M_TRIM_THRESHOLD: Final = (-1, 67_108_864)
_M_MMAP_THRESHOLD: Final = (-3, 33_554_432)
_M_TOP_PAD: Final = -2
_MADV_HUGEPAGE: Final = 14
_MADV_POPULATE_WRITE: Final = 23
_LARGE_PAGE: Final = 2 << 20


LARGE_PAGES: Final = "large pages"
"""The name of the thread that takes them."""


class Daemon(Protocol):
    """What ``run`` looks after."""

    async def start(self) -> None:
        """Return when serving. Raises ConfigError, GatewayError or OSError."""
        ...

    async def stop(self) -> None:
        """Drain: stop accepting, answer what is in flight, close."""
        ...

    async def reload(self) -> None:
        """SIGHUP: read the configuration again; a bad one changes nothing. Raises ConfigError."""
        ...

    def ready_line(self) -> str:
        """What follows ``ready ``: kind, name, then ``listener=host:port`` each."""
        ...


def run(
    build: Callable[[], Daemon], *, pid_file: Path | None = None, log_level: str = "info"
) -> int:
    """
    Run a daemon until a signal ends it; the exit code.

    *build* is called in the running event loop and opens nothing. The one line on stdout,
    ``ready …``, is written when the daemon serves.
    """
    from protocols.daemon import logs

    logs.set_up(log_level)
    tune_memory()
    raise_limit()
    with _pid_file(pid_file), asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(build))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, when it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def tune_memory() -> None:
    """Keep big buffers on the heap and collect seldom."""
    garbage.put_off()
    sys.setswitchinterval(SWITCH_S)
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):  # musl has no mallopt
            libc = ctypes.CDLL(None)
            for parameter, value in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
                libc.mallopt(parameter, value)


def use_large_pages(heap_bytes: int) -> None:
    """
    Let the next *heap_bytes* of the heap be large pages, for who goes through much memory again and
    again: finding the place of a small page costs as much as copying half of it, most of all in a
    virtual machine. They are taken now, in a thread: the first use of one waits for 0.3 ms, and for
    7 where the host of a virtual machine has to find the memory. After ``tune_memory``.
    """
    if sys.platform != "linux":
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError, StopIteration):  # not glibc, or no such pages
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TOP_PAD, heap_bytes)
        libc.malloc.restype = ctypes.c_void_p
        libc.free(ctypes.c_void_p(libc.malloc(1 << 20)))  # more than there is: the heap grows
        with open("/proc/self/maps", encoding="ascii") as maps:
            heap = next(line for line in maps if line.rstrip().endswith("[heap]"))
        start, end = [int(part, 16) for part in heap.split()[0].split("-")]
        libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        libc.madvise(start, end - start, _MADV_HUGEPAGE)
        pages = range(-(-start // _LARGE_PAGE) * _LARGE_PAGE, end - _LARGE_PAGE, _LARGE_PAGE)
        Thread(target=_take, args=(libc.madvise, pages), name=LARGE_PAGES, daemon=True).start()


def _take(madvise: Callable[[int, int, int], int], pages: range) -> None:
    """One at a time: who maps memory meanwhile waits for one. (Linux 5.14; others say no.)"""
    for at in pages:
        if madvise(at, _LARGE_PAGE, _MADV_POPULATE_WRITE):
            return


async def _serve(build: Callable[[], Daemon]) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    tasks = Tasks("daemon")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_stop, stop)
    daemon: Daemon | None = None
    collector: garbage.Collector | None = None
    try:
        daemon = build()
        starting = tasks.start(_start(daemon), name="start")
        stopping = tasks.start(stop.wait(), name="stop")
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            if (error := starting.result()) is not None:
                raise error
            collector = garbage.begin(loop)
            loop.add_signal_handler(signal.SIGHUP, Reloads(daemon, tasks).ask)
            write_ready(daemon.ready_line())
            await stop.wait()
        logger.info("draining")
        await _drain(daemon)
        return 0
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    except (GatewayError, OSError) as error:
        logger.error("cannot start: %s", error)
        if daemon is not None:
            await _drain(daemon)
        return 1
    finally:
        if collector is not None:
            collector.close()
        await tasks.close()


async def _start(daemon: Daemon) -> Exception | None:
    """Start it; what an operator has to mend is a value, so that it is reported once."""
    try:
        await daemon.start()
    except (GatewayError, OSError) as error:
        return error
    return None


def write_ready(line: str) -> None:
    """The one line on stdout."""
    with contextlib.suppress(OSError):  # whoever started us may have closed its end
        print(f"ready {line}", flush=True)


async def _drain(daemon: Daemon) -> None:
    try:
        async with asyncio.timeout(DRAIN_S_MAX):
            await daemon.stop()
    except TimeoutError:
        logger.warning("not drained within %d s: cutting off", DRAIN_S_MAX)
    except Exception:
        logger.exception("stopping failed")


def _on_stop(stop: asyncio.Event) -> None:
    if stop.is_set():
        os._exit(1)  # asked twice: at once
    stop.set()


class Reloads:
    """One after the other; of those that are asked for during one, one more follows."""

    def __init__(self, daemon: Daemon, tasks: Tasks) -> None:
        self._daemon = daemon
        self._tasks = tasks
        self._turn = asyncio.Lock()
        self._is_asked = False

    def ask(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self._tasks.start(self._next(), name="reload")

    async def _next(self) -> None:
        async with self._turn:
            self._is_asked = False
            try:
                await self._daemon.reload()
            except ConfigError as error:
                # one line: lines of a kind are folded
                logger.error("reload refused: %s", "; ".join(error.problems))
            else:
                logger.info("reloaded")


@contextlib.contextmanager
def _pid_file(path: Path | None) -> Iterator[None]:
    if path is None:
        yield
        return
    path.write_text(f"{os.getpid()}\n", encoding="ascii")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def describe(kind: str, name: str, **addresses: Any) -> str:
    """``kind name a=host:port b=host:port``."""
    return " ".join((kind, name, *(f"{key}={value}" for key, value in addresses.items())))
