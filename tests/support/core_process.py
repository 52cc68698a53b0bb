"""
A gateway core in a process of its own, driven by lines: for tests that stop or kill it.

``python -m tests.support.core_process <gateway> <name server>``; each line on stdin is a subject
and a body to publish; each answer is a line ``<body> <code>``. ``ready`` comes first.
"""

import asyncio
import sys

from protocols.canonical import Call, SendResults
from tests.support.core import Core, call, messages


async def main(name: str, name_server: str) -> None:
    core = Core(name, [name_server])
    await core.start()
    print("ready", flush=True)
    core.directory.on_ended(lambda: print("ended", flush=True))
    core.directory.on_joined(lambda: print("joined", flush=True))
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    sender: Call = call(f"client of {name}")

    def answer(body: str, results: SendResults) -> None:
        print(body, results[0].code.name, flush=True)

    while line := (await reader.readline()).decode().split():
        subject, body = line
        core.pipeline.post(
            sender,
            messages(subject, body.encode(), order_key="k"),
            lambda results, body=body: answer(body, results),  # type: ignore[misc]  # bound now
        )
    await core.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
