"""
What no single field can say: names given twice, safety rules, routing tests, dead rules.

``cross_problems`` stop the start; ``warnings`` are shown by ``config validate`` and logged.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.authenticators.settings import BUILT_IN, PasswordFileConfig, PluginConfig, is_plugin
from gateway.config import ADMIN_PROTOCOL, GatewayConfig, ListenerConfig
from gateway.mosquitto import read_acl_file, read_password_file, unreadable
from gateway.ruleconfig import RuleExpectConfig, RuleTestConfig, WhenConfig
from gateway.rules import Facts, covers
from protocols import unix_sockets
from protocols.addresses import ANY_HOSTS, is_loopback, split_bind
from protocols.canonical import Identity
from protocols.daemon.documents import Document, KeyPath
from protocols.errors import ConfigError
from protocols.suggestions import nearest

if TYPE_CHECKING:
    from gateway.policy import Policy

NO_ACL_RULE = "no acl rule matches"
"""The words of a refusal by the end of the list."""


def cross_problems(config: GatewayConfig, document: Document) -> list[str]:
    """Every mistake that takes more than one field to see."""
    found = [
        *_repeated_names(config),
        *_open_doors(config),
        *_taken_addresses(config),
        *_unknown_plugins(config),
        *_socket_files(config),
        *_bridge_targets(config),
        *_partial_mirrors(config),
    ]
    problems = [document.problem(path, text) for path, text in found] + _bad_files(config, document)
    if not problems:
        problems = [document.problem(path, text) for path, text in failed_tests(config)]
    return problems


def warnings(config: GatewayConfig, document: Document) -> list[str]:
    """What is allowed and still hardly meant."""
    found = [
        *_dead_routes(config),
        *_dead_rules(config),
        *_impossible(config),
        *_unused(config),
        *_odd_weights(config),
        *_denied_tests(config),
        *_nameless(config),
        *_absent_files(config),
    ]
    return [f"warning: {document.problem(path, text)}" for path, text in found]


Finding = tuple[KeyPath, str]


def _bad_files(config: GatewayConfig, document: Document) -> list[str]:
    """Files in Mosquitto's formats: one that cannot be read by its key, others line by line."""
    readers: list[tuple[KeyPath, Path, Callable[[Path], object]]] = [
        (("authenticators", index, "file"), entry.file, read_password_file)
        for index, entry in enumerate(config.authenticators)
        if isinstance(entry, PasswordFileConfig)
    ]
    if config.acl_file is not None:
        readers.insert(0, (("acl_file",), config.acl_file, read_acl_file))
    problems: list[str] = []
    for path, file, read in readers:
        if reason := unreadable(file):
            problems.append(document.problem(path, reason))
            continue
        try:
            read(file)
        except ConfigError as error:
            problems += error.problems
    return problems


def _repeated_names(config: GatewayConfig) -> Iterator[Finding]:
    blocks: dict[str, Sequence[str]] = {
        "routes": [route.name for route in config.routes],
        "throttle": [entry.name for entry in config.throttle],
        "users": [user.name for user in config.users],
    }
    for block, names in blocks.items():
        counts = Counter(names)
        for index, name in enumerate(names):
            if counts[name] > 1 and name in names[:index]:
                yield (block, index, "name"), f"'{name}' is there twice"


def _open_doors(config: GatewayConfig) -> Iterator[Finding]:
    """A bind beyond loopback needs somebody to be kept out, and a way to know who is in."""
    if has_users(config):
        return
    for name, listener in config.listeners.items():
        if listener.enabled and not is_loopback(listener.bind) and not _asks_certificates(listener):
            yield (
                ("listeners", name, "bind"),
                f"{listener.bind} is reachable from outside and there are no users: add "
                "`users:` (see `tidegate user add`) or bind to 127.0.0.1",
            )


def _taken_addresses(config: GatewayConfig) -> Iterator[Finding]:
    """Of two doors at one address only one can open."""
    taken: dict[int, list[tuple[str, str]]] = {}
    for name, listener in config.listeners.items():
        if not listener.enabled or unix_sockets.path_of(listener.bind):
            continue
        host, port = split_bind(listener.bind)
        for other, other_host in taken.get(port, ()) if port else ():
            if host == other_host or host in ANY_HOSTS or other_host in ANY_HOSTS:
                yield ("listeners", name, "bind"), f"{listener.bind} is listener {other}'s"
                break
        taken.setdefault(port, []).append((name, host))


def _unknown_plugins(config: GatewayConfig) -> Iterator[Finding]:
    for index, entry in enumerate(config.authenticators):
        name = entry if isinstance(entry, str) else entry.type
        if isinstance(entry, str | PluginConfig) and not is_plugin(name):
            text = f"no plug-in '{name}' is installed{nearest(name, BUILT_IN)}"
            yield ("authenticators", index), text


def _absent_files(config: GatewayConfig) -> Iterator[Finding]:
    """May be there where the gateway runs; here the start would end."""
    for name, listener in config.listeners.items():
        if listener.enabled and listener.tls is not None:
            for key in ("cert", "key", "client_ca", "crl"):
                file = getattr(listener.tls, key)
                if file is not None and not file.is_file():
                    yield ("listeners", name, "tls", key), f"{file} is not there"


def _socket_files(config: GatewayConfig) -> Iterator[Finding]:
    for name, listener in config.listeners.items():
        if listener.protocol != "mqtt" and unix_sockets.path_of(listener.bind):
            yield ("listeners", name, "bind"), "only MQTT listens on socket files"


def _nameless(config: GatewayConfig) -> Iterator[Finding]:
    """``anonymous: true`` is meant for a listener whose ACL says what the nameless may."""
    if config.acl is not None or config.acl_file is not None:
        return
    for name, listener in config.listeners.items():
        of_all, own = config.mqtt.model_extra or {}, listener.model_extra or {}
        is_asked = listener.protocol == "mqtt" and listener.enabled
        if is_asked and {**of_all, **own}.get("anonymous") is True:
            yield (
                ("listeners", name, "bind"),
                "lets everybody in without a name, and no `acl:` says what they may",
            )


def has_users(config: GatewayConfig) -> bool:
    """Whether anybody can be told from anybody else; then anonymous access is off everywhere."""
    return bool(config.users or config.authenticators)


def _asks_certificates(listener: ListenerConfig) -> bool:
    return (
        listener.tls is not None
        and listener.tls.client_ca is not None
        and listener.protocol != ADMIN_PROTOCOL
    )


def _bridge_targets(config: GatewayConfig) -> Iterator[Finding]:
    """Bridge targets take mirrors and targets only; the directory lives on a store."""
    name = config.directory.cluster
    if name and config.clusters[name].type != "rocketmq":
        yield ("directory", "cluster"), f"'{name}' is a bridge target, not a store"
    if all(cluster.type != "rocketmq" for cluster in config.clusters.values()):
        yield ("clusters",), "at least one cluster of type rocketmq is wanted"


# ── routing tests ───────────────────────────────────────────────────────────────────────


def failed_tests(config: GatewayConfig) -> Iterator[Finding]:
    """Run ``tests:`` against the rules."""
    from gateway.policy import Policy

    if not config.tests:
        return
    policy = Policy.from_config(config)
    for index, test in enumerate(config.tests):
        for field, text in _run_test(policy, test):
            yield ("tests", index, "expect", field), text


def facts_of_test(test: RuleTestConfig) -> Facts:
    send = test.send
    return Facts(
        protocol=send.protocol,
        listener=send.listener or send.protocol,
        tenant=send.tenant,
        identity=Identity(
            name=send.identity, roles=send.roles, is_anonymous=send.identity == "anonymous"
        ),
        client_id=send.client_id or send.identity,
        client_ip=send.client_ip,
        operation=send.operation,
        subject=send.topic,
        topic=send.topic if send.protocol in ("grpc", "remoting") else "",
        group=send.group,
        properties=send.header,
        wall_ms=int(send.at.timestamp() * 1000) if send.at is not None else 0,
        certificate_name=send.certificate_name,
        qos=send.qos,
        retain=send.retain,
    )


def _run_test(policy: "Policy", test: RuleTestConfig) -> Iterator[tuple[str, str]]:
    facts, expect = facts_of_test(test), test.expect
    is_allowed = policy.acl.judge(facts).is_allowed
    if expect.denied is not None and is_allowed:
        yield "denied", "the request is allowed"
    if expect.denied is not None and not is_allowed and expect.denied not in NO_ACL_RULE:
        rule = policy.acl.judge(facts).rule
        if rule < 0:
            yield "denied", f"the refusal says '{NO_ACL_RULE}'"
    if expect.allowed is not None and expect.allowed != is_allowed:
        yield "allowed", "the request is allowed" if is_allowed else "the request is denied"
    if not _expects_route(expect):
        return
    decision = policy.routes.decide(facts)
    if decision is None:
        yield _expects_route(expect), "no route matches"
        return
    target = decision.choose(decision.targets[0].key or facts.identity.name)
    actual = {
        "route": decision.route,
        "cluster": target.cluster,
        "topic": target.topic,
        "key": target.key,
        "tag": target.tag,
    }
    for field, value in actual.items():
        wanted = getattr(expect, field)
        if wanted is not None and wanted != value:
            yield field, f"'{wanted}' is expected, the rules give '{value}'"


def _denied_tests(config: GatewayConfig) -> Iterator[Finding]:
    """The routes may be right; in operation the request does not get as far as that."""
    from gateway.policy import Policy

    if not config.tests or config.acl is None:
        return
    policy = Policy.from_config(config)
    for index, test in enumerate(config.tests):
        expect = test.expect
        if expect.denied is None and expect.allowed is None and _expects_route(expect):
            judgement = policy.acl.judge(facts_of_test(test))
            if not judgement.is_allowed:
                rule = f"acl[{judgement.rule}]" if judgement.rule >= 0 else NO_ACL_RULE
                text = f"the acl denies this request before any route ({rule})"
                yield ("tests", index, "send"), text


def _expects_route(expect: RuleExpectConfig) -> str:
    for field in ("route", "cluster", "topic", "key", "tag"):
        if getattr(expect, field) is not None:
            return field
    return ""


# ── warnings ────────────────────────────────────────────────────────────────────────────


def _dead_routes(config: GatewayConfig) -> Iterator[Finding]:
    for index, route in enumerate(config.routes):
        for earlier in config.routes[:index]:
            if _shadows(earlier.when, route.when):
                text = f"route '{route.name}' is never reached: '{earlier.name}' takes all of it"
                yield ("routes", index), text
                break


def _dead_rules(config: GatewayConfig) -> Iterator[Finding]:
    """ACL rules behind one that decides all of their requests."""
    rules = config.acl or ()
    for index, rule in enumerate(rules):
        operations = set(rule.allow or rule.deny)
        for number, earlier in enumerate(rules[:index]):
            told = set(earlier.allow or earlier.deny)
            if (operations <= told or "all" in told) and _shadows(earlier, rule):
                yield ("acl", index), f"this rule is never reached: acl[{number}] decides all of it"
                break


def _impossible(config: GatewayConfig) -> Iterator[Finding]:
    """Conditions that nothing can meet."""
    blocks: list[tuple[str, Sequence[WhenConfig]]] = [
        ("routes", [route.when for route in config.routes]),
        ("throttle", [entry.when for entry in config.throttle]),
        ("acl", config.acl or ()),
    ]
    for block, conditions in blocks:
        for index, when in enumerate(conditions):
            for reason in _contradictions(config, block, when):
                yield (block, index), f"this rule never matches: {reason}"


def _contradictions(config: GatewayConfig, block: str, when: WhenConfig) -> Iterator[str]:
    named = [config.listeners[name] for name in when.listener if name in config.listeners]
    if when.protocol and named and len(named) == len(when.listener):
        spoken = {listener.protocol for listener in named}
        if spoken.isdisjoint(when.protocol):
            yield f"its listeners speak {', '.join(sorted(spoken))}"
    if block == "acl" and (when.header or when.expression):
        yield "an ACL judges requests, not messages: there is no header and no expression"
    if block != "acl" and when.operation and not {"publish", "all"}.intersection(when.operation):
        yield f"only publishes are asked about here, not {', '.join(when.operation)}"


def _shadows(earlier: WhenConfig, later: WhenConfig) -> bool:
    """Whether everything that *later* matches is matched by *earlier*."""
    for field in WhenConfig.model_fields:
        wide, narrow = getattr(earlier, field), getattr(later, field)
        if not wide:
            continue
        if not narrow:
            return False
        if field == "topic":
            if not all(
                any(pattern == item or _covers(pattern, item) for pattern in wide)
                for item in narrow
            ):
                return False
        elif field == "header":
            if not wide.items() <= narrow.items():
                return False
        elif not set(narrow) <= set(wide):
            return False
    return True


def _covers(pattern: str, item: str) -> bool:
    return "*" not in pattern + item and "{" not in pattern + item and covers(pattern, item)


def _unused(config: GatewayConfig) -> Iterator[Finding]:
    used = {config.directory.cluster}
    for route in config.routes:
        used.update(target.cluster for target in route.to)
        used.update(mirror.cluster for mirror in route.mirror)
        used.update(route.failover)
    for name in config.clusters:
        if name not in used:
            yield ("clusters", name), f"cluster '{name}' is in no route"
    if has_users(config) and config.acl is None:
        yield ("users",), "there is no acl: every user may do everything"


def _partial_mirrors(config: GatewayConfig) -> Iterator[Finding]:
    """A bridge takes all that is mirrored to it: its copy is the message itself."""
    for index, route in enumerate(config.routes):
        for number, mirror in enumerate(route.mirror):
            if config.clusters[mirror.cluster].type == "mqtt" and mirror.percent < 100:
                path = ("routes", index, "mirror", number, "percent")
                yield path, f"'{mirror.cluster}' is a bridge, which takes 100 percent"


def _odd_weights(config: GatewayConfig) -> Iterator[Finding]:
    for index, route in enumerate(config.routes):
        clusters = {target.cluster for target in route.to}
        for number, mirror in enumerate(route.mirror):
            if mirror.cluster in clusters and not mirror.topic:
                yield ("routes", index, "mirror", number), "mirrors to a cluster it is sent to"
        total = sum(target.weight for target in route.to)
        if len(route.to) > 1 and total != 100 and any(t.weight != 1 for t in route.to):
            yield ("routes", index, "to"), f"weights sum to {total}, not 100: they are shares"
