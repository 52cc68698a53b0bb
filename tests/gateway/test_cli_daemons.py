"""Daemons as scripts see them: ready line, exit codes, signals, configuration errors."""

import json
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.commands import tidegate
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemons, wait_until

pytestmark = pytest.mark.client


THREE_MISTAKES = """\
clusters:
  us: { namesrv: ["127.0.0.1:9876"] }
listeners:
  mqtt: { bind: nowhere }
routes:
  - { name: default, to: [ {cluster: uz} ] }
throttle:
  - { name: a, publsh: 5/s, publish: 5/s }
"""


@pytest.mark.parametrize("command", [("up",), ("gateway",), ("config", "validate")])
def test_a_config_with_three_mistakes_reports_all_three(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Exit 78 and a line for each, with file, line and column; nothing is opened."""
    (tmp_path / "gw.yaml").write_text(THREE_MISTAKES)
    done = tidegate(*command, "-c", "gw.yaml", cwd=tmp_path)
    assert done.returncode == 78
    assert done.stderr.splitlines() == [
        "gw.yaml:4:17 listeners.mqtt.bind: 'nowhere' is no host:port",
        "gw.yaml:6:38 routes[0].to[0].cluster: 'uz' is no cluster (did you mean 'us'?)",
        "gw.yaml:8:16 throttle[0].publsh: unknown key (did you mean 'publish'?)",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["gw.yaml"]


def test_up_is_ready_and_drains_on_sigterm(tmp_path: Path) -> None:
    """The ready line, then guidance; SIGTERM ends it with 0."""
    with Daemons() as daemons:
        pid_file = tmp_path / "up.pid"
        up = daemons.up(arguments=("--pid-file", str(pid_file)))
        assert up.ready_text.startswith("ready gateway gw-1 mqtt=127.0.0.1:")
        assert {"mqtt", "mqtt-ws", "grpc", "admin", "namesrv", "store"} <= set(up.addresses)
        assert int(pid_file.read_text()) == up.process.pid
        console = f"http://{up.addresses['admin']}/?token="
        wait_until(lambda: console in up.log(), "the last of the lines to paste")
        assert "mosquitto_pub" in up.log()
        if Path("/sys/kernel/mm/transparent_hugepage").exists():
            heap = Path(f"/proc/{up.process.pid}/smaps").read_text().partition("[heap]")[2]
            flags = heap.partition("VmFlags:")[2].partition("\n")[0]
            assert "hg" in flags.split()  # a store has its heap in large pages here, too
        assert up.stop() == 0
        assert not pid_file.exists()
        lines = [line for line in up.log().splitlines() if line.startswith("{")]
        assert all(json.loads(line)["message"] for line in lines)


def test_a_killed_up_comes_back_on_its_data() -> None:
    """``kill -9``: the lease of its earlier life is no obstacle."""
    with Daemons() as daemons:
        up = daemons.up()
        up.kill()
        up.restart()


def test_a_port_in_use_is_said_and_exit_1() -> None:
    """The listener is named; nothing stays behind."""
    with Daemons() as daemons:
        up = daemons.up()
        taken = up.addresses["mqtt"]
        with pytest.raises(AssertionError, match="ended with 1"):
            daemons.up(f"listeners.mqtt.bind={taken}", name="second")
        assert f"listener mqtt cannot listen on {taken}" in daemons.all[-1].log()


def test_the_admin_listener_lets_read_and_guards_changes() -> None:
    """Reading is open on a laptop under a loopback name; a kick takes the token."""
    with Daemons() as daemons:
        up = daemons.up()
        base = f"http://{up.addresses['admin']}"

        def status(path: str, method: str = "GET", **headers: str) -> int:
            request = urllib.request.Request(base + path, method=method, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                    return int(response.status)
            except urllib.error.HTTPError as error:
                error.close()
                return error.code

        assert status("/api/clients") == 200
        assert status("/api/clients", Host="evil.example") == 401
        assert status("/api/clients/x", "DELETE") == 401
        token = wait_until(
            lambda: up.log().partition("?token=")[2].partition("\n")[0], "the console URL"
        )
        bearer = {"Authorization": f"Bearer {token}"}
        assert status("/api/clients/x", "DELETE", **bearer) == 404
        assert status(f"/?token={token}") == 200
        assert status("/api/clients/x", "DELETE", **bearer) == 403
        assert status(f"/?token={token}") == 403


def test_sighup_swaps_the_rules_or_changes_nothing(tmp_path: Path) -> None:
    """A new route takes effect; a bad file is refused in the log and the old rules stand."""
    file = tmp_path / "gw.yaml"
    file.write_text("routes: [{name: one, to: [{cluster: default}]}]\n")
    with Daemons() as daemons:
        up = daemons.up(arguments=("-c", str(file)))
        port = up.port("mqtt")

        def route() -> str:
            done = tidegate(
                *("explain", "--protocol", "mqtt", "--identity", "a", "--topic", "t", "--json"),
                *("--live", f"http://{up.addresses['admin']}"),
            )
            return str(json.loads(done.stdout)["route"])

        assert route() == "one"
        rest = "zone: z9\nlimits: { trace_bytes_max: 1MiB }\n"
        file.write_text("routes: [{name: two, to: [{cluster: default}]}]\n" + rest)
        up.signal(signal.SIGHUP)
        wait_until(lambda: "reloaded" in up.log(), "the reload")
        assert route() == "two"
        assert "zone, limits changed: this takes effect at the next start" in up.log()
        file.write_text("routes: [{name: three, to: [{cluster: defalt}]}]\n")
        up.signal(signal.SIGHUP)
        wait_until(lambda: "'defalt' is no cluster" in up.log(), "the refusal")
        assert route() == "two"
        taken = up.addresses["amqp"]
        extra = f"listeners: {{ extra: {{protocol: mqtt, bind: '{taken}'}} }}\n"
        file.write_text("routes: [{name: four, to: [{cluster: default}]}]\n" + extra)
        up.signal(signal.SIGHUP)
        refusal = f"reload refused: listener extra cannot listen on {taken}"
        wait_until(lambda: refusal in up.log(), "the refusal")
        assert route() == "two"
        assert up.port("mqtt") == port
        assert up.stop() == 0


def test_init_writes_a_config_that_runs(tmp_path: Path) -> None:
    """Generated users and cluster secret: anonymous access is off, the device gets in."""
    done = tidegate("init", "--json", cwd=tmp_path)
    passwords = json.loads(done.stdout)["passwords"]
    assert tidegate("config", "validate", "tidegate.yaml", cwd=tmp_path).returncode == 0
    assert tidegate("init", cwd=tmp_path).returncode == 1
    with Daemons() as daemons:
        up = daemons.up(arguments=("-c", str(tmp_path / "tidegate.yaml")))

        def publish(*credentials: str, topic: str = "devices/device-1/t") -> int:
            command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(up.port("mqtt")), "-q", "1"]
            arguments = [*command, "-t", topic, "-m", "x", "-V", "5", *credentials]
            return subprocess.run(arguments, timeout=PATIENCE_S, capture_output=True).returncode

        device = ("-u", "device-1", "-P", passwords["device-1"])
        assert publish(*device) == 0
        assert publish() != 0
        assert publish("-u", "device-1", "-P", "wrong") != 0
        assert up.stop() == 0


def test_help_lists_every_command() -> None:
    """One program: the other daemons' commands come by entry point."""
    output = tidegate("--help").stdout
    for command in ("up", "gateway", "store", "namesrv", "spark", "config", "explain", "send"):
        assert f"\n  {command} " in output


def test_explain_names_the_rule_and_its_line(tmp_path: Path) -> None:
    """Each step, the rules above that did not match and why; exit 1 when denied."""
    (tmp_path / "gw.yaml").write_text(
        'acl:\n  - { allow: [publish], identity: "dev-*", topic: "t/{identity}/#" }\n'
        "throttle:\n  - { name: device, per: identity, publish: 20/s }\n"
    )
    arguments = ("explain", "-c", "gw.yaml", "--protocol", "mqtt", "--identity", "dev-7")
    done = tidegate(*arguments, "--topic", "t/dev-7/x", cwd=tmp_path)
    assert done.returncode == 0
    assert "allowed by acl[0]   [gw.yaml:2:5]" in done.stdout
    assert "device per identity: publish 20 left" in done.stdout
    assert "cluster default" in done.stdout
    done = tidegate(*arguments, "--topic", "t/dev-8/x", cwd=tmp_path)
    assert done.returncode == 1
    assert "denied: no acl rule matches" in done.stdout
    assert "acl[0] does not match: topic" in done.stdout
