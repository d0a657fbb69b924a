"""Go's templates as far as people write them for ``get -o go-template`` (cli §17.2, §19); the rest is refused."""

from __future__ import annotations

from typing import Any

import pytest

from calico_ipam.ctl.gotemplate import join_and_truncate, render
from calico_ipam.errors import InvalidInput

RESULTS = [{"metadata": {"name": "n"}, "spec": {"a": 5, "b": [1, 2], "s": "t", "m": {"k": "v"}}}]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{range .}}{{.Name}}={{.Spec.A}}{{end}}", "n=5"),
        ("{{range .}}{{if eq (len .Spec.B) 2}}two{{else}}other{{end}}{{end}}", "two"),
        ("{{range .}}{{if eq .Spec.A 4}}4{{else if eq .Spec.A 5}}five{{else}}none{{end}}!{{end}}", "five!"),
        ("{{range .}}{{if eq .Spec.A 4}}4{{else if eq .Spec.A 6}}6{{else}}none{{end}}!{{end}}", "none!"),
        ("{{range .}}{{if and (eq .Spec.A 5) (gt (len .Spec.B) 2)}}y{{else}}n{{end}}{{end}}", "n"),
        ("{{range .}}{{if or (eq .Spec.A 4) (le .Spec.A 5)}}y{{end}}{{end}}", "y"),
        (
            '{{range .}}{{join .Spec.S ","}} {{join .Spec.A ","}} {{join .Spec.B "|"}} {{join .Spec.M ","}}{{end}}',
            "t 5 1|2 k=v",
        ),
        ("{{range .}}{{(index .Spec.B 1)}} {{.Spec.B | len}}{{end}}", "2 2"),
    ],
)
def test_what_is_understood(template: str, text: str) -> None:
    assert render(template, RESULTS) == text


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{range", "template: get:1: unclosed action"),
        ("{{range .}}x", "template: get:1: unexpected EOF"),
        ("{{if .}}a{{else if .}}b", "template: get:1: unexpected EOF"),
        ("{{(len .}}", "template: get:1: unclosed left paren"),
        ("{{len .) junk}}", "template: get:1: unexpected right paren"),
        ("x{{end}}", "template: get:1: unexpected {{end}}"),
        ("{{foo}}", 'template: get:1: function "foo" not defined'),
        ("{{range $i, $e := .}}{{$e}}{{end}}", "variables such as in {{$i, $e := .}} are not supported"),
        ("{{len 5}}", "has no len()"),
        ("{{range .}}{{index .Spec.B 7}}{{end}}", "out of range"),
    ],
)
def test_what_is_refused(template: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        render(template, RESULTS)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("items", "longest", "text"),
    [
        ({"a": "b", "go": "gopher", "b": "c"}, 0, "a=b,b=c,go=gopher"),
        ([12345, 67890], 6, "123..."),
        ([123456], 6, "123456"),
        ({123: 4567}, 3, "..."),
        ("text", 0, "text"),
        (None, 5, ""),
    ],
)
def test_joined_texts(items: Any, longest: int, text: str) -> None:
    assert join_and_truncate(items, ",", longest) == text
