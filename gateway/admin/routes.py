"""Which handler of the admin API a request is for."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from protocols.daemon.requests import Answer, Request, json_answer, match

Handler = Callable[[Request], Awaitable[Answer]]


class Route(NamedTuple):
    method: str
    path: str
    """With variables, as ``match`` reads them."""

    handler: Handler


async def find(routes: Sequence[Route], request: Request) -> Answer:
    """The answer of the first route that fits, or 404, or 405."""
    method = "GET" if request.method == "HEAD" else request.method
    allowed: list[str] = []
    for route in routes:
        parts = match(route.path, request.path)
        if parts is None:
            continue
        if route.method == method:
            return await route.handler(request._replace(parts=parts))
        allowed.append(route.method)
    if allowed:
        allow = ", ".join(sorted(set(allowed)))
        return json_answer({"error": "Method Not Allowed"}, status=405, headers={"Allow": allow})
    return json_answer({"error": "Not Found"}, status=404)
