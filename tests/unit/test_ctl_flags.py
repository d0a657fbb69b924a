"""How arguments and files are taken: every spelling that calicoctl's parsers take, and their words (cli §1.2, §8.1)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from calico_ipam.ctl.delete import _delete
from calico_ipam.ctl.failures import Told
from calico_ipam.ctl.flags import whole_number
from calico_ipam.ctl.formats import as_json, as_yaml
from calico_ipam.ctl.kinds import by_name
from calico_ipam.ctl.main import cli
from calico_ipam.ctl.yaml_words import not_yaml
from calico_ipam.engine.policy import Retry, SystemClock
from calico_ipam.engine.resources import Resources
from calico_ipam.engine.world import Engine
from calico_ipam.errors import NotFound, NotSupported
from calico_ipam.model.resource import Resource
from tests.cluster import memory_folder
from tests.ctl import Ctl
from tests.memory_kube import MemoryKubeStore

POOL = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: new}\nspec: {cidr: 10.9.0.0/24}\n"


@pytest.fixture(scope="module")
def ctl() -> Iterator[Ctl]:
    """A store with a pool; no test of this file changes what another one sees."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        made = Ctl(Path(folder) / "ipam.db")
        made.ok("init", "--node", "node-1", "--ipv4-pool", "10.0.0.0/24")
        yield made


def said(ctl: Ctl, *argv: str, name: str = "calicoctl", stdin: str = "") -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of a command in a script."""
    result = CliRunner().invoke(
        cli, argv, prog_name=name, env={"DATASTORE_TYPE": "sqlite", "SQLITE_PATH": str(ctl.path)}, input=stdin
    )
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("spelled", "plain"),
    [
        ("ipam show --show-blocks=true", "ipam show --show-blocks"),
        ("ipam show --show-blocks=F", "ipam show"),
        ("ipam show --show-blocks=0 --show-configuration=1", "ipam show --show-configuration"),
        ("ipam --context x show", "ipam show --context=x"),
        ("ipam -l warning show", "ipam show"),
        ("ipam show -l Info", "ipam show"),
        ("get ippool -o=json", "get ippool -o json"),
        ("get ippool -Ro=wide", "get ippool -R -o wide"),
        ("get -ojson ippool", "get ippool -o json"),
        ("get ippool -A=false", "get ippool"),
        ("pool list -o=json", "pool list -o json"),
        ("ipam map -o=json", "ipam map -o json"),
        ("ipam explain 10.0.0.1 -oyaml", "ipam explain 10.0.0.1 -o yaml"),
        ("get ippool --export=true -oyaml", "get ippool -o yaml --export"),
        ("help ipam show", "ipam show --help"),
        ("ipam help", "ipam"),
        ("validate -f - --skip-empty=1", "validate -f - --skip-empty"),
    ],
)
@pytest.mark.parametrize("name", ["calicoctl", "ipamctl"])
def test_spellings_of_the_same(ctl: Ctl, spelled: str, plain: str, name: str) -> None:
    expected = said(ctl, *plain.split(), name=name)
    assert expected[0] == 0
    assert said(ctl, *spelled.split(), name=name) == expected


@pytest.mark.parametrize(
    ("command", "stderr"),
    [
        (
            "ipam show --show-blocks=maybe",
            'invalid argument "maybe" for "--show-blocks" flag: strconv.ParseBool: parsing "maybe": invalid syntax',
        ),
        (
            "get ippool -A=yes",
            'invalid argument "yes" for "-A, --all-namespaces" flag: strconv.ParseBool: parsing "yes": invalid syntax',
        ),
        ("get ippool -xyz", "unknown shorthand flag: 'x' in -xyz"),
        ("get ippool -Axy", "unknown shorthand flag: 'x' in -xy"),
        ("get -Rn", "flag needs an argument: 'n' in -n"),
        ("get ippool ---x", "bad flag syntax: ---x"),
        ("ipam show --foo=bar", "unknown flag: --foo"),
        ("ipam split -2", "unknown shorthand flag: '2' in -2"),
        ("frobnicate", 'unknown command "frobnicate" for "calicoctl"'),
        ("gett", 'unknown command "gett" for "calicoctl"\n\nDid you mean this?\n\tget\n'),
        ("patch ippool", "accepts 2 arg(s), received 1"),
        ("label", "requires at least 3 arg(s), only received 0"),
    ],
)
def test_words_of_the_parser(ctl: Ctl, command: str, stderr: str) -> None:
    assert said(ctl, *command.split()) == (1, "", stderr + "\n")


@pytest.mark.parametrize(
    ("argv", "stderr"),
    [
        (("patch", "ippool", "", "-p", "{}"), "resource name may not be empty"),
        (("label", "ippool", "", "a=b"), "failed to get ippool , error resource name may not be empty"),
        (
            ("ipam", "configure", "--ip-cooldown-seconds=5.0"),
            'invalid argument "5.0" for "--ip-cooldown-seconds" flag: strconv.ParseInt: parsing "5.0": invalid syntax',
        ),
        (
            ("ipam", "split", "--name=x", "--", "-+4"),
            "error reading number to split IP pools into. -+4 is not a valid number: strconv.Atoi: "
            'parsing "-+4": invalid syntax',
        ),
        (
            ("ipam", "split", "--name=x", "9" * 20),
            f"error reading number to split IP pools into. {'9' * 20} is not a valid number: strconv.Atoi: "
            f'parsing "{"9" * 20}": value out of range',
        ),
    ],
)
def test_odd_values(ctl: Ctl, argv: tuple[str, ...], stderr: str) -> None:
    assert said(ctl, *argv) == (1, "", stderr + "\n")


def test_one_label_at_a_time(ctl: Ctl) -> None:
    code, screen = ctl.on_terminal("label", "node", "node-1", "a=1", "b=2")
    assert (code, "one label at a time" in screen) == (1, True)


@pytest.mark.parametrize(
    ("text", "any_base", "number"),
    [("+4", False, 4), ("-4", False, -4), ("010", False, 10), ("010", True, 8), ("0x1F", True, 31), ("1_0", True, 10)],
)
def test_whole_numbers(text: str, any_base: bool, number: int) -> None:
    assert whole_number(text, any_base=any_base) == number


@pytest.mark.parametrize("text", ["", "-", "-+4", " 4", "4.0", "1_0", "0x1", "\u00b2", "\u0664"])
def test_no_whole_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="invalid syntax"):
        whole_number(text)


# --- files --------------------------------------------------------------------------------------------------


OBJECT = (
    "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {} "
    "into Go value of type []unstructured.Unstructured"
)


@pytest.mark.parametrize(
    ("text", "stderr"),
    [
        ("spec: {}\n", OBJECT.format("object")),
        ("hello", OBJECT.format("string")),
        ("kind: IPPool\n", "unknown resource type (IPPool) and/or version ()"),
        ("kind: List\napiVersion: v1\nitems: []\n", "unknown resource type (List) and/or version (v1)"),
        ("a: b: c\n", "error converting YAML to JSON: yaml: mapping values are not allowed in this context"),
        (
            "kind: IPPool\n apiVersion: x\n",
            "error converting YAML to JSON: yaml: line 2: mapping values are not allowed in this context",
        ),
        (
            'kind: IPPool\n---\n{"a": 1,\n"b" 2}',
            "unknown resource type (IPPool) and/or version ()",
        ),
        (
            '---\n{"a": 1,\n"b": [2}',
            "error converting YAML to JSON: yaml: line 1: did not find expected ',' or ']'",
        ),
        (
            POOL + "kind: IPPool\n",
            'error converting YAML to JSON: yaml: unmarshal errors:\n  line 5: key "kind" already set in map',
        ),
        (
            "a: &a\n  x: *a\n  b: 1\n  b: 2\n",
            'error converting YAML to JSON: yaml: unmarshal errors:\n  line 4: key "b" already set in map',
        ),
        ("? [a]\n: 1\n", "error converting YAML to JSON: yaml: line 1: a key must be a text"),
        ("[" * 100_000, "error converting YAML to JSON: yaml: exceeded maximum nesting depth"),
        ("a: " + "[" * 5_000, "error converting YAML to JSON: yaml: exceeded maximum nesting depth"),
    ],
)
def test_words_about_a_file(ctl: Ctl, text: str, stderr: str) -> None:
    assert said(ctl, "create", "-f", "-", stdin=text) == (1, "", f"failed to execute command: {stderr}\n")


def test_a_list_has_no_other_fields(ctl: Ctl) -> None:
    text = "kind: IPPoolList\napiVersion: projectcalico.org/v3\nitems: []\nbogus: 1\n"
    unknown = "field in document is not recognized or is in the wrong location: bogus\n"
    assert said(ctl, "validate", "-f", "-", stdin=text) == (1, "", unknown)


@pytest.mark.parametrize(("form", "stdout"), [("ps", ""), ("json", "null"), ("yaml", "null\n")])
def test_what_an_empty_file_names_is_nothing(ctl: Ctl, form: str, stdout: str) -> None:
    assert said(ctl, "get", "-f", "-", "--skip-empty", "-o", form) == (0, stdout, "")


def test_a_folder_is_named_shortly(ctl: Ctl, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").touch()
    stderr = f"no resources specified in file {tmp_path}/a.yaml\n"
    assert said(ctl, "create", "-f", f"{tmp_path}/./") == (1, "", stderr)


def test_every_key_that_stands_twice_is_told() -> None:
    text = "a:\n- x: 1\n  x:\n    y: 2\nb: 1\nb: 2\n"
    lines = ('line 4: key "x" already set in map', 'line 6: key "b" already set in map')
    assert not_yaml(text) == "error converting YAML to JSON: yaml: unmarshal errors:" + "".join(
        f"\n  {each}" for each in lines
    )
    assert not_yaml("a: 1\n") == ""


# --- resources ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patch", "stderr"),
    [
        ('{"kind":"Foo"}', "unknown resource type (Foo) and/or version (projectcalico.org/v3)"),
        ('{"apiVersion":"v1"}', "unknown resource type (IPPool) and/or version (v1)"),
    ],
)
def test_a_patch_makes_no_other_kind(ctl: Ctl, patch: str, stderr: str) -> None:
    name = ctl.ok("get", "ippool", "-o", "name").split("/")[1].strip()
    expected = (1, "", f"hit error: creating resource from patched data: {stderr}\n")
    assert said(ctl, "patch", "ippool", name, "-p", patch) == expected


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ("5", "it is no object"),
        ('{"op":"remove"}', "there is no 'path'"),
        ('{"op":"remove","path":5}', "the path 5 is no text"),
        ('{"op":"remove","path":""}', "the path '' leads to no field"),
    ],
)
def test_operations_that_cannot_be_done(ctl: Ctl, operation: str, reason: str) -> None:
    name = ctl.ok("get", "ippool", "-o", "name").split("/")[1].strip()
    code, _, stderr = said(ctl, "patch", "ippool", name, "--type=json", "-p", f"[{operation}]", name="ipamctl")
    assert (code, stderr.splitlines()[0]) == (1, f"hit error: operation 1 of the patch cannot be done: {reason}")


def test_a_patch_of_what_somebody_changed_since(ctl: Ctl) -> None:
    name = ctl.ok("get", "ippool", "-o", "name").split("/")[1].strip()
    conflict = f"hit error: updating existing resource: update conflict: IPPool({name})\n"
    assert said(ctl, "patch", "ippool", name, "-p", '{"metadata":{"resourceVersion":"99999"}}') == (1, "", conflict)


def test_information_of_the_cluster_cannot_be_replaced(ctl: Ctl) -> None:
    words = "operation apply or replace is not supported on ClusterInformation\n"
    text = "kind: ClusterInformation\napiVersion: projectcalico.org/v3\nmetadata: {name: default}\nspec: {}\n"
    partly = "Partial success: replaced the first 1 out of 1 'ClusterInformation' resources:\n"
    assert said(ctl, "replace", "-f", "-", stdin=text) == (1, partly, f"hit error: {words}")
    patched = said(ctl, "patch", "clusterinfo", "default", "-p", '{"spec":{"clusterType":"x"}}')
    assert patched == (1, "", f"hit error: updating existing resource: {words}")


def test_columns_are_named_exactly(ctl: Ctl) -> None:
    assert said(ctl, "get", "ippool", "-o", "custom-columns=NAME, CIDR")[2].startswith("unknown heading  CIDR, valid")
    assert said(ctl, "get", "ippool", "-o", "custom-columns=NAME, CIDR", name="ipamctl")[0] == 0


def test_cells_of_what_is_not_there_and_of_pairs() -> None:
    nats = [{"internalIP": "10.0.0.1", "externalIP": "1.1.1.1"}, {"internalIP": "10.0.0.2", "externalIP": "1.1.1.2"}]
    endpoint = Resource.new("WorkloadEndpoint", "e", {"ipNATs": nats})
    assert by_name("WorkloadEndpoint").cells["NATS"](endpoint) == "{10.0.0.1 1.1.1.1},{10.0.0.2 1.1.1.2}"
    assert (
        by_name("ClusterInformation").cells["DATASTOREREADY"](Resource.new("ClusterInformation", "default", {}))
        == "<nil>"
    )


# --- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "stdout", "stderr"),
    [
        ("ipam show", "", "{}\n"),
        ("get ippool", "Failed to create Calico API client: {}\n", ""),
        ("label ippool x a=b", "Failed to create Calico API client: {}\n", ""),
        ("version", "Client Version:    v3.32.0\nGit commit:        \n", "{}\n"),
        ("datastore migrate lock", "", "{}\n"),
    ],
)
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"DATASTORE_TYPE": "mysql"}, "unknown datastore type: mysql"),
        ({"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": "/not/there"}, "the kubeconfig /not/there does not exist"),
    ],
)
def test_who_tells_that_there_is_no_datastore(
    command: str, stdout: str, stderr: str, environment: dict[str, str], reason: str
) -> None:
    result = CliRunner().invoke(cli, command.split(), prog_name="calicoctl", env=environment)
    assert (result.exit_code, result.stdout, result.stderr) == (1, stdout.format(reason), stderr.format(reason))


# --- on the Kubernetes API ----------------------------------------------------------------------------------


@pytest.fixture
def on_kubernetes() -> Resources:
    clock = SystemClock()
    return Resources(Engine(MemoryKubeStore(), clock, Retry(clock=clock)), server_rules=True)


def test_nodes_are_not_made(on_kubernetes: Resources) -> None:
    node = Resource.new("Node", "node-9", {}).document
    with pytest.raises(NotSupported, match=r"^operation Create is not supported on Node\(node-9\)$"):
        on_kubernetes.create(node)
    with pytest.raises(NotFound, match=r"^resource does not exist: Node\(node-9\)"):
        on_kubernetes.apply(node, merge_fixed=False)


def test_what_calicoctl_hears_of_a_resource_without_a_name(on_kubernetes: Resources, ctl: Ctl) -> None:
    with pytest.raises(Told, match=r"^Failed to delete 'IPPool' resource: resource name may not be empty\n$"):
        _delete(on_kubernetes, [("IPPool", "", "", "")], None, skip_not_exists=False)
    words = "Failed to delete '{0}' resource: {1}\n\n"
    missing = "resource does not exist: IPPool() with error: <nil>"
    assert said(ctl, "delete", "ippool") == (1, "", words.format("IPPool", missing))
    readonly = "operation delete is not supported on ClusterInformation"
    assert said(ctl, "delete", "clusterinfo") == (1, "", words.format("ClusterInformation", readonly))


def test_settings_have_no_labels(ctl: Ctl) -> None:
    ctl.ok("ipam", "configure", "--ip-cooldown-seconds=0")
    stderr = ctl.refused("label", "ipamconfig", "default", "a=b")
    assert stderr == "failed to update ipamconfig default, label not changed\n"


# --- documents ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["1e3", "08", "1.", ".5", "+4", "0x1f", "1_000", "00:11:22:33:44:55", "1:30", "y", "off", "~", "", "2026-08-20"],
)
def test_texts_that_would_be_something_else_are_quoted(text: str) -> None:
    assert as_yaml({"a": text}) == f'a: "{text}"\n'


@pytest.mark.parametrize(
    "text", ["66:1f:22:33:44:55", "1e999", "fd00::1", "10.0.0.0/24", "2026-08-20 10:11:12.1 +0000 UTC"]
)
def test_other_texts_are_not(text: str) -> None:
    assert as_yaml({"a": text}) == f"a: {text}\n"


def test_signs_that_go_escapes() -> None:
    assert as_json("<a & b>\u2028\u00e9") == '"\\u003ca \\u0026 b\\u003e\\u2028\u00e9"'
