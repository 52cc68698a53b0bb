"""
Writes that no thread waits for: Linux AIO (``io_submit(2)``) on a descriptor past the page cache.

A writer thread has to be woken, wants Python's lock before and after its system call, and wakes
the loop: half of what a commit took. Here the loop hands the write over in 20 µs and an eventfd
tells it that the bytes are durable. Where the system refuses, the thread writes as ever.
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

_PWRITE: Final = 1
_TELL_DESCRIPTOR: Final = 1
_DEPTH: Final = 1

LONG: Final = ctypes.c_long


class KernelWriter:
    """
    One write at a time from one buffer; ``fileno`` becomes readable when it is done.

    Raises OSError when the system has no such thing (a container may forbid it).
    """

    def __init__(self) -> None:
        if _NUMBERS is None or not hasattr(os, "eventfd"):
            raise OSError(EINVAL, "no Linux AIO here")
        self._setup, self._destroy, self._get_events, self._submit = _NUMBERS
        # with Python's lock held: none of the calls waits, and giving it up costs more
        self._call = ctypes.PyDLL(None, use_errno=True).syscall
        self._call.restype, self._call.argtypes = LONG, (LONG,) * 6
        context = ctypes.c_ulong(0)
        self._check(self._call(self._setup, _DEPTH, ctypes.addressof(context), 0, 0, 0))
        self._context = context.value
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._block = ctypes.create_string_buffer(_CONTROL_BLOCK.size)
        self._pointer = (ctypes.c_void_p * 1)(ctypes.addressof(self._block))
        self._event = ctypes.create_string_buffer(_EVENT.size)

    def fileno(self) -> int:
        return self._descriptor

    def begin(self, descriptor: int, buffer: mmap, size: int, offset: int) -> bool:
        """
        *size* bytes from the start of *buffer*, which must not change until it is done.

        False: the system takes none now.
        """
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        _CONTROL_BLOCK.pack_into(
            self._block, 0, 0, 0, 0, _PWRITE, 0, descriptor, address, size, offset, 0,
            _TELL_DESCRIPTOR, self._descriptor,
        )  # fmt: skip
        pointer = ctypes.addressof(self._pointer)
        return bool(self._call(self._submit, self._context, 1, pointer, 0, 0) == 1)

    def take_result(self) -> int | None:
        """Bytes written, or minus the error's number; None: not done yet."""
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            return None
        event = ctypes.addressof(self._event)
        if self._call(self._get_events, self._context, 0, 1, event, 0) != 1:
            return None
        result: int = _EVENT.unpack(self._event.raw)[2]
        return result

    def close(self) -> None:
        """Waits for the write that is under way."""
        self._call(self._destroy, self._context, 0, 0, 0, 0)
        os.close(self._descriptor)

    @staticmethod
    def _check(result: int) -> None:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
