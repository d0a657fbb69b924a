"""Selectors: what is written back means the same, and nothing but a clear refusal comes of garbage."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from calico_ipam.errors import InvalidInput
from calico_ipam.model.selector import parse_selector

LABELS = st.sampled_from(["a", "b", "c", "has", "all", "in", "not", "kubernetes.io/x", "-", "A_1"])
VALUES = st.one_of(
    st.sampled_from(["", "a", "b", "ab", "ba", "'", " "]),
    st.text(max_size=4).filter(lambda t: not ('"' in t and "'" in t)),
)


def quoted(value: str) -> str:
    return f"'{value}'" if '"' in value else f'"{value}"'


TESTS = st.one_of(
    st.sampled_from(["all()", "global( )"]),
    st.builds("has( {})".format, LABELS),
    st.builds(
        "{} {} {}".format,
        LABELS,
        st.sampled_from(["==", "!=", "contains", "starts with", "endswith", "ends \t with"]),
        VALUES.map(quoted),
    ),
    st.builds(
        "{} {}{{{}}}".format,
        LABELS,
        st.sampled_from(["in", "not in ", "notin"]),
        st.lists(VALUES.map(quoted), max_size=3).map(",".join),
    ),
)
SELECTORS = st.recursive(
    TESTS,
    lambda inner: st.one_of(
        st.builds("{} && {}".format, inner, inner),
        st.builds("{}||{}".format, inner, inner),
        st.builds("({})".format, inner),
        st.builds("!({} )".format, inner),
        st.builds("! !{}".format, TESTS),
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(LABELS, VALUES, max_size=4)


@given(SELECTORS, st.lists(OBJECTS, min_size=1, max_size=8))
def test_the_canonical_text_means_the_same(text: str, objects: list[dict[str, str]]) -> None:
    selector = parse_selector(text)
    again = parse_selector(selector.canonical)
    assert [again.matches(o) for o in objects] == [selector.matches(o) for o in objects]
    settled = parse_selector(again.canonical)
    assert (settled.canonical, settled.unique_id) == (again.canonical, again.unique_id)


@given(SELECTORS, SELECTORS, OBJECTS)
def test_operators_are_those_of_logic(one: str, other: str, labels: dict[str, str]) -> None:
    left, right = parse_selector(one).matches(labels), parse_selector(other).matches(labels)
    assert parse_selector(f"({one}) && ({other})").matches(labels) is (left and right)
    assert parse_selector(f"({one}) || ({other})").matches(labels) is (left or right)
    assert parse_selector(f"!({one})").matches(labels) is (not left)
    # an operator between the two binds no tighter than what they hold
    assert parse_selector(f"{one} || {other}").matches(labels) is (left or right)


SYMBOLS = ["has(", "all(", "global(", ")", "(", "{", "}", ",", "==", "=", "!=", "!", "&&", "&", "||", "|", '"', "'"]
WORDS = ["in", "not", "contains", "starts", "with", "ends", "a", "b", '"x"', " ", "\t", "\n", "%", "\x00", "ä"]
PIECES = st.lists(
    st.one_of(
        st.sampled_from([*SYMBOLS, *WORDS]),
        st.text(string.printable, max_size=3),
    ),
    max_size=20,
).map("".join)


@given(
    st.one_of(PIECES, st.text(max_size=40), SELECTORS.flatmap(lambda s: st.integers(0, len(s)).map(lambda n: s[:n])))
)
def test_garbage_is_refused_and_nothing_else_happens(text: str) -> None:
    try:
        selector = parse_selector(text)
    except InvalidInput as error:
        assert str(error)
    else:
        assert selector.matches({}) in (True, False)
        parse_selector(selector.canonical)
