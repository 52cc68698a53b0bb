"""What commands ask of a running gateway's admin listener."""

import base64
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


WHO: Final = (
    "\nIt takes --user of a user with the operation admin; tidegate up also prints a --token."
)
HINTS: Final = {401: WHO, 403: WHO}


class Admin(NamedTuple):
    """Where the admin listener is, and who asks."""

    url: str
    token: str = ""
    user: str = ""
    """``name:password``."""

    def ask(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """The answer's JSON; what the gateway refuses ends the program with exit code 1."""
        if urllib.parse.urlsplit(self.url).scheme not in ("http", "https"):
            raise click.UsageError("--url wants http://host:port of an admin listener")
        address = self.url.rstrip("/") + path
        if query:
            address += f"?{urllib.parse.urlencode(query)}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, data=data, method=method)
        request.add_header("Content-Type", "application/json")
        if self.user:
            encoded = base64.b64encode(self.user.encode()).decode()
            request.add_header("Authorization", f"Basic {encoded}")
        elif self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=15) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read(4096).decode("utf-8", "replace")
            click.echo(f"tidegate: {error.code}: {text}{HINTS.get(error.code, '')}", err=True)
        except urllib.error.URLError as error:
            click.echo(f"tidegate: {self.url}: {error.reason}", err=True)
        sys.exit(1)


def admin_options(command: F) -> F:
    """``--url``, ``--token`` and ``--user`` of a command."""
    for option in (
        click.option(
            "--user",
            default="",
            envvar="TIDEGATE_ADMIN_USER",
            metavar="NAME:PASSWORD",
            help="A user with the operation admin (or TIDEGATE_ADMIN_USER).",
        ),
        click.option(
            "--token",
            default="",
            envvar="TIDEGATE_ADMIN_TOKEN",
            help="The one-time token of the console URL (or TIDEGATE_ADMIN_TOKEN).",
        ),
        click.option(
            "--url",
            default="http://127.0.0.1:8089",
            show_default=True,
            envvar="TIDEGATE_ADMIN_URL",
            help="Admin listener (or TIDEGATE_ADMIN_URL).",
        ),
    ):
        command = option(command)
    return command
