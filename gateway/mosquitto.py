"""
Mosquitto's own files, taken as they are: the ACL file and the password file.

Sources: mosquitto.conf(5), mosquitto_passwd(1) and the behaviour of Mosquitto 2.0: denials of a
user come before what grants, then the patterns for everybody, again denials first; the end denies.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gateway.rules import Facts, covers, overlaps
from protocols import subjects
from protocols.errors import ConfigError

READ, WRITE, DENY = 1, 2, 0
ACCESS: Final = {"read": READ, "write": WRITE, "readwrite": READ | WRITE, "deny": DENY}
ITERATIONS_MAX: Final = 10_000_000


class Entry(NamedTuple):
    """One ``topic`` or ``pattern`` line."""

    access: int
    topic: str
    line: int


class AclFile:
    """What the file grants; immutable."""

    def __init__(
        self,
        users: Mapping[str, Sequence[Entry]],
        patterns: Sequence[Entry],
        path: str,
    ) -> None:
        self.path = path
        self._users = {name: _denials_first(entries) for name, entries in users.items()}
        self._patterns = _denials_first(patterns)

    def judge(self, facts: Facts) -> tuple[bool, int]:
        """(whether it is allowed, the line that says so; 0: the end of the file)."""
        is_nameless = facts.identity.is_anonymous and facts.identity.name == "anonymous"
        user = "" if is_nameless else facts.identity.name
        for entry in self._users.get(user, ()):
            if (verdict := _judge(entry.access, entry.topic, facts)) is not None:
                return verdict, entry.line
        values = {"c": facts.client_id, "u": user, "n": facts.certificate_name}
        if any(sign in "".join(values.values()) for sign in "+#"):
            return False, 0  # would turn a pattern into a wildcard
        for entry in self._patterns:
            topic = _filled(entry.topic, values)
            if topic and (verdict := _judge(entry.access, topic, facts)) is not None:
                return verdict, entry.line
        return False, 0


PLACEHOLDERS: Final = {
    "%c": "c",
    "%u": "u",
    "${clientid}": "c",
    "${username}": "u",
    "${cert_common_name}": "n",
}
"""Those of ``acl`` too: with them a file may say all that a rule can (Mosquitto has two)."""

_PLACEHOLDER: Final = re.compile("|".join(map(re.escape, PLACEHOLDERS)))


def _filled(pattern: str, values: Mapping[str, str]) -> str:
    """*pattern* with its placeholders filled in; empty: the client has no such name."""
    used = {PLACEHOLDERS[found] for found in _PLACEHOLDER.findall(pattern)}
    if not all(values[name] for name in used):
        return ""
    return _PLACEHOLDER.sub(lambda found: values[PLACEHOLDERS[found[0]]], pattern)


def _judge(access: int, topic: str, facts: Facts) -> bool | None:
    """
    What one line says; None: nothing.

    A filter is granted as soon as some topic under it may be read, and refused when all of them
    are denied; what of it is delivered is asked again for each topic.
    """
    subject = facts.subject
    if not subject or (subject[0] == "$") is not (topic[0] == "$"):
        return None
    if facts.operation in ("subscribe", "consume"):
        if access == DENY:
            return False if covers(topic, subject) else None
        return True if access & READ and overlaps(topic, subject) else None
    if facts.operation not in ("publish", "receive") or not subjects.matches(topic, subject):
        return None
    if access == DENY:
        return False
    return True if access & (WRITE if facts.operation == "publish" else READ) else None


def _denials_first(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.access != DENY))


def read_acl_file(path: Path) -> AclFile:
    """Raises ConfigError with every line that is no rule."""
    users: dict[str, list[Entry]] = {"": []}
    patterns: list[Entry] = []
    problems: list[str] = []
    user = ""
    for number, line in _lines(path):
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        if word == "user" and rest:
            user = rest
            users.setdefault(user, [])
            continue
        entry = _entry(rest, number)
        if word not in ("topic", "pattern"):
            problems.append(f"{path}:{number} '{word}' is none of user, topic, pattern")
        elif isinstance(entry, str):
            problems.append(f"{path}:{number} {entry}")
        elif word == "topic":
            users[user].append(entry)
        else:
            patterns.append(entry)
    if problems:
        raise ConfigError(problems)
    return AclFile(users, patterns, str(path))


def _entry(rest: str, number: int) -> Entry | str:
    """``[access] topic``; what is wrong with it as text."""
    word, _, topic = rest.partition(" ")
    if not topic.strip():
        word, topic = "readwrite", rest
    topic = topic.strip()
    if word not in ACCESS:
        return f"'{word}' is none of {', '.join(ACCESS)}"
    if not topic or not subjects.is_valid_filter(topic):
        return f"'{topic}' is no topic filter"
    return Entry(ACCESS[word], topic, number)


# ── passwords ───────────────────────────────────────────────────────────────────────────


def read_password_file(path: Path) -> dict[str, str]:
    """User to hash. Raises ConfigError with every line that has none we know."""
    found: dict[str, str] = {}
    problems: list[str] = []
    for number, line in _lines(path):
        name, _, password_hash = line.partition(":")
        if not name or not is_known_hash(password_hash):
            text = "wants user:hash with a hash of mosquitto_passwd ($6$, $7$) or argon2"
            problems.append(f"{path}:{number} {text}")
        else:
            found[name] = password_hash
    if problems:
        raise ConfigError(problems)
    return found


def is_known_hash(text: str) -> bool:
    return text.startswith("$argon2") or _parts(text) is not None


def _parts(password_hash: str) -> tuple[int, bytes, bytes] | None:
    """(iterations, salt, digest); 0 iterations: one SHA-512 over password and salt."""
    fields = password_hash.split("$")[1:]
    try:
        if fields[0] == "6" and len(fields) == 3:
            iterations, salt, digest = 0, *fields[1:]
        elif fields[0] == "7" and len(fields) == 4:
            iterations, salt, digest = int(fields[1]), *fields[2:]
        else:
            return None
        decoded = base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
    except (IndexError, ValueError, binascii.Error):
        return None
    if len(decoded[1]) != 64 or not 0 <= iterations <= ITERATIONS_MAX:
        return None
    return iterations, *decoded


def verify_password(password_hash: str, password: bytes) -> bool:
    """``$6$`` (salted SHA-512) or ``$7$`` (PBKDF2-HMAC-SHA512)."""
    parts = _parts(password_hash)
    if parts is None:
        return False
    iterations, salt, expected = parts
    if iterations:
        digest = hashlib.pbkdf2_hmac("sha512", password, salt, iterations)
    else:
        digest = hashlib.sha512(password + salt).digest()
    return hmac.compare_digest(digest, expected)


def unreadable(path: Path) -> str:
    """Why the file cannot be opened; empty: it can."""
    try:
        path.open("rb").close()
    except (OSError, ValueError) as error:  # ValueError: a byte 0 in its name
        return _why_unreadable(path, error)
    return ""


def _why_unreadable(path: Path, error: OSError | ValueError) -> str:
    return f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"


def _lines(path: Path) -> list[tuple[int, str]]:
    """Numbered lines that say something. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: is not UTF-8 text"]) from error
    except (OSError, ValueError) as error:
        raise ConfigError([_why_unreadable(path, error)]) from error
    numbered = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in numbered if line and not line.startswith("#")]
