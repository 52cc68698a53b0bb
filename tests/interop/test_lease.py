"""A gateway that lost its lease closes its clients and comes back on the same ports."""

import signal
import subprocess

import pytest

from tests.support.processes import Daemons, wait_until

pytestmark = pytest.mark.client


def test_a_stopped_gateway_comes_back_on_its_ports() -> None:
    """SIGSTOP past the lease: when it wakes it closes its doors, joins again and opens them."""
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        store = daemons.store(namesrv, "store.lease_ms=1000", "store.silence_ms_max=2000")
        gateway = daemons.gateway(namesrv)
        command = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(gateway.port("mqtt"))]
        subscriber = subprocess.Popen([*command, "-t", "x", "-i", "s", "-k", "60", "-d"])
        gateway.signal(signal.SIGSTOP)
        wait_until(lambda: "is not heard any more" in store.log(), "its silence is noticed")
        gateway.signal(signal.SIGCONT)
        wait_until(lambda: "joined again" in gateway.log(), "a new lease")
        publish = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(gateway.port("mqtt"))]

        def is_served() -> bool:
            done = subprocess.run([*publish, "-t", "x", "-m", "1", "-q", "1"], capture_output=True)
            return done.returncode == 0

        wait_until(is_served, "a publish at the old port")
        subscriber.terminate()
        subscriber.wait()
        assert gateway.process.poll() is None
        assert gateway.stop() == 0
