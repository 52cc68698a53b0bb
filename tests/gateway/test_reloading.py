"""What of a changed file counts at once, and what is told to wait."""

import pytest

from gateway.config import Loaded
from gateway.config import read as read_config
from gateway.reloading import (
    in_force,
    refuse_new_clusters,
    refuse_unreadable_tls,
    waiting_keys,
)
from protocols.errors import ConfigError


def read(text: str) -> Loaded:
    return read_config(None, text=text, environ={})


STARTED = """\
name: gw-a
clusters: { eu: {namesrv: "a:1"} }
store: { retention_hours: 1 }
"""
CHANGED = """\
name: gw-b
clusters: { eu: {namesrv: "a:1"}, us: {namesrv: "b:1"} }
store: { retention_hours: 2 }
listeners: { admin: {bind: "127.0.0.1:1"}, amqp: {bind: "127.0.0.1:2"} }
routes: [ {name: all, to: [{cluster: eu}]} ]
"""


def test_what_a_reload_does_not_look_at_is_named_and_stays() -> None:
    """Also at the next reload, for it is compared with what is in force, not with the last file."""
    started, changed = read(STARTED), read(CHANGED)
    told = ["name", "clusters", "listeners.admin"]
    assert waiting_keys(started, changed, is_local=False) == told
    assert waiting_keys(started, changed, is_local=True) == [*told, "store"]
    now = in_force(started.config, changed.config)
    assert (now.name, [*now.clusters]) == ("gw-a", ["eu"])
    assert now.listeners["admin"].bind == started.config.listeners["admin"].bind
    assert now.listeners["amqp"].bind == "127.0.0.1:2"
    assert waiting_keys(started, read(STARTED), is_local=True) == []


@pytest.mark.parametrize("use", ["to: [{cluster: us}]", "to: [{cluster: eu}], failover: [us]"])
def test_a_route_to_a_cluster_that_is_not_connected_is_refused(use: str) -> None:
    """It would take messages and have nowhere to put them."""
    text = CHANGED.replace("to: [{cluster: eu}]", use)
    with pytest.raises(ConfigError, match=r"routes\[0\]: cluster 'us' is there from the next"):
        refuse_new_clusters(read(STARTED).config, read(text))
    refuse_new_clusters(read(STARTED).config, read(CHANGED))


def test_a_certificate_that_cannot_be_read_is_refused_before_its_listener_closes() -> None:
    """Of a listener that changed; the others' files are their own affair."""
    text = STARTED + "listeners: { mqtt: {protocol: mqtt, bind: '127.0.0.1:1', tls: TLS} }\n"
    broken = read(text.replace("TLS", "{cert: gone.pem, key: gone.key}"))
    with pytest.raises(ConfigError, match=r"listeners\.mqtt\.tls: .*gone\.pem"):
        refuse_unreadable_tls(read(STARTED).config, broken)
    refuse_unreadable_tls(broken.config, broken)
