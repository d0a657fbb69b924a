"""The CNI protocol: environment, order of checks, versions, and JSON as Go prints and refuses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calico_cni import gojson, protocol
from calico_cni.errors import CNIError
from calico_cni.protocol import SUPPORTED, Request
from tests.cni_bench import CNIBench, failure

WHOLE = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "abc",
    "CNI_NETNS": "/n",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/p",
}


def refusal(function: Any, *args: Any) -> dict[str, Any]:
    with pytest.raises(CNIError) as caught:
        function(*args)
    return caught.value.document()


@pytest.mark.parametrize(
    ("verb", "missing"),
    [
        ("ADD", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
        ("DEL", "CNI_CONTAINERID,CNI_IFNAME,CNI_PATH"),
        ("CHECK", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
        ("GC", "CNI_PATH"),
        ("STATUS", "CNI_PATH"),
    ],
)
def test_missing_variables_are_told_together_in_order(verb: str, missing: str) -> None:
    expected = {"code": 4, "msg": f"required env variables [{missing}] missing"}
    assert refusal(protocol.check_environment, {"CNI_COMMAND": verb}) == expected
    empty = {**dict.fromkeys(WHOLE, ""), "CNI_COMMAND": verb}
    assert refusal(protocol.check_environment, empty) == expected, "an empty value counts as missing"


@pytest.mark.parametrize("verb", ["VERSION", "FOO", "add"])
def test_version_and_unknown_commands_need_nothing_more(verb: str) -> None:
    protocol.check_environment({"CNI_COMMAND": verb})


@pytest.mark.parametrize("container", ["-abc", ".a", "_a", "a/b", "a b", "ä", "a\n"])
def test_bad_container_ids(container: str) -> None:
    found = refusal(protocol.check_environment, {**WHOLE, "CNI_CONTAINERID": container})
    assert found == {"code": 4, "msg": "invalid characters in containerID", "details": container}


@pytest.mark.parametrize("container", ["a", "0", "A.b_c-", "a" * 300])
def test_good_container_ids(container: str) -> None:
    protocol.check_environment({**WHOLE, "CNI_CONTAINERID": container})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a" * 16, "interface name is too long"),
        ("ä" * 8, "interface name is too long"),
        (".", "interface name is . or .."),
        ("..", "interface name is . or .."),
        ("eth\udcff", "interface name is no UTF-8 text"),
        *(
            (bad, "interface name contains / or : or whitespace characters")
            for bad in ("a/b", "a:b", "a b", "a\u2003b")
        ),
    ],
)
def test_bad_interface_names(name: str, message: str) -> None:
    found = refusal(protocol.check_environment, {**WHOLE, "CNI_IFNAME": name})
    assert (found["code"], found["msg"]) == (4, message)


@pytest.mark.parametrize("name", ["a", "a" * 15, "ä" * 7, "a\x1cb", "eth0.100", "..."])
def test_good_interface_names(name: str) -> None:
    protocol.check_environment({**WHOLE, "CNI_IFNAME": name})


def test_a_broken_rule_is_told_before_what_is_missing() -> None:
    found = refusal(protocol.check_environment, {"CNI_COMMAND": "ADD", "CNI_IFNAME": "a b"})
    assert found["msg"].startswith("interface name contains")


# --- configuration and version ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stdin", "code", "message"),
    [
        (b"", 6, "error unmarshall network config: unexpected end of JSON input"),
        (b"{", 6, "error unmarshall network config: unexpected end of JSON input"),
        (b"null", 7, "missing network name"),
        (b"{}", 7, "missing network name"),
        (b'{"name":null}', 7, "missing network name"),
        (b'{"name":"a b"}', 7, "invalid characters found in network name"),
        (
            b'{"name":true}',
            6,
            "error unmarshall network config: json: cannot unmarshal bool into Go struct field .name of type string",
        ),
    ],
)
def test_bad_configurations(stdin: bytes, code: int, message: str) -> None:
    found = refusal(protocol.read_document, stdin)
    assert (found["code"], found["msg"]) == (code, message)


def test_keys_match_without_regard_to_case_and_the_last_one_counts() -> None:
    assert protocol.read_document(b'{"name":"a","NAME":"b c"}'.replace(b"b c", b"bc")) == {"name": "a", "NAME": "bc"}
    assert refusal(protocol.read_document, b'{"name":"a","Name":"b c"}')["details"] == "b c"
    assert protocol.declared_version({"CNIVersion": "1.0.0"}) == "1.0.0"


@pytest.mark.parametrize("document", [{}, {"cniVersion": ""}, {"cniVersion": None}])
def test_no_version_is_the_first(document: dict[str, Any]) -> None:
    assert protocol.declared_version(document) == "0.1.0"


@pytest.mark.parametrize("version", SUPPORTED)
def test_versions_that_are_served(version: str) -> None:
    protocol.check_version("ADD", version)
    protocol.check_version("DEL", version)


@pytest.mark.parametrize("version", ["1.0", "0.5.0", "9.9.9", "abc", "v1.0.0", "1.1.0 ", "1.2.0"])
def test_versions_that_are_not(version: str) -> None:
    found = refusal(protocol.check_version, "ADD", version)
    assert (found["code"], found["msg"]) == (1, "incompatible CNI versions")
    assert found["details"].startswith(f'config is "{version}", plugin supports ["0.1.0" "0.2.0"')
    assert found["details"].endswith('"1.0.0" "1.1.0"]')


@pytest.mark.parametrize(
    ("verb", "version", "code", "message"),
    [
        ("CHECK", "0.3.1", 1, "config version does not allow CHECK"),
        ("CHECK", "0.5.0", 1, "incompatible CNI versions"),
        ("CHECK", "1.0", 1, "incompatible CNI versions"),
        ("CHECK", "9.9.9", 1, "plugin version does not allow CHECK"),
        ("GC", "1.0.0", 1, "config version does not allow GC"),
        ("GC", "1.2.0", 1, "plugin version does not allow GC"),
        ("STATUS", "0.1.0", 1, "config version does not allow STATUS"),
        ("STATUS", "abc", 6, 'failed to convert major version part "abc": strconv.Atoi: parsing "abc": invalid syntax'),
        ("GC", "1.x.0", 6, 'failed to convert minor version part "x": strconv.Atoi: parsing "x": invalid syntax'),
    ],
)
def test_gates_stand_before_the_list(verb: str, version: str, code: int, message: str) -> None:
    found = refusal(protocol.check_version, verb, version)
    assert (found["code"], found["msg"]) == (code, message)


@pytest.mark.parametrize("version", ["9" * 5000, f"1.{'1' * 19}", "-9999999999999999999.0"])
def test_a_number_beyond_all_measure_is_no_version(version: str) -> None:
    found = refusal(protocol.check_version, "STATUS", version)
    assert found["code"] == 6 and found["msg"].endswith(": value out of range")


@pytest.mark.parametrize(
    ("verb", "version"), [("CHECK", "0.4.0"), ("CHECK", "1.1.0"), ("GC", "1.1.0"), ("STATUS", "1.1.0")]
)
def test_gates_that_open(verb: str, version: str) -> None:
    protocol.check_version(verb, version)


def test_version_is_one_line() -> None:
    text = protocol.version_answer()
    assert text.endswith("]}\n") and text.count("\n") == 1
    assert json.loads(text) == {"cniVersion": "1.1.0", "supportedVersions": list(SUPPORTED)}


def test_an_unknown_command_is_found_after_the_configuration(tmp_path: Path) -> None:
    bench = CNIBench(tmp_path).prepare()
    assert failure(bench.call("FOO")) == {"code": 4, "msg": "unknown CNI_COMMAND: FOO"}
    assert failure(bench.call("FOO", name="a b"))["code"] == 7
    assert failure(bench.call("FOO", cniVersion="9.9.9"))["code"] == 4


def test_folders_of_plugins() -> None:
    assert Request("calico", {"CNI_PATH": "/a:/b"}).path == ["/a", "/b"]
    assert Request("calico", {}).path == []


def test_a_request_shows_no_secret() -> None:
    assert "SECRET" not in repr(Request("calico", {"TOKEN": "SECRET"}, b"SECRET"))


# --- JSON ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unexpected end of JSON input"),
        ("nul", "unexpected end of JSON input"),
        ('{"a":1}{', "invalid character '{' after top-level value"),
        ("{a", "invalid character 'a' looking for beginning of object key string"),
        ('{"a" 1}', "invalid character '1' after object key"),
        ('{"a":1 "b"', "invalid character '\"' after object key:value pair"),
        ("[1 2]", "invalid character '2' after array element"),
        ("[1,]", "invalid character ']' looking for beginning of value"),
        ("'", "invalid character '\\'' looking for beginning of value"),
        ("trux", "invalid character 'x' in literal true (expecting 'e')"),
        ("01", "invalid character '1' after top-level value"),
        ("-x", "invalid character 'x' in numeric literal"),
        ("1.x", "invalid character 'x' after decimal point in numeric literal"),
        ("1ex", "invalid character 'x' in exponent of numeric literal"),
        ('"\\x"', "invalid character 'x' in string escape code"),
        ('"\\u12g4"', "invalid character 'g' in \\u hexadecimal character escape"),
        ('"a\nb"', "invalid character '\\n' in string literal"),
        ("NaN", "invalid character 'N' looking for beginning of value"),
        ("[Infinity]", "invalid character 'I' looking for beginning of value"),
        ("\x01", "invalid character '\\x01' looking for beginning of value"),
        ("ä", "invalid character 'Ã' looking for beginning of value"),
        ('{"a":1,}', "invalid character '}' looking for beginning of object key string"),
    ],
)
def test_syntax_errors_are_gos(text: str, message: str) -> None:
    with pytest.raises(gojson.GoJSONError) as caught:
        gojson.load(text.encode())
    assert str(caught.value) == message


def test_depth_and_length_are_errors_not_crashes() -> None:
    for text in (b"[" * 100_000, b"1" * 10_000, b'{"a":' * 50_000):
        with pytest.raises(gojson.GoJSONError):
            gojson.load(text)


def test_what_is_printed_is_escaped_as_go_does() -> None:
    assert gojson.dump_compact({"a": "<nil> & \u2028 ä"}) == '{"a":"\\u003cnil\\u003e \\u0026 \\u2028 ä"}'
    assert gojson.dump_indented({"a": [1], "b": {}}) == '{\n    "a": [\n        1\n    ],\n    "b": {}\n}'


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    assert gojson.load(b'"\xff"') == "\ufffd"


def test_half_a_surrogate_pair_is_replaced() -> None:
    """Public report P25's neighbour: a name that no UTF-8 text can hold crashed wherever it was written."""
    assert gojson.load(b'{"\\ud800": ["\\uDFFFx", "\\ud83d\\ude00"]}') == {"\ufffd": ["\ufffdx", "\U0001f600"]}


@pytest.mark.parametrize("text", [b"1e999", b"-1e999"])
def test_numbers_beyond_all_measure(text: bytes) -> None:
    with pytest.raises(gojson.GoJSONError, match="too long"):
        gojson.load(text)


def test_bytes_of_arguments_that_are_no_utf8_are_replaced() -> None:
    assert protocol.Request(protocol.CALICO, {"CNI_ARGS": "K8S_POD_NAME=\udcff"}).args == "K8S_POD_NAME=\ufffd"
