"""Commits that no thread waits for: one write at a time, from one buffer, by the kernel."""

from mmap import mmap

from store.kernel_queue import PWRITE, KernelQueue


class KernelWriter:
    """
    ``fileno`` becomes readable when the write is done.

    Raises OSError when the system has no such thing (a container may forbid it).
    """

    def __init__(self) -> None:
        self._queue = KernelQueue(1)

    def fileno(self) -> int:
        return self._queue.fileno()

    def begin(self, descriptor: int, buffer: mmap, size: int, offset: int) -> bool:
        """
        *size* bytes from the start of *buffer*, which must not change until it is done.

        False: the system takes none now.
        """
        return self._queue.begin(PWRITE, descriptor, buffer, size, offset)

    def take_result(self) -> int | None:
        """Bytes written, or minus the error's number; None: not done yet."""
        for _, result in self._queue.take_results():
            return result
        return None

    def close(self) -> None:
        """Waits for the write that is under way."""
        self._queue.close()
