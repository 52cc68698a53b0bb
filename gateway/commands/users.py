"""``tidegate user`` and ``tidegate acl``: entries for the files."""

import json
import os
import sys
from pathlib import Path

import click

from gateway.acl import SAID_BY
from gateway.authenticators import verifiers
from gateway.authenticators.verifiers import Verifier

FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def user() -> None:
    """Make entries of ``users:``."""


@user.command()
@click.argument("name")
@click.option("--role", "roles", multiple=True, help="May be repeated.")
@click.option("--password", envvar="TIDEGATE_PASSWORD", help="Asked for when not given.")
@click.option("--scram", is_flag=True, help="Also verifiers of SCRAM-SHA-256 and -512.")
@click.option("--scram-only", is_flag=True, help="Only those: the password itself never logs in.")
@click.option(
    "--iterations",
    type=click.IntRange(verifiers.ITERATIONS_MIN, verifiers.ITERATIONS_MAX),
    default=verifiers.ITERATIONS,
    show_default=True,
    help="Of SCRAM: hashes that a login costs the client. Best the same for all users.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def add(
    name: str,
    roles: tuple[str, ...],
    password: str | None,
    scram: bool,
    scram_only: bool,
    iterations: int,
    as_json: bool,
) -> None:
    """Print the line to put under ``users:``; the file itself is yours to edit."""
    from gateway.identity import hash_password

    if password is None:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    entry: dict[str, str | list[str]] = {"name": name}
    if not scram_only:
        entry["password_hash"] = hash_password(password)
    if scram or scram_only:
        entry["scram"] = _verifiers(password, iterations)
    entry["roles"] = [*roles]
    if as_json:
        click.echo(json.dumps(entry))
        return
    fields = ", ".join(f"{key}: {json.dumps(value)}" for key, value in entry.items())
    click.echo(f"  - {{ {fields} }}")


def _verifiers(password: str, iterations: int) -> list[str]:
    try:
        return [
            str(Verifier.make(method, password, os.urandom(verifiers.SALT_BYTES), iterations))
            for method in verifiers.DIGESTS
        ]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--password") from error


@click.group()
def acl() -> None:
    """Ask the ACL."""


@acl.command("test")
@click.option("-c", "--config", "file", type=FILE, required=True, help="Configuration file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.argument("identity")
@click.argument("operation", type=click.Choice([*SAID_BY]))
@click.argument("topic")
@click.option("--protocol", default="mqtt", show_default=True)
@click.option("--group", default="")
@click.option("--tenant", default="")
@click.option("--client-id", default="", help="Default: the identity.")
@click.option("--certificate-name", default="", help="Common name of the client's certificate.")
@click.option("--qos", type=click.IntRange(0, 2), default=None)
@click.option("--retain", is_flag=True)
def acl_test(
    file: Path,
    as_json: bool,
    identity: str,
    operation: str,
    topic: str,
    protocol: str,
    group: str,
    tenant: str,
    client_id: str,
    certificate_name: str,
    qos: int | None,
    retain: bool,
) -> None:
    """Say whether IDENTITY may OPERATION on TOPIC; exit 1 if not."""
    from gateway import config as configuration
    from gateway.explanation import facts_of_request
    from gateway.policy import Policy

    loaded = configuration.read(file)
    request = {
        "identity": identity,
        "operation": operation,
        "topic": topic,
        "protocol": protocol,
        "group": group,
        "tenant": tenant,
        "client_id": client_id,
        "certificate_name": certificate_name,
        "qos": -1 if qos is None else qos,
        "retain": retain,
    }
    judgement = Policy.from_config(loaded.config).acl.judge(facts_of_request(loaded, request))
    rule = judgement.source()
    if as_json:
        click.echo(json.dumps({"is_allowed": judgement.is_allowed, "rule": rule}))
    else:
        click.echo(f"{'allowed' if judgement.is_allowed else 'denied'} by {rule}")
    sys.exit(0 if judgement.is_allowed else 1)
