"""What scripts read of calicoctl's resource commands: the exact words, channel and exit code (cli §8)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from calico_ipam.ctl.main import cli
from tests.cluster import Cluster, cluster
from tests.ctl import Ctl

POOL = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {{name: {name}{more}}}\nspec: {{cidr: {cidr}}}\n"
ONE = POOL.format(name="new", more="", cidr="10.9.0.0/24")
PLACED = POOL.format(name="new", more=", namespace: shop", cidr="10.9.0.0/24")
RESERVED = "apiVersion: projectcalico.org/v3\nkind: IPReservation\nmetadata: {{name: {name}}}\nspec: {{}}\n"
IN_FILE = (
    "namespace should not be specified for a non-namespaced resource. IPPool is not a namespaced resource",
    "IPPool is not namespaced",
)


@pytest.fixture
def world() -> Iterator[Cluster]:
    with cluster() as made:
        made.pool("a", "10.0.0.0/24")
        made.pool("b", "10.1.0.0/24")
        yield made


@pytest.fixture
def ctl(world: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ctl:
    from calico_ipam.datastore.sqlite import SQLiteStore

    assert isinstance(world.store.inner, SQLiteStore)
    monkeypatch.chdir(tmp_path)
    return Ctl(Path(world.store.inner.name.removeprefix("sqlite://")))


def said(ctl: Ctl, command: str, *more: str, stdin: str | None = None) -> tuple[int, str, str]:
    """Run a command under calicoctl's name; return exit code, standard output and standard error."""
    argv = ["--datastore", ctl.url, *command.split(), *more]
    result = CliRunner().invoke(cli, argv, prog_name="calicoctl", input=stdin)
    return result.exit_code, result.stdout, result.stderr


MISSING = "resource does not exist: IPPool({}) with error: <nil>"


@pytest.mark.parametrize(
    ("command", "code", "stdout", "stderr"),
    [
        ("get somekind -o nonsense", 1, "", "unrecognized output format 'nonsense'\n"),
        ("get ippool -o go-template", 1, "", "need to specify a template\n"),
        ("get ippool -o custom-columns", 1, "", "need to specify at least one column\n"),
        ("get ippool -A -o yaml", 1, "null\n", "IPPool is not namespaced\n"),
        ("get ippool a b -n x", 1, "", "IPPool is not namespaced\nIPPool is not namespaced\n"),
        ("get wep x -A", 1, "", "cannot use --all-namespace flag for getting a single resource\n"),
        ("get ippool none -o json", 1, "null", MISSING.format("none") + "\n"),
        ("get -f nowhere.yaml", 1, "", "failed to execute command: open nowhere.yaml: no such file or directory\n"),
        ("get -f empty.yaml", 1, "", "failed to get resources: no resources specified in file empty.yaml\n"),
        (
            "delete ippool a none b",
            1,
            "Successfully deleted 2 'IPPool' resource(s)\n",
            f"Failed to delete 'IPPool' resource: {MISSING.format('none')}\n\n",
        ),
        ("delete ippool x y -s", 0, "Successfully deleted 2 'IPPool' resource(s)\n", ""),
        ("delete ippool a -n x", 1, "", "Failed to delete 'IPPool' resource: IPPool is not namespaced\n\n"),
        ("delete somekind a", 1, "", "resource type 'somekind' is not supported\n"),
        ("delete ippool", 1, "", f"Failed to delete 'IPPool' resource: {MISSING.format('')}\n\n"),
        ("patch somekind a -p {}", 1, "", "resource type 'somekind' is not supported\n"),
        ("patch ippool a -n x -p {}", 1, "", "hit error: IPPool is not namespaced\n"),
        (
            'patch ippool a -p {"spec":{"disabled":"True"}}',
            1,
            "",
            "hit error: creating resource from patched data: error unmarshaling JSON: while decoding JSON: json: "
            "cannot unmarshal string into Go struct field IPPoolSpec.spec.disabled of type bool\n",
        ),
        ("patch ippool a -t nonsense -p {}", 0, "Successfully patched 1 'IPPool' resource\n", ""),
        ("label ippool a zone", 1, "", "invalid label zone\n"),
        ("label ippool a zone=x", 0, "Successfully set label zone on ippool a\n", ""),
        ("label pool a zone=x=y", 1, "", "failed to update pool a, label not changed\n"),
        ("label pool a ba!d=x", 1, "", "failed to update pool a, label not changed\n"),
        ("label ippool a zone --remove", 1, "", "cannot remove label of ippool a, key zone does not exist\n"),
        ("label ippool none zone=x", 1, "", "ippool none not found\n"),
        ("label somekind a z=x", 1, "", "failed to get somekind a, error resource type 'somekind' is not supported\n"),
        ("label ippool a", 1, "", "requires at least 3 arg(s), only received 2\n"),
        ("create -f nowhere.yaml", 1, "", "failed to execute command: open nowhere.yaml: no such file or directory\n"),
        ("create -f empty.yaml", 1, "", "no resources specified in file empty.yaml\n"),
        ("create -f empty.yaml --skip-empty", 0, "No resources specified\n", ""),
        ("create -f bare", 1, "", "no resources specified in directory bare\n"),
        ("apply -f half", 1, "", "no resources specified in file half/empty.yaml\n"),
        ("apply -f half --skip-empty", 0, "Successfully applied 1 'IPPool' resource(s)\n", ""),
    ],
)
def test_words(ctl: Ctl, command: str, code: int, stdout: str, stderr: str) -> None:
    Path("empty.yaml").touch()
    for folder in ("bare", "half"):
        Path(folder).mkdir()
    Path("half/empty.yaml").touch()
    Path("half/one.yml").write_text(ONE)
    assert said(ctl, command) == (code, stdout, stderr)


def test_labels_are_overwritten_only_when_asked(ctl: Ctl) -> None:
    steps = [
        ("zone=x", 0, "Successfully set label zone on node n", ""),
        ("zone=x", 0, "Successfully updated label zone on node n", ""),
        (
            "zone=y",
            1,
            "",
            "failed to update label of node n, key zone is already present. please use "
            "'--overwrite' to set a new value",
        ),
        ("zone=y --overwrite", 0, "Successfully updated label zone on node n", ""),
        ("zone=z --remove", 1, "", "cannot remove label of node n, key zone=z does not exist"),
        ("zone --remove", 0, "Successfully removed label zone from node n", ""),
    ]
    assert (
        said(
            ctl, "create -f -", stdin=ONE.replace("IPPool", "Node").replace("new", "n").replace("cidr: 10.9.0.0/24", "")
        )[0]
        == 0
    )
    for words, code, stdout, stderr in steps:
        told = tuple(f"{line}\n" if line else "" for line in (stdout, stderr))
        assert said(ctl, f"label node n {words}") == (code, *told), words


@pytest.mark.parametrize("verb", ["create", "apply", "validate"])
def test_a_namespace_where_there_is_none_is_told_of_each_resource(ctl: Ctl, verb: str) -> None:
    failed = f"failed to {verb} 'IPPool' resource: "
    assert said(ctl, f"{verb} -f -", stdin=PLACED) == (1, "", f"{failed}[{IN_FILE[0]}]\n")
    assert said(ctl, f"{verb} -f - -n x", stdin=ONE) == (1, "", f"{failed}[{IN_FILE[1]}]\n")


def test_replace_tells_one_error_without_brackets(ctl: Ctl) -> None:
    assert said(ctl, "replace -f -", stdin=PLACED) == (1, "", f"failed to replace 'IPPool' resource: {IN_FILE[0]}\n")
    both = PLACED + "---\n" + POOL.format(name="a", more="", cidr="10.0.0.0/24")
    partly = "Partial success: replaced the first 1 out of 2 'IPPool' resources:\n"
    assert said(ctl, "replace -f -", stdin=both) == (1, partly, f"hit error: {IN_FILE[0]}\n")


def test_several_kinds_in_one_file_have_no_name(ctl: Ctl) -> None:
    both = ONE + "---\n" + RESERVED.format(name="r")
    assert said(ctl, "create -f -", stdin=both) == (0, "Successfully created 2 resource(s)\n", "")
    again = said(
        ctl, "create -f -", stdin=both + "---\n" + RESERVED.format(name="s") + "---\n" + RESERVED.format(name="t")
    )
    exists = "resource already exists: {} with error: <nil>"
    errors = f"[{exists.format('IPPool(new)')} {exists.format('IPReservation(r)')}]"
    assert again == (1, "", f"hit error: {errors}\n"), "successes do not outnumber errors"
    assert said(ctl, "delete -f -", stdin=both) == (0, "Successfully deleted 2 resource(s)\n", "")
    gone = "resource does not exist: {} with error: <nil>"
    lines = "".join(f"Failed to delete resource: {gone.format(each)}\n" for each in ("IPPool(new)", "IPReservation(r)"))
    assert said(ctl, "delete -f -", stdin=both) == (1, "", lines + "\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "kind: IPPol\napiVersion: projectcalico.org/v3\n",
            "unknown resource type (IPPol) and/or version (projectcalico.org/v3)",
        ),
        ("kind: IPPool\napiVersion: v1\n", "unknown resource type (IPPool) and/or version (v1)"),
        (
            "- {kind: IPPool, apiVersion: projectcalico.org/v3, metadata: {name: x}, spec: {natOutgoing: 3}}",
            "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal number into Go struct field "
            "IPPoolSpec.spec.natOutgoing of type bool",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["create", "delete", "get", "validate"])
def test_a_file_that_is_no_resource(ctl: Ctl, verb: str, text: str, words: str) -> None:
    assert said(ctl, f"{verb} -f -", stdin=text) == (1, "", f"failed to execute command: {words}\n")


def test_a_link_that_leads_back_up_is_not_followed(ctl: Ctl) -> None:
    inner = Path("top/inner")
    inner.mkdir(parents=True)
    (inner / "one.yaml").write_text(ONE)
    (inner / "loop").symlink_to(Path("top").resolve())
    assert said(ctl, "create -f top") == (1, "", "no resources specified in directory top\n")
    assert said(ctl, "create -R -f top") == (0, "Successfully created 1 'IPPool' resource(s)\n", "")


def test_lists_and_arrays_of_resources(ctl: Ctl) -> None:
    listed = (
        "kind: IPPoolList\napiVersion: projectcalico.org/v3\nitems:\n"
        "- {kind: IPPool, apiVersion: projectcalico.org/v3, metadata: {name: c}, spec: {cidr: 10.2.0.0/24}}\n"
        "--- a comment\n"
        "- {kind: IPPool, apiVersion: projectcalico.org/v3, metadata: {name: d}, spec: {cidr: 10.3.0.0/24}}\n"
        "- {kind: IPPool, apiVersion: projectcalico.org/v3, metadata: {name: e}, spec: {cidr: 10.4.0.0/24}}\n"
    )
    assert said(ctl, "create -f -", stdin=listed) == (0, "Successfully created 3 'IPPool' resource(s)\n", "")
    again = said(ctl, "get -f - -o custom-columns=NAME", stdin=listed)
    assert again[:2] == (0, "".join(f"NAME   \n{name:<7}\n\n" for name in "cde"))


CONTROLLERS = (
    "apiVersion: projectcalico.org/v3\nkind: KubeControllersConfiguration\nmetadata: {{name: {0}}}\nspec: {1}\n"
)


@pytest.mark.parametrize(
    ("name", "spec", "words"),
    [
        (
            "other",
            "{controllers: {}}",
            'Cannot create a Kube Controllers Configuration resource with a name other than "default"',
        ),
        (
            "default",
            "{healthChecks: Maybe, controllers: {}}",
            'error with field spec.healthChecks (supported values: "Enabled", "Disabled")',
        ),
        (
            "default",
            "{controllers: {loadBalancer: {assignIPs: Some}}}",
            "error with field spec.controllers.loadBalancer.assignIPs (supported values: "
            '"AllServices", "RequestedServicesOnly")',
        ),
        (
            "default",
            "{prometheusMetricsPort: 70000, controllers: {}}",
            "error with field spec.prometheusMetricsPort (spec.prometheusMetricsPort in body should be less than or "
            "equal to 65535)",
        ),
    ],
)
def test_rules_of_the_controllers(ctl: Ctl, name: str, spec: str, words: str) -> None:
    text = CONTROLLERS.format(name, spec)
    assert said(ctl, "create -f -", stdin=text) == (
        1,
        "",
        f"failed to create 'KubeControllersConfiguration' resource: [{words}]\n",
    )


def test_controllers_get_their_defaults_and_keep_what_is_empty(ctl: Ctl) -> None:
    text = CONTROLLERS.format(
        "default", "{prometheusMetricsPort: 0, controllers: {node: {}, loadBalancer: {}, policy: {}}}"
    )
    assert said(ctl, "create -f -", stdin=text)[0] == 0
    stored = json.loads(said(ctl, "get kubecontrollersconfig default -o json")[1])
    assert stored["spec"] == {
        "healthChecks": "Enabled",
        "prometheusMetricsPort": 0,
        "controllers": {
            "node": {"leakGracePeriod": "15m0s"},
            "policy": {},
            "loadBalancer": {"assignIPs": "AllServices"},
        },
    }
    wrong = said(ctl, "apply -f -", stdin=text.replace("policy", "polices"))
    assert wrong == (1, "", "field in document is not recognized or is in the wrong location: polices\n")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{range .}}{{.Name}} {{.ObjectMeta.Name}} {{.Kind}}{{end}}", "a a IPPool"),
        ("{{range .}}{{.Spec.Disabled}} {{.Spec.NATOutgoing}} {{.Spec.NamespaceSelector}}|{{end}}", "false false |"),
        ('{{range .}}{{joinAndTruncate .Labels "," 3}}|{{.Labels}}{{end}}', "|map[]"),
        (
            '{{range .}}{{if .Spec.Disabled}}off{{else}}on{{end}} {{join .Spec.AllowedUses "+"}}{{end}}',
            "on Workload+Tunnel",
        ),
    ],
)
def test_templates_see_what_go_sees(ctl: Ctl, template: str, words: str) -> None:
    assert said(ctl, "get ippool a -o", f"go-template={template}") == (0, words, "")


def test_the_cluster_is_asked_before_files_are_read(world: Cluster, ctl: Ctl) -> None:
    """A mismatch of versions is told first, as upstream does."""
    from calico_ipam.model.keys import ResourceKey
    from calico_ipam.model.resource import CLUSTER_INFORMATION, Resource

    old = Resource.new(CLUSTER_INFORMATION, "default", {"calicoVersion": "v3.1.0"})
    world.put(ResourceKey(CLUSTER_INFORMATION, "default"), old)
    for command, prefix in (
        ("create -f none", ""),
        ("delete somekind x", ""),
        ("patch somekind x -p {}", ""),
        ("get somekind", "failed to get resources: "),
        ("label somekind x a=b", "failed to get somekind x, error "),
    ):
        assert said(ctl, command)[2].startswith(f"{prefix}version mismatch.\n"), command
    assert said(ctl, "get ippool a --allow-version-mismatch")[0] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("spec: {", "spec: {blockSize: '26', "), "string into Go struct field IPPoolSpec.spec.blockSize of type int"),
        (
            ("spec: {", "spec: {blockSize: 26.5, "),
            "number 26.5 into Go struct field IPPoolSpec.spec.blockSize of type int",
        ),
        (
            ("spec: {", "spec: {natOutgoing: 1, "),
            "number into Go struct field IPPoolSpec.spec.natOutgoing of type bool",
        ),
        (
            ("spec: {", "spec: {allowedUses: [1], "),
            "number into Go struct field IPPoolSpec.spec.allowedUses of type v3.IPPoolAllowedUse",
        ),
        (("name: new", "name: 5"), "number into Go struct field ObjectMeta.metadata.name of type string"),
        (
            ("name: new", "name: new, labels: {a: 1}"),
            "number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            ("name: new", "name: new, labels: [a]"),
            "array into Go struct field ObjectMeta.metadata.labels of type map[string]string",
        ),
        (("{cidr: 10.9.0.0/24}", "[a]"), "array into Go struct field IPPool.spec of type v3.IPPoolSpec"),
        (("{name: new}", "new"), "string into Go struct field IPPool.metadata of type v1.ObjectMeta"),
    ],
)
def test_types_are_told_as_go_tells_them(ctl: Ctl, change: tuple[str, str], words: str) -> None:
    wrong = "failed to execute command: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal "
    assert said(ctl, "create -f -", stdin=ONE.replace(*change)) == (1, "", f"{wrong}{words}\n")


def test_whole_numbers_may_be_written_with_a_fraction(ctl: Ctl) -> None:
    assert said(ctl, "create -f -", stdin=ONE.replace("spec: {", "spec: {blockSize: 28.0, "))[0] == 0
    assert json.loads(said(ctl, "get ippool new -o json")[1])["spec"]["blockSize"] == 28


# --- files of settings ----------------------------------------------------------------------------------------

EVERYWHERE = (
    "get ippool",
    "ipam show",
    "create -f x",
    "label ippool a b=c",
    "datastore migrate unlock",
    "ipam split 2",
)
SETTINGS = "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nspec: {}\n"


def configured(command: str, config: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, [*command.split(), "-c", config], prog_name="calicoctl")
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("command", EVERYWHERE)
def test_settings_that_are_not_there(command: str) -> None:
    assert configured(command, "no.cfg") == (1, "Error reading config file: no.cfg\n", "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SETTINGS.replace("projectcalico.org/v3", "v1"), "invalid config file: unknown APIVersion 'v1'"),
        (SETTINGS.replace("CalicoAPIConfig", "Pod"), "invalid config file: expected kind 'CalicoAPIConfig', got 'Pod'"),
        ("a: [", "failed to parse config as YAML/JSON: "),
    ],
)
@pytest.mark.parametrize("command", ["get ippool", "label ippool a b=c", "ipam show", "datastore migrate unlock"])
def test_settings_that_cannot_be_read(ctl: Ctl, command: str, text: str, words: str) -> None:
    Path("c.cfg").write_text(text)
    code, stdout, stderr = configured(command, "c.cfg")
    begins = f"syntax error in c.cfg: {words}"
    assert code == 1
    if command.split()[0] in ("get", "label"):
        assert stdout.startswith(f"Failed to create Calico API client: {begins}") and stderr == ""
    else:
        assert stderr.startswith(begins) and stdout == ""


def test_a_setting_that_nobody_knows(ctl: Ctl) -> None:
    Path("c.cfg").write_text(SETTINGS.replace("{}", "{datastoreTypo: x}"))
    unknown = "field in document is not recognized or is in the wrong location: datastoreTypo\n"
    assert configured("ipam show", "c.cfg") == (1, "", unknown)
