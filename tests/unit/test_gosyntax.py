"""What Go says of a text that is no JSON, and that it says so of the very texts that are none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calico_ipam.datastore.gojson import BadDocument, parse
from calico_ipam.datastore.gosyntax import syntax_error

SOUND = '{"a":[1,2.5,-3e7,{"b":"x\\u00e9\\n","c":null}],"d":true,"e":{},"f":[ ]}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("garbage", "invalid character 'g' looking for beginning of value"),
        ("{} x", "invalid character 'x' after top-level value"),
        ('{"a":1}}', "invalid character '}' after top-level value"),
        ('{"state":"confirmed",}', "invalid character '}' looking for beginning of object key string"),
        ("{'a':1}", "invalid character '\\'' looking for beginning of object key string"),
        ('{"a" "b"}', "invalid character '\"' after object key"),
        ('{"a":"b" "c"}', "invalid character '\"' after object key:value pair"),
        ('{"a":01}', "invalid character '1' after object key:value pair"),
        ("[1 2]", "invalid character '2' after array element"),
        ("[1,]", "invalid character ']' looking for beginning of value"),
        ("nulL", "invalid character 'L' in literal null (expecting 'l')"),
        ("-a", "invalid character 'a' in numeric literal"),
        ("1.x", "invalid character 'x' after decimal point in numeric literal"),
        ("1e+x", "invalid character 'x' in exponent of numeric literal"),
        ('"\\x"', "invalid character 'x' in string escape code"),
        ('"\\u12g4"', "invalid character 'g' in \\u hexadecimal character escape"),
        ('"a\nb"', "invalid character '\\n' in string literal"),
        ("\0", "invalid character '\\x00' looking for beginning of value"),
        ("é", "invalid character 'Ã' looking for beginning of value"),
        *(
            (text, "unexpected end of JSON input")
            for text in ("", " ", "{", '{"a":', '"a', "nul", "-", "1.", "1e", "[[")
        ),
    ],
)
def test_go_says(text: str, said: str) -> None:
    assert syntax_error(text) == said
    with pytest.raises(BadDocument) as caught:
        parse(text)
    assert str(caught.value) == said


@given(st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.sampled_from(['{}[],:"10.e-tnx \\u', ""])), max_size=3))
def test_the_same_texts_are_json(changes: list[tuple[int, str]]) -> None:
    text = list(SOUND)
    for place, piece in changes:
        text[place] = piece[place % len(piece)] if piece else ""
    changed = "".join(text)
    try:
        json.loads(changed)
        sound = True
    except ValueError:
        sound = False
    assert (syntax_error(changed) == "") == sound
