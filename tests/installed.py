"""Our programs as a user has them: the installed console scripts, the shipped network configurations, a fresh store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from calico_ipam.datastore.config import open_datastore
from calico_ipam.model.addresses import address_at
from calico_ipam.model.keys import Blocks, Handles, Resources
from tests.shared import REPOSITORY

EXAMPLES = REPOSITORY / "netconf-examples"
#: Where the virtual environment that runs the tests keeps the programs.
PROGRAMS = Path(sys.executable).parent
#: The distribution's plugins.
FOREIGN_PLUGINS = Path("/usr/lib/cni")
ENDPOINT = "WorkloadEndpoint"
#: The pools of a store made by ``fresh_site``.
IPV4_POOL, IPV6_POOL = "10.89.64.0/20", "fd00:89:64::/112"


def run(*command: str | Path, environ: Mapping[str, str] | None = None, stdin: str = "") -> str:
    """Run a command and return its standard output; fail with everything it said when it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        input=stdin,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr}{done.stdout}"
    return done.stdout


def need_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces and links")


def plugin_folder(folder: Path) -> Path:
    """Make a folder of plugins: ours as links to the console scripts, the distribution's beside them."""
    folder.mkdir(parents=True)
    for name in ("calico", "calico-ipam"):
        (folder / name).symlink_to(PROGRAMS / name)
    if not (FOREIGN_PLUGINS / "host-local").exists():
        pytest.skip(f"no {FOREIGN_PLUGINS}/host-local: apt-get install containernetworking-plugins")
    for name in ("host-local", "loopback"):
        (folder / name).symlink_to(FOREIGN_PLUGINS / name)
    return folder


@contextmanager
def network_namespace() -> Iterator[Path]:
    """Make a network namespace with a name of its own; remove it, and all links in it, at the end."""
    need_root()
    name = f"house-{uuid4().hex[:12]}"
    run("ip", "netns", "add", name)
    try:
        yield Path("/run/netns") / name
    finally:
        run("ip", "netns", "delete", name)


@dataclass(frozen=True, slots=True)
class Site:
    """One machine's installation in a folder of its own: store, logs, plugins, network configurations."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "ipam" / "ipam.db"

    @property
    def plugins(self) -> Path:
        return self.folder / "bin"

    @property
    def configurations(self) -> Path:
        return self.folder / "net.d"

    def install(self, example: str) -> dict[str, Any]:
        """Put an example into the folder of network configurations, its paths moved here; return what it holds."""
        text = (EXAMPLES / example).read_text()
        for path, ours in (
            ("/var/lib/calico/ipam/ipam.db", self.store),
            ("/var/log/calico/cni/cni.log", self.folder / "cni.log"),
            ("/var/lib/cni/networks", self.folder / "host-local"),
        ):
            text = text.replace(path, str(ours))
        document: dict[str, Any] = json.loads(text)
        for plugin in document["plugins"]:
            plugin["ipam_lock_file"] = str(self.folder / "ipam.lock")
        self.configurations.mkdir(exist_ok=True)
        (self.configurations / example).write_text(json.dumps(document))
        return document

    def ipamctl(self, *arguments: str) -> str:
        """Run ipamctl on this site's store and return what it printed."""
        return run(PROGRAMS / "ipamctl", "--datastore", f"sqlite://{self.store}", *arguments)

    def holders(self) -> dict[str, str]:
        """Return who holds which address of the store: handle by address."""
        with closing(open_datastore(f"sqlite://{self.store}")) as store:
            blocks = [entry.value for entry in store.list(Blocks())]
        return {
            str(address_at(block.cidr, ordinal)): block.attributes[index].clean_handle
            for block in blocks
            for ordinal, index in enumerate(block.allocations)
            if index is not None and not block.attributes[index].cold
        }

    def records(self) -> list[str]:
        """Return what the store still holds of sandboxes: handles and endpoint records."""
        with closing(open_datastore(f"sqlite://{self.store}")) as store:
            return [str(entry.key) for scope in (Handles(), Resources(ENDPOINT)) for entry in store.list(scope)]


def fresh_site(folder: Path) -> Site:
    """Make a site with an initialised store that has one pool of each family."""
    site = Site(folder)
    site.store.parent.mkdir(mode=0o700, parents=True)
    plugin_folder(site.plugins)
    site.ipamctl("init", "--ipv4-pool", IPV4_POOL, "--ipv6-pool", IPV6_POOL)
    return site


def cnitool() -> Path:
    """Return the path of cnitool, CNI's reference runtime, which ``make test`` builds where Go is installed."""
    folder = Path(os.environ.get("CALICO_IPAM_CACHE") or Path.home() / ".cache" / "calico-ipam")
    built = sorted(folder.glob("cnitool-*/cnitool"))
    if built:
        return built[-1]
    found = shutil.which("cnitool")
    if found is None:
        pytest.skip("no cnitool: `make cnitool` builds it where Go is installed (apt-get install golang-go)")
    return Path(found)
