"""``tidegate init``: a commented configuration with generated credentials."""

import json
import secrets
from pathlib import Path
from typing import Final

import click

TEMPLATE: Final = """\
# Tidegate, made by `tidegate init`. Check a change with: tidegate config validate {file}
version: 1
name: gw-1                      # this gateway; unique among those of one directory
zone: ${{ZONE:-local}}

cluster_auth:                   # store, name server and gateway to each other
  access_key: tidegate
  secret_file: {secret_file}

clusters:
  main: {{ namesrv: ["${{NAMESRV:-127.0.0.1:9876}}"] }}

directory: {{ cluster: main }}    # sessions and subscriptions: the store with directory: true

store:
  bind: ${{STORE_BIND:-127.0.0.1:10911}}
  namesrv: ["${{NAMESRV:-127.0.0.1:9876}}"]
  name: ${{STORE_NAME:-broker-a}}
  directory: true
  flush: sync                   # acknowledged means fdatasync has returned

namesrv:
  bind: ${{NAMESRV_BIND:-127.0.0.1:9876}}

listeners:                      # 0.0.0.0 is fine now: there are users
  mqtt:     {{ bind: "${{HOST:-127.0.0.1}}:1883" }}
  mqtt-ws:  {{ bind: "${{HOST:-127.0.0.1}}:8083" }}
  amqp:     {{ bind: "${{HOST:-127.0.0.1}}:5672" }}
  events:   {{ bind: "${{HOST:-127.0.0.1}}:8088" }}
  grpc:     {{ bind: "${{HOST:-127.0.0.1}}:8081" }}
  remoting: {{ bind: "${{HOST:-127.0.0.1}}:8080" }}
  admin:    {{ bind: "127.0.0.1:8089" }}

users:                          # `tidegate user add NAME` prints a line for here
  - {{ name: admin, password_hash: "{admin_hash}", secret: "{admin_secret}", roles: [admin] }}
  - {{ name: device-1, password_hash: "{device_hash}", roles: [device] }}

routes:                         # the first match decides
  - {{ name: default, to: [{{ cluster: main }}] }}

acl:                            # the first match decides, the end is deny
  - {{ allow: [all], identity: "role:admin" }}
  - {{ allow: [publish, consume], identity: "role:device", topic: "devices/{{identity}}/#" }}

throttle:                       # all that match apply
  - {{ name: device, per: identity, when: {{identity: "role:device"}}, publish: 100/s, burst: 5s }}

tests:                          # run by `config validate` and before every reload
  - send: {{ protocol: mqtt, identity: device-1, roles: [device], topic: devices/device-1/t }}
    expect: {{ allowed: true, route: default }}
  - send: {{ protocol: mqtt, identity: device-1, roles: [device], topic: devices/device-2/t }}
    expect: {{ denied: no acl rule matches }}
"""


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default="tidegate.yaml")
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@click.option("--if-missing", is_flag=True, help="Leave what is there and succeed (containers).")
@click.option("--json", "as_json", is_flag=True, help="Print the credentials as one JSON object.")
def init(file: Path, force: bool, if_missing: bool, as_json: bool) -> None:
    """Write FILE and a secret beside it; print the passwords, which are kept nowhere else."""
    from gateway.identity import hash_password

    secret_file = file.with_suffix(".secret")
    existing = [path for path in (file, secret_file) if path.exists()]
    if existing and if_missing:
        click.echo(f"{file}: is there already", err=True)
        return
    if existing and not force:
        raise click.ClickException(f"{existing[0]} exists; --force overwrites it")
    passwords = {name: secrets.token_urlsafe(12) for name in ("admin", "device-1")}
    file.parent.mkdir(parents=True, exist_ok=True)
    _write_private(secret_file, secrets.token_urlsafe(32) + "\n")
    _write_private(
        file,
        TEMPLATE.format(
            file=file,
            secret_file=json.dumps(str(secret_file.absolute())),
            admin_hash=hash_password(passwords["admin"]),
            admin_secret=passwords["admin"],
            device_hash=hash_password(passwords["device-1"]),
        ),
    )
    if as_json:
        click.echo(json.dumps({"file": str(file), "passwords": passwords}))
        return
    click.echo(f"wrote {file} and {secret_file}")
    for name, password in passwords.items():
        click.echo(f"  {name:10} {password}")
    click.echo(f"start it with: tidegate up -c {file}")


def _write_private(path: Path, text: str) -> None:
    """Readable by its owner alone, from the first byte."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
