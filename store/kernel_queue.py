"""
What the kernel does for us with no thread waiting: Linux AIO (``io_submit(2)``), no page cache.

A thread has to be woken, wants Python's lock before and after its system call, and wakes the loop:
that is more than the work itself. Here the loop hands the work over in 20 µs and an eventfd tells
it when some is done.
"""

import ctypes
import os
import platform
from errno import EINVAL
from mmap import mmap
from struct import Struct
from typing import Final

_NUMBERS: Final = {
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
    "riscv64": (0, 1, 4, 2),
}.get(platform.machine())
"""io_setup, io_destroy, io_getevents, io_submit: libc has no functions for them."""

_CONTROL_BLOCK: Final = Struct("<QIIHhIQQqQII")
"""``struct iocb``: data, key, rw_flags, opcode, priority, descriptor, buffer, size, offset,
reserved, flags, result descriptor (linux/aio_abi.h; on little-endian machines)."""

_EVENT: Final = Struct("<QQqq")
"""``struct io_event``: data, control block, result, second result."""

PREAD: Final = 0
PWRITE: Final = 1
_TELL_DESCRIPTOR: Final = 1

LONG: Final = ctypes.c_long

_CACHESTAT: Final = 451
"""cachestat(2), Linux 6.5; the same number everywhere."""

_PAGE_BYTES: Final = 4096

# with Python's lock held: none of the calls waits, and giving it up costs more
_call = ctypes.PyDLL(None, use_errno=True).syscall
_call.restype, _call.argtypes = LONG, (LONG,) * 6


def is_cached(descriptor: int, offset: int, size: int) -> bool:
    """
    Whether the page cache has all of it; True also where the system cannot say.

    A read that is not to wait would say so too, but begins to fill the cache.
    """
    asked = (ctypes.c_uint64 * 2)(offset, size)
    found = (ctypes.c_uint64 * 5)()
    where, into = ctypes.addressof(asked), ctypes.addressof(found)
    if _call(_CACHESTAT, descriptor, where, into, 0, 0) < 0:
        return True
    return found[0] * _PAGE_BYTES >= size


class KernelQueue:
    """
    Up to *depth* pieces of work at a time; ``fileno`` becomes readable when some is done.

    Raises OSError when the system has no such thing (a container may forbid it).
    """

    def __init__(self, depth: int) -> None:
        if _NUMBERS is None or not hasattr(os, "eventfd"):
            raise OSError(EINVAL, "no Linux AIO here")
        self._setup, self._destroy, self._get_events, self._submit = _NUMBERS
        context = ctypes.c_ulong(0)
        self._check(_call(self._setup, depth, ctypes.addressof(context), 0, 0, 0))
        self._context = context.value
        self._depth = depth
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._block = ctypes.create_string_buffer(_CONTROL_BLOCK.size)
        self._pointer = (ctypes.c_void_p * 1)(ctypes.addressof(self._block))
        self._events = ctypes.create_string_buffer(_EVENT.size * depth)

    def fileno(self) -> int:
        return self._descriptor

    def begin(
        self,
        work: int,
        descriptor: int,
        buffer: mmap,
        size: int,
        offset: int,
        number: int = 0,
        start: int = 0,
    ) -> bool:
        """
        *work* is PREAD or PWRITE of *size* bytes to or from *buffer*, from *start* on, which must
        not change until it is done; *number* is what ``take_results`` calls it.

        False: the system takes none now.
        """
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer)) + start
        _CONTROL_BLOCK.pack_into(
            self._block, 0, number, 0, 0, work, 0, descriptor, address, size, offset, 0,
            _TELL_DESCRIPTOR, self._descriptor,
        )  # fmt: skip
        pointer = ctypes.addressof(self._pointer)
        return bool(_call(self._submit, self._context, 1, pointer, 0, 0) == 1)

    def take_results(self) -> list[tuple[int, int]]:
        """(number, bytes or minus the error's number) of what is done."""
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            return []
        events = ctypes.addressof(self._events)
        count = _call(self._get_events, self._context, 0, self._depth, events, 0)
        found = [_EVENT.unpack_from(self._events, at * _EVENT.size) for at in range(count)]
        return [(number, result) for number, _, result, _ in found]

    def close(self) -> None:
        """Waits for what is under way."""
        _call(self._destroy, self._context, 0, 0, 0, 0)
        os.close(self._descriptor)

    @staticmethod
    def _check(result: int) -> None:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
