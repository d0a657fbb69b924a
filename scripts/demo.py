"""Two sandboxes on one machine, wired and addressed by our plugins: what `make demo` shows.

The "host" of the demo is a network namespace of its own, inside a private mount namespace: links, routes, sysctls and
the list of named namespaces of the real machine are not touched, and the kernel removes everything when the demo ends,
however it ends. Within it everything is as a runtime does it: the installed programs, the environment and the network
configuration on standard input.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calico_ipam.datastore.config import open_datastore
from calico_ipam.model.keys import Handles, Resources

REPOSITORY = Path(__file__).resolve().parent.parent
EXAMPLE = REPOSITORY / "netconf-examples" / "11-sqlite-dual-stack.conflist"
PROGRAMS = Path(sys.executable).parent
#: Set in the second run of this script, the one inside the private host.
INSIDE = "CALICO_IPAM_DEMO_INSIDE"
PARTS = ("ip", "ping", "unshare", "mount")

#: Addresses of the demo's host, as scripts/private-host gives them.
HOST_IPV4, HOST_IPV6 = "192.0.2.1", "2001:db8::1"
POOL_IPV4, POOL_IPV6 = "10.244.0.0/16", "fd00:10:244::/112"

#: Named network namespaces are files of this folder: a private one forgets them, too.
PREPARE = f"mkdir -p /run/netns && mount -t tmpfs none /run/netns && {REPOSITORY}/scripts/private-host"

PLAN = """\
What it would have done, in a network namespace of its own that stands for the host:
  1. make a datastore in a temporary file, with a pool of each family   (ipamctl init)
  2. make two network namespaces, "red" and "blue"                      (ip netns add)
  3. ADD: let `calico` wire both, with addresses from `calico-ipam`
  4. ping from red to blue and back, and from the host to each, with IPv4 and IPv6
  5. show the block that the addresses come from                        (ipamctl ipam show --show-blocks)
  6. CHECK both, then DEL both
  7. prove that no link, route, address or handle is left"""


class Failed(Exception):
    """A step did not do what it should; the text says which and what was seen."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A network namespace that stands for a container. The first eleven characters of the ID name its host link."""

    name: str
    container_id: str

    @property
    def path(self) -> str:
        return f"/run/netns/{self.name}"


RED, BLUE = Sandbox("red", "red-7f3a"), Sandbox("blue", "blue-91cc")


def say(text: str = "") -> None:
    print(text, flush=True)


def step(number: int, what: str) -> None:
    say(f"\n{number}. {what}")


def run(*command: str, environ: dict[str, str] | None = None, stdin: str = "", shown: str = "") -> str:
    """Run a command, show it, and return what it printed."""
    say(f"   $ {shown or shlex.join(command)}")
    done = subprocess.run(
        command, input=stdin, env={**os.environ, **(environ or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Failed(f"{shown or shlex.join(command)}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def show(text: str) -> None:
    for line in text.rstrip().splitlines():
        say(f"     {line}")


@dataclass(frozen=True, slots=True)
class Demo:
    """The demo's store and network configuration, in a temporary folder."""

    folder: Path

    @property
    def url(self) -> str:
        return f"sqlite://{self.folder}/ipam.db"

    @property
    def netconf(self) -> dict[str, Any]:
        """The shipped dual-stack example as a runtime passes it on, its paths moved to the temporary folder."""
        document = json.loads(EXAMPLE.read_text())
        (plugin,) = document["plugins"]
        return {
            **plugin,
            "name": document["name"],
            "cniVersion": document["cniVersion"],
            "sqlite_path": f"{self.folder}/ipam.db",
            "log_file_path": f"{self.folder}/cni.log",
            "ipam_lock_file": f"{self.folder}/ipam.lock",
        }

    def ipamctl(self, *arguments: str) -> str:
        return run(
            *(str(PROGRAMS / "ipamctl"), "--datastore", self.url, *arguments),
            shown=shlex.join(["ipamctl", *arguments]),
        )

    def plugin(self, verb: str, sandbox: Sandbox, previous: Any = None) -> Any:
        """Invoke ``calico`` as a container runtime does; return its result, None where there is none to return."""
        netconf = self.netconf if previous is None else {**self.netconf, "prevResult": previous}
        answer = run(
            str(PROGRAMS / "calico"),
            environ={
                "CNI_COMMAND": verb,
                "CNI_CONTAINERID": sandbox.container_id,
                "CNI_NETNS": sandbox.path,
                "CNI_IFNAME": "eth0",
                "CNI_PATH": str(PROGRAMS),
            },
            stdin=json.dumps(netconf),
            shown=f"CNI_COMMAND={verb} CNI_CONTAINERID={sandbox.container_id} CNI_NETNS={sandbox.path} "
            f"CNI_IFNAME=eth0 calico < {EXAMPLE.name}",
        )
        return json.loads(answer) if answer else None

    def handles(self) -> list[str]:
        """Return the handles and endpoint records that the store holds."""
        with closing(open_datastore(self.url)) as store:
            scopes = (Handles(), Resources("WorkloadEndpoint"))
            return [str(entry.key) for scope in scopes for entry in store.list(scope)]

    def addresses(self) -> list[str]:
        """Return the addresses that the store's blocks hold for somebody."""
        from calico_ipam.model.addresses import address_at
        from calico_ipam.model.keys import Blocks

        with closing(open_datastore(self.url)) as store:
            blocks = [entry.value for entry in store.list(Blocks())]
        return [
            str(address_at(block.cidr, ordinal))
            for block in blocks
            for ordinal, index in enumerate(block.allocations)
            if index is not None
        ]


def kernel() -> tuple[set[str], set[str]]:
    """Return the links and the routes of the demo's host."""
    links = json.loads(subprocess.check_output(["ip", "-json", "link"], text=True))
    routes: set[str] = set()
    for family in ("-4", "-6"):
        listed = json.loads(
            subprocess.check_output(["ip", "-json", family, "route", "show", "table", "all"], text=True)
        )
        # Multicast and link-local routes are the kernel's: they come by themselves, a moment after their link.
        plain = (r for r in listed if r.get("type", "unicast") == "unicast" and not r["dst"].startswith("fe80:"))
        routes |= {f"{r['dst']} dev {r.get('dev')}" for r in plain}
    return {link["ifname"] for link in links}, routes


def ping(source: str, target: str, what: str) -> None:
    """Ping once a second; a sandbox must answer within ten."""
    enter = [] if source == "host" else ["ip", "netns", "exec", source]
    answer = run(*enter, "ping", "-n", "-c", "1", "-w", "10", target)
    line = next(line for line in answer.splitlines() if "bytes from" in line)
    say(f"     {what}: {line}")


def demonstrate(demo: Demo) -> None:
    step(1, "A datastore in a file, with a pool of each family")
    made = demo.ipamctl("init", "--ipv4-pool", POOL_IPV4, "--ipv6-pool", POOL_IPV6)
    show(made.partition("\n\n")[0])  # what follows tells how to go on

    step(2, "Two network namespaces: what a container runtime makes for two containers")
    for sandbox in (RED, BLUE):
        run("ip", "netns", "add", sandbox.name)
    links, routes = kernel()

    step(3, "ADD: `calico` wires each of them, with addresses that `calico-ipam` assigns")
    results = {}
    for sandbox in (RED, BLUE):
        results[sandbox] = demo.plugin("ADD", sandbox)
        show("\n".join(f"{sandbox.name} has {ip['address']}" for ip in results[sandbox]["ips"]))
    address = {s: [ip["address"].partition("/")[0] for ip in results[s]["ips"]] for s in (RED, BLUE)}

    step(4, "They talk: to each other and with the host, IPv4 and IPv6")
    for family in (0, 1):
        ping("red", address[BLUE][family], "red to blue")
        ping("blue", address[RED][family], "blue to red")
        for sandbox in (RED, BLUE):
            ping("host", address[sandbox][family], f"host to {sandbox.name}")
            ping(sandbox.name, (HOST_IPV4, HOST_IPV6)[family], f"{sandbox.name} to host")

    step(5, "What the datastore knows")
    show(demo.ipamctl("ipam", "show", "--show-blocks"))
    show(demo.ipamctl("ipam", "show", "--ip", address[RED][0]))

    step(6, "CHECK: everything is as ADD left it. DEL: it goes away again")
    for sandbox in (RED, BLUE):
        demo.plugin("CHECK", sandbox, results[sandbox])
        say("     as it should be")
    for sandbox in (RED, BLUE):
        demo.plugin("DEL", sandbox, results[sandbox])

    step(7, "Is anything left?")
    links_now, routes_now = kernel()
    left = {
        "link": sorted(links_now - links),
        "route": sorted(routes_now - routes),
        "address": demo.addresses(),
        "handle": demo.handles(),
    }
    for kind, found in left.items():
        say(f"     {kind}: {', '.join(found) or 'none'}")
    if any(left.values()):
        raise Failed(f"something is left: {left}")


def enter_private_host() -> int:
    """Run this script once more, inside namespaces of its own."""
    missing = [part for part in PARTS if shutil.which(part) is None]
    if missing:
        say(f"Missing: {', '.join(missing)}. On Debian or Ubuntu: apt-get install iproute2 iputils-ping util-linux")
        return 1
    if os.geteuid() != 0:
        say("`make demo` makes network namespaces and needs root: sudo make demo\n")
        say(PLAN)
        return 1
    isolated = ["unshare", "--net", "--mount", "--propagation", "private"]
    with tempfile.TemporaryDirectory(prefix="calico-ipam-demo-") as folder:
        return subprocess.run(
            [*isolated, sys.executable, __file__, folder], env={**os.environ, INSIDE: "1"}, check=False
        ).returncode


def main() -> int:
    if not os.environ.get(INSIDE):
        return enter_private_host()
    started = time.monotonic()
    say("Two sandboxes on one host. The host here is a network namespace of its own: your machine is not touched.")
    try:
        subprocess.run(["sh", "-euc", PREPARE], check=True, capture_output=True, text=True)
        demonstrate(Demo(Path(sys.argv[1])))
    except subprocess.CalledProcessError as error:
        say(f"\nThe demo's host could not be made: {error.stderr.strip()}")
        return 1
    except Failed as error:
        say(f"\nThe demo failed: {error}")
        return 1
    say(f"\nDone in {time.monotonic() - started:.1f} s. Nothing is left: no link, no route, no address, no handle.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
