"""Positions, interpolation, includes and settings of configuration files."""

from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import Field

from protocols.daemon import config, documents
from protocols.daemon.documents import Document, load
from protocols.daemon.settings import apply_settings
from protocols.errors import ConfigError


class Part(config.ConfigModel):
    bind: str = "x"
    port: int = Field(default=1, ge=0)


class Whole(config.ConfigModel):
    zone: str = "a"
    parts: dict[str, Part] = {}
    mixed: Part | str | None = None


def read(text: str, **environ: str) -> Document:
    return load(Path("gw.yaml"), environ=environ, text=text)


def problems(text: str, **environ: str) -> list[str]:
    def attempt() -> None:
        document = read(text, **environ)
        config.build(document, Whole, document.value)

    with pytest.raises(ConfigError) as caught:
        attempt()
    return caught.value.problems


def test_every_mistake_is_reported_with_its_position() -> None:
    """Three mistakes in one file are three lines, each with line, column and key path."""
    text = "zone: 5\nparts:\n  a: {bind: 1:2, prt: 5}\n  b: {port: -1}\n"
    assert problems(text) == [
        "gw.yaml:1:7 zone: should be text: quote it",
        "gw.yaml:3:18 parts.a.prt: unknown key (did you mean 'port'?)",
        "gw.yaml:4:13 parts.b.port: '-1' should be greater than or equal to 0",
    ]


def test_union_members_do_not_show_in_paths() -> None:
    """A mistake inside one member of a union is named by what is written, nothing else."""
    assert all(" mixed" in line and "Part" not in line for line in problems("mixed: {prt: 1}\n"))


@pytest.mark.parametrize("word", ["on", "off", "yes", "No"])
def test_bare_words_that_yaml_versions_read_differently_are_refused(word: str) -> None:
    """``on`` is true for some tools and text for others."""
    assert "means different things" in problems(f"zone: {word}\n")[0]
    assert read(f"zone: '{word}'\n").value == {"zone": word}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12:30", "12:30"),
        ("010", "010"),
        ("10", 10),
        ("0x1f", 31),
        ("1.5", 1.5),
        ("true", True),
        ("~", None),
        ("2026-01-01", "2026-01-01"),
        ("'10'", "10"),
    ],
)
def test_scalars_follow_the_core_schema(text: str, value: object) -> None:
    """No surprises of YAML 1.1: no base 60, no octal, no dates."""
    assert read(f"zone: {text}\n").value["zone"] == value


def test_variables_are_filled_in() -> None:
    """Environment, default, escape; a quoted one stays text, a plain one is what it looks like."""
    text = "a: ${A}\nb: ${B:-7}\nc: '${B:-7}'\nd: $${A}\ne: $argon2id$v\n"
    assert read(text, A="x").value == {"a": "x", "b": 7, "c": "7", "d": "${A}", "e": "$argon2id$v"}


def test_a_missing_variable_is_a_mistake() -> None:
    """An unset variable without a default is named."""
    assert "environment variable ZONE is not set" in problems("zone: ${ZONE}\n")[0]


def test_a_repeated_key_is_a_mistake() -> None:
    """The second of two equal keys would silently win otherwise."""
    assert problems("parts: {a: {}, a: {}}\n") == ["gw.yaml:1:16 parts.a: this key is there twice"]


def test_a_syntax_error_has_a_position() -> None:
    """What the YAML scanner says, where it says it."""
    assert problems("zone: [1,\n")[0].startswith("gw.yaml:2:1 (syntax)")


def test_includes_join_maps_and_append_lists(tmp_path: Path) -> None:
    """Blocks may live in several files; positions name the right one."""
    main = tmp_path / "gateway.yaml"
    main.write_text("include: [more.yaml]\nparts: {a: {}}\nroutes: [1]\n")
    (tmp_path / "more.yaml").write_text("parts:\n  b: {port: x}\nroutes: [2, 3]\n")
    document = load(main)
    assert document.value["routes"] == [1, 2, 3]
    assert list(document.value["parts"]) == ["a", "b"]
    assert document.position(("routes", 2)).file == str(tmp_path / "more.yaml")
    assert document.position(("parts", "b", "port"))[1:] == (2, 13)


def test_a_block_given_twice_names_both_places(tmp_path: Path) -> None:
    """Two files that both set one key disagree sooner or later."""
    main = tmp_path / "gateway.yaml"
    main.write_text("include: more.yaml\nzone: a\n")
    (tmp_path / "more.yaml").write_text("zone: b\n")
    with pytest.raises(ConfigError, match=r"more.yaml:1:1 zone: .*gateway.yaml:2:7"):
        load(main)


def test_missing_and_circular_files(tmp_path: Path) -> None:
    """A file that is not there is named; a circle ends."""
    main = tmp_path / "gateway.yaml"
    main.write_text("include: [nothing.yaml]\n")
    with pytest.raises(
        ConfigError, match=r"gateway.yaml:1:11 include: there is no file nothing.yaml"
    ):
        load(main)
    main.write_text("name: a\ninclude: [gateway.yaml]\n")
    with pytest.raises(ConfigError) as caught:
        load(main)
    assert caught.value.problems == [f"{main}:2:11 include: gateway.yaml includes itself"]
    for wrong in ("3", "{a: b}", "[[a]]"):
        main.write_text(f"include: {wrong}\n")
        with pytest.raises(ConfigError, match=r"1:10 include: should be a file or a list of files"):
            load(main)
    main.write_text('include: "a\\0b"\n')
    with pytest.raises(ConfigError, match=r"there is no file a\\x00b"):
        load(main)


def test_a_problem_is_one_short_line() -> None:
    """A value that is repeated may have line ends, or be a whole file by mistake."""
    document = load(None)
    text = document.problem(("zone",), "'a\nb' " + "x" * 70_000)
    assert "'a\\nb' xxx" in text
    assert len(text) < 500


def test_a_file_stands_for_so_much_at_most() -> None:
    """Aliases of aliases, or maps without end, are refused before they take time and memory."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for last, name in pairwise("abcdefghi"):
        lines.append(f"{name}: &{name} [{', '.join([f'*{last}'] * 10)}]")
    with pytest.raises(ConfigError, match=rf"more than {documents.NODES_MAX} values"):
        read("\n".join(lines))
    for depth in (documents.NESTING_MAX + 1, 100_000):
        with pytest.raises(ConfigError, match="inside one another"):
            read("a: " + "[" * depth + "]" * depth)


def test_settings_override_the_file() -> None:
    """``--set`` creates what is not there, replaces what is, and is the position of its value."""
    document = read("parts: {a: {port: 1}}\nroutes: [{name: x}]\n")
    apply_settings(document, ["parts.a.port=-5", "parts.b-c.bind=1:0", "routes.0.name=y"])
    assert document.value["parts"] == {"a": {"port": -5}, "b-c": {"bind": "1:0"}}
    assert document.value["routes"] == [{"name": "y"}]
    with pytest.raises(
        ConfigError, match=r"^--set parts.a.port parts.a.port: '-5' should be greater"
    ):
        config.build(document, Whole, {"parts": document.value["parts"]})


def test_all_wrong_settings_are_reported() -> None:
    """A setting without a value and one with a bare ``on``."""
    with pytest.raises(ConfigError) as caught:
        apply_settings(Document(), ["zone", "a.b=on"])
    assert len(caught.value.problems) == 2


def test_unknown_blocks_are_refused() -> None:
    """Every daemon knows the whole schema's blocks."""
    with pytest.raises(ConfigError, match=r"gw.yaml:1:1 listners: .*'listeners'"):
        config.check_blocks(read("listners: {}\n"))
