"""Options that many commands have, and that mean the same everywhere."""

from __future__ import annotations

import click

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would happen and write nothing.")
namespace_option = click.option(
    "-n", "--namespace", metavar="NAME", help="The namespace of namespaced resources. Default: default."
)
kubeconfig_option = click.option(
    "--kubeconfig", metavar="FILE", help="Where Services are looked up when the data is in etcd."
)
