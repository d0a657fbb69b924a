"""The selector language (ipam-library §21, §24.12); the recorded vectors hold more cases."""

from __future__ import annotations

import pytest

from calico_ipam.errors import InvalidInput
from calico_ipam.model.selector import parse_selector

MATCHES = [
    ('a == "b"', [{"a": "b"}, {"a": "b", "c": "d"}], [{}, {"a": "c"}, {"c": "d"}]),
    ('a == "b" && c == "d"', [{"a": "b", "c": "d"}], [{"a": "b"}, {"c": "d"}, {"a": "b", "c": "x"}, {}]),
    ('a == "b" || c == "d"', [{"a": "b"}, {"c": "d"}, {"a": "b", "c": "d"}], [{}, {"a": "e", "c": "e"}]),
    ('a in {"\'", \'"\', "c"}', [{"a": "c"}, {"a": '"'}, {"a": "'"}], [{}, {"a": "e"}]),
    ('a not in {"\'", \'"\', "c"}', [{}, {"a": "e"}], [{"a": "c"}, {"a": '"'}, {"a": "'"}]),
    ('a != "a"', [{}, {"a": "b"}], [{"a": "a"}]),
    ('a contains "a"', [{"a": "a"}, {"a": "bab"}, {"a": "aaa"}], [{}, {"a": "b"}, {"b": "aaa"}]),
    ('a starts with "a"', [{"a": "a"}, {"a": "abb"}], [{}, {"a": "b"}, {"a": "baa"}]),
    ('a ends with "a"', [{"a": "a"}, {"a": "bba"}], [{}, {"a": "b"}, {"a": "aab"}]),
    ('!a in {"a"}', [{"a": "b"}, {}], [{"a": "a"}]),
    ("", [{}, {"a": "b"}], []),
    (" \t", [{}, {"a": "b"}], []),
    (" global()", [{}, {"a": "b"}], []),
    ("!!has(b)", [{"b": ""}], [{"a": "b"}]),
    ("!! ! has(a)", [{}], [{"a": "b"}]),
    ("!(!has(a) || has(b))", [{"a": "a"}], [{}, {"a": "a", "b": "b"}]),
    ("a in {}", [], [{}, {"a": ""}]),
    ("a not in {}", [{}, {"a": ""}], []),
    ('a contains ""', [{"a": ""}, {"a": "x"}], [{}]),
    # && binds tighter than ||, on both sides
    ("has(a) || has(b) && has(c)", [{"a": ""}, {"b": "", "c": ""}], [{"b": ""}, {"c": ""}]),
    ("has(a) && has(b) || has(c)", [{"c": ""}, {"a": "", "b": ""}], [{"a": ""}, {"b": ""}]),
    ("has(a) && (has(b) || has(c))", [{"a": "", "b": ""}, {"a": "", "c": ""}], [{"a": ""}, {"b": "", "c": ""}]),
    ('a notin{"bar"}&&!has(foo)||b in{"c"}', [{}, {"foo": "", "b": "c"}], [{"a": "bar"}, {"foo": ""}]),
    ("has(calico/k8s_NS-.1/role)", [{"calico/k8s_NS-.1/role": ""}], [{}]),
]


@pytest.mark.parametrize(("text", "selected", "left"), MATCHES, ids=[m[0] or "empty" for m in MATCHES])
def test_matches(text: str, selected: list[dict[str, str]], left: list[dict[str, str]]) -> None:
    selector = parse_selector(text)
    assert [labels for labels in selected if not selector.matches(labels)] == []
    assert [labels for labels in left if selector.matches(labels)] == []


REFUSED = {
    "b == b": "expected string",
    "b contains b": "expected string",
    "'b1' == b": "unexpected token: TokStringLiteral(b1)",
    "b": "unexpected end of string looking for op",
    "a ": "unexpected end of string looking for op",
    "a b": 'expected operator after label "a"',
    'label starts foo "v"': 'expected operator after label "label"',
    'label inf "v"': 'expected operator after label "label"',
    "a starts with b": 'expected operator after label "a"',
    "a not in  b": 'expected operator after label "a"',
    'label ends withs "v"': 'expected operator after label "label"',
    'a "b"': "expected == or != not: TokStringLiteral(b)",
    'label = "v"': "expected ==",
    'foo == "bar" &': "expected &&",
    'foo == "bar" |': "expected ||",
    "foo != ||": "expected string",
    'foo in {"", ||': "expected }",
    'foo in ""': "expected set literal",
    'a notin"bar"': "expected set literal",
    '"FOO': "unterminated string",
    "\"FOO'": "unterminated string",
    "!": "unexpected token: TokEOF()",
    "(": "unexpected token: TokEOF()",
    ")": "unexpected token: TokRParen()",
    "()": "unexpected token: TokRParen()",
    '(a == "foo"': "expected )",
    "(a)": "expected == or != not: TokRParen()",
    "%": "expected identifier",
    'a == "b" && %': "expected identifier",
    'a ==\n"b"': "expected identifier",
    "has(foo) &&": "unexpected token: TokEOF()",
    "has()": "expected identifier",
    "has(foo": "no closing ')' after has(",
    "all(": "no closing ')' after all(",
    "global(": "no closing ')' after global(",
    "has(a) has(b)": "unexpected content at end of selector [TokHas(b) TokEOF()]",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_selector(text)
    assert str(caught.value) == REFUSED[text]
    assert caught.value.subject == text


def test_label_of_512_characters_is_the_longest() -> None:
    label = "k" * 512
    assert parse_selector(f"has({label})").matches({label: ""})
    assert parse_selector(f'{label} == "v"').matches({label: "v"})
    for text in (f"has({label}k)", f'{label}k == "v"'):
        with pytest.raises(InvalidInput, match="label too long"):
            parse_selector(text)


CANONICAL = {
    "": "all()",
    " (all() )": "all()",
    "a startswith 'x'": 'a starts with "x"',
    "! (has( b)||! has(a ))": "!(has(b) || !has(a))",
    'a in {"z","z","x"}': 'a in {"x", "z"}',
    "a == '\"'": "a == '\"'",
    "((has(a)&&has(b))||has(c))": "((has(a) && has(b)) || has(c))",
    "has(a)||has(b)&&has(c)": "(has(a) || (has(b) && has(c)))",
    "has(a)||(has(b)||has(c))": "(has(a) || (has(b) || has(c)))",
    "!!(has(a))": "has(a)",
}


@pytest.mark.parametrize("text", CANONICAL)
def test_canonical_text(text: str) -> None:
    assert parse_selector(text).canonical == CANONICAL[text] == str(parse_selector(text))


def test_equal_meaning_written_differently_is_one_selector() -> None:
    assert parse_selector("a=='b'") == parse_selector(' a  == "b"')
    assert parse_selector("has(a)") != parse_selector("has(b)")


def test_unique_id() -> None:
    assert parse_selector("all()").unique_id == "s:5y5I3VdRZfDU01O--xXAPx2yxCQQqMf0M6IWug"


DEPTH = 20_000  # Python gives up at 1,000


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("(" * DEPTH + "has(a)" + ")" * DEPTH, "has(a)"),
        ("!" * DEPTH + "has(a)", "has(a)"),
        (
            "!(has(a) && " * DEPTH + "has(a)" + ")" * DEPTH,
            "!(has(a) && " * DEPTH + "has(a)" + ")" * DEPTH,
        ),
    ],
    ids=["parentheses", "negations", "both"],
)
def test_depth_is_no_limit(text: str, canonical: str) -> None:
    selector = parse_selector(text)
    assert selector.canonical == canonical
    assert selector.matches({"a": ""})


@pytest.mark.parametrize("text", ["(" * DEPTH, "a == " * DEPTH, 'a == "b" ' * DEPTH], ids=["open", "cut", "leftover"])
def test_a_long_refusal_is_still_one_short_sentence(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_selector(text)
    assert len(str(caught.value)) < 700
