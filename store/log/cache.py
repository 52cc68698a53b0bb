"""Records of blocks just stored, kept in memory for readers, bounded by bytes."""

from bisect import bisect_right

from store.disk import Buffer


class RecentBlocks:
    """The newest blocks' records by log position; what is not durable yet is never dropped."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._starts: list[int] = []
        self._buffers: list[Buffer] = []
        self._byte_count = 0
        self._gone = 0  # leading items already dropped but not yet cut off the lists

    def add(self, start: int, buffer: Buffer) -> None:
        self._starts.append(start)
        self._buffers.append(buffer)
        self._byte_count += len(buffer)

    def trim(self, confirmed: int) -> None:
        """Drop the oldest durable blocks beyond the bound."""
        while self._byte_count > self._bytes_max and self._gone < len(self._starts):
            buffer = self._buffers[self._gone]
            if self._starts[self._gone] + len(buffer) > confirmed:
                break
            self._byte_count -= len(buffer)
            self._buffers[self._gone] = b""
            self._gone += 1
        if self._gone > 256 and self._gone * 2 > len(self._starts):
            del self._starts[: self._gone]
            del self._buffers[: self._gone]
            self._gone = 0

    def find(self, position: int) -> tuple[Buffer, int] | None:
        """(buffer, index in it) of what lies at *position*."""
        index = bisect_right(self._starts, position) - 1
        if index < self._gone:
            return None
        at = position - self._starts[index]
        buffer = self._buffers[index]
        return (buffer, at) if at < len(buffer) else None
