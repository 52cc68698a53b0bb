"""Commands about files: config show and diff, user add, acl test."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import program
from gateway.identity import verify_password


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(
        "users: [{name: ada, secret: s3cret, roles: [admin]}]\n"
        'acl:\n  - {deny: [publish], topic: "x/#"}\n  - {allow: [all], identity: "role:admin"}\n'
    )
    (tmp_path / "b.yaml").write_text("zone: eu\n")
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(program, arguments)


def test_show_hides_secrets(folder: Path) -> None:
    """As written and as understood; what is secret is not shown."""
    shown = run("config", "show", "a.yaml")
    assert "s3cret" not in shown.output
    assert "(hidden)" in shown.output
    effective = json.loads(run("config", "show", "--effective", "--json", "b.yaml").output)
    assert effective["zone"] == "eu"
    assert effective["listeners"]["mqtt"]["bind"] == "127.0.0.1:1883"


def test_diff_compares_what_is_understood(folder: Path) -> None:
    """Exit 1 and a unified diff; comments and order of keys are no difference."""
    (folder / "c.yaml").write_text("# a comment\nzone: eu\nversion: 1\n")
    assert run("config", "diff", "b.yaml", "c.yaml").exit_code == 0
    different = run("config", "diff", "a.yaml", "b.yaml")
    assert different.exit_code == 1
    assert "+zone: eu" in different.output


def test_user_add_prints_a_line_that_works(folder: Path) -> None:
    """The hash is of the password given; the file is left to its owner."""
    made = json.loads(run("user", "add", "bob", "--password", "pw", "--role", "r", "--json").output)
    assert verify_password(made["password_hash"], b"pw")
    line = run("user", "add", "bob", "--password", "pw").output
    (folder / "d.yaml").write_text(f"users:\n{line}")
    assert run("config", "validate", "d.yaml").exit_code == 0


def test_acl_test_says_which_rule(folder: Path) -> None:
    """Allowed is exit 0, denied 1."""
    allowed = run("acl", "test", "-c", "a.yaml", "ada", "publish", "y")
    assert (allowed.exit_code, allowed.output) == (0, "allowed by acl[1]\n")
    denied = run("acl", "test", "-c", "a.yaml", "ada", "publish", "x/1")
    assert (denied.exit_code, denied.output) == (1, "denied by acl[0]\n")
    nobody = run("acl", "test", "-c", "a.yaml", "bob", "consume", "y", "--json")
    assert json.loads(nobody.output) == {"is_allowed": False, "rule": "the end of the list"}


def test_usage_mistakes_are_exit_2(folder: Path) -> None:
    """As click has it."""
    assert run("config", "validate").exit_code == 2
    assert run("explain").exit_code == 2
    assert run("nonsense").exit_code == 2
