"""Entries of ``authenticators:``; each names its type."""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from protocols.daemon.config import ConfigModel
from protocols.daemon.units import Count, DurationMs, Texts

BUILT_IN: Final = ("passwords", "jwt", "http")

ENTRY_POINT_GROUP: Final = "gateway.authenticators"
"""Others, by name."""


class PasswordFileConfig(ConfigModel):
    """A password file of ``mosquitto_passwd``, as it is; read again by each reload."""

    type: Literal["passwords"]
    file: Path
    """Lines ``user:hash``, with ``$7$`` (PBKDF2), ``$6$`` (SHA-512) or argon2 hashes."""

    roles: Texts = ()
    """Roles of all its users."""


class JwtConfig(ConfigModel):
    """JSON Web Tokens (extra ``jwt``); one source of keys."""

    type: Literal["jwt"]
    secret: str = ""
    """Shared secret (HS256, HS384, HS512)."""

    secret_file: Path | None = None
    """File with the shared secret."""

    key_file: Path | None = None
    """Public key or certificate, PEM (RS, PS, ES, EdDSA)."""

    jwks_file: Path | None = None
    """Key set; read again by each reload."""

    jwks_url: str = Field(default="", pattern=r"^($|https?://)")
    """Key set of an identity provider; fetched at the first token, then every ``refresh``."""

    refresh: DurationMs = Field(default=300_000, ge=1000)
    """How long a fetched key set is used; an unknown key id fetches it sooner (at most once in
    10 s)."""

    timeout: DurationMs = Field(default=3000, ge=10)
    """Of one fetch; the keys known before stay in use when it fails."""

    algorithms: Texts = ()
    """Accepted algorithms; empty: HS* with a secret, else RS*, PS*, ES* and EdDSA."""

    issuer: str = ""
    """Wanted ``iss``."""

    audience: Texts = ()
    """Wanted ``aud``, one of these."""

    leeway: DurationMs = Field(default=0, ge=0)
    """Tolerated difference of clocks."""

    needs_expiry: bool = True
    """Refuse tokens without ``exp``. A connection ends when its token does."""

    read_from: Literal["password", "user"] = "password"
    """Which field of the login is the token."""

    identity_claim: str = "sub"
    """Claim that is the identity; a token without it is refused."""

    user_must_match: bool = False
    """The user name, where one is given beside the token, must be the identity."""

    roles_claim: str = "roles"
    """Claim with roles: a list, or words in one text."""

    acl_claim: str = "acl"
    """Claim with rights, judged before ``acl``: ``{pub: [..], sub: [..], all: [..]}``, or a list of
    ``{permission: allow|deny, action: publish|subscribe|all, topic: ..}``; a token that has it may
    do nothing else unless an ``acl`` allows it."""

    @model_validator(mode="after")
    def _has_keys(self) -> "JwtConfig":
        sources = (self.secret, self.secret_file, self.key_file, self.jwks_file, self.jwks_url)
        if sum(bool(source) for source in sources) != 1:
            raise ValueError("one of secret, secret_file, key_file, jwks_file, jwks_url is wanted")
        return self


class HttpAuthConfig(ConfigModel):
    """
    A web service that is asked with a POST of JSON: ``username``, ``password``, ``clientid``,
    ``peerhost``, ``cert_common_name``, ``protocol``, ``listener``.

    It answers 204 (yes), or 200 with ``{"result": "allow"}`` and, if it likes, ``username``,
    ``roles``, ``acl`` (as in a token) and ``expire_at`` (seconds since 1970). Everything else, late
    answers included, is a no. Who is let in without a name, of its own, of its certificate or of
    the answer, is ``anonymous``.
    """

    type: Literal["http"]
    url: str = Field(pattern=r"^https?://")
    headers: dict[str, str] = {}
    """Headers to send, a bearer token say."""

    timeout: DurationMs = Field(default=3000, ge=10)
    """For the whole answer."""

    cache: DurationMs = Field(default=60_000, ge=0)
    """How long a yes is believed for the same credentials; 0: never."""

    cache_denied: DurationMs = Field(default=2000, ge=0)
    """How long a no is."""

    cache_max: Count = Field(default=50_000, ge=1)
    """Answers kept; the oldest go first."""

    requests_max: Count = Field(default=64, ge=1)
    """Questions under way at once; others wait, and are refused when their time is over."""


class PluginConfig(ConfigModel):
    """A plug-in (entry-point group ``gateway.authenticators``)."""

    type: str = Field(min_length=1)
    """Its name."""

    settings: dict[str, Any] = {}
    """Handed to its ``from_config``; without that method it is made without arguments."""


def is_plugin(name: str) -> bool:
    """Whether an authenticator of this name is installed."""
    return bool([*entry_points(group=ENTRY_POINT_GROUP, name=name)])


def _kind(value: object) -> str:
    """The tag of a member; with a space, so that it is never taken for a key of the file."""
    if isinstance(value, str):
        return "by name"
    name = value.get("type") if isinstance(value, dict) else getattr(value, "type", "")
    return f"type {name}" if name in BUILT_IN else "type of a plug-in"


AuthenticatorConfig = Annotated[
    Annotated[str, Tag("by name")]
    | Annotated[PasswordFileConfig, Tag("type passwords")]
    | Annotated[JwtConfig, Tag("type jwt")]
    | Annotated[HttpAuthConfig, Tag("type http")]
    | Annotated[PluginConfig, Tag("type of a plug-in")],
    Discriminator(_kind),
]
