"""What people type who know another tool, and what they find here instead: read only when something was not found."""

from __future__ import annotations

from collections.abc import Mapping

#: a word in place of a command; ``{}`` stands for what follows it
COMMANDS: Mapping[str, str] = {
    "node": "Nodes: 'ipamctl get nodes', 'ipamctl delete node NAME'; this host: 'ipamctl doctor'.",
    "cluster": "'ipamctl doctor' and 'ipamctl ipam check' look at the cluster.",
    "describe": "'ipamctl ipam explain NAME' says why it is so; 'ipamctl get KIND NAME -o yaml' shows all of it.",
    "drain": "'kubectl drain' moves the pods of a node; then 'ipamctl delete node NAME' gives back what it held.",
    "cordon": "'ipamctl pool create --node-selector' and 'ipamctl label node' decide which pools a node takes from.",
    "edit": "'ipamctl get KIND NAME -o yaml > FILE', then 'ipamctl apply -f FILE'; or 'ipamctl patch'.",
    "set": "'ipamctl patch KIND NAME -p JSON' changes a resource, 'ipamctl ipam configure' the settings.",
    "config": "'ipamctl ipam configure' changes the settings, 'ipamctl ipam show --show-configuration' shows them.",
    "logs": "'ipamctl ipam history ADDRESS' shows what happened, on the embedded datastore.",
    "events": "'ipamctl ipam history ADDRESS' shows what happened, on the embedded datastore.",
    "top": "'ipamctl ipam show' tells how full the pools are, 'ipamctl ipam map' draws them.",
    "list": "'ipamctl get KIND' lists resources, 'ipamctl pool list' pools, 'ipamctl ipam show' how full they are.",
    "ls": "'ipamctl get KIND' lists resources, 'ipamctl pool list' pools, 'ipamctl ipam show' how full they are.",
    "watch": "'ipamctl get KIND --watch', 'ipamctl ipam show --watch'.",
    "api-resources": "'ipamctl get --help' lists the kinds.",
    "cluster-info": "'ipamctl get clusterinfo -o yaml', 'ipamctl version'.",
    "lock": "'ipamctl datastore lock'.",
    "unlock": "'ipamctl datastore unlock'.",
    "backup": "'ipamctl datastore backup FILE', or 'ipamctl datastore export FILE'.",
    "rollout": "'ipamctl pool resize' changes the blocks of a pool while it lives.",
}

#: synonyms of commands in any group
SYNONYMS: Mapping[str, str] = {
    "add": "create",
    "new": "create",
    "make": "create",
    "ls": "list",
    "rm": "delete",
    "del": "delete",
    "remove": "delete",
    "free": "release",
    "verify": "check",
    "status": "show",
    "why": "explain",
    "fix": "repair",
    "clean": "gc",
    "cleanup": "gc",
    "update": "replace",
}

#: options that other tools have
OPTIONS: Mapping[str, str] = {
    "--cidr": "'ipamctl pool create CIDR' makes a pool; this command reads resources from a file: -f FILE.",
    "--show-labels": "'-o yaml' shows labels too.",
    "--selector": "'-o jsonpath=' and '-o name' help to choose; there are no label selectors.",
    "--field-selector": "'-o jsonpath=' and '-o name' help to choose; there are no selectors.",
    "--grace-period": "Nothing waits here; leave it out.",
    "--ignore-daemonsets": "That is for 'kubectl drain'.",
    "--address": "It is --ip here.",
}

#: a word in place of a kind
KINDS: Mapping[str, str] = {
    **dict.fromkeys(
        ("pod", "pods", "po"),
        "Pods are workloadendpoints here: 'ipamctl get wep -A'; of one: 'ipamctl ipam explain NAMESPACE/POD'.",
    ),
    **dict.fromkeys(
        ("ip", "ips", "address", "addresses"),
        "'ipamctl ipam explain ADDRESS' says who holds one; 'ipamctl ipam show --node NODE' lists those of a node.",
    ),
    **dict.fromkeys(
        ("leak", "leaks", "leaked", "orphans"), "'ipamctl ipam check' finds leaks, 'ipamctl ipam gc' releases them."
    ),
    **dict.fromkeys(("all", "everything"), "'ipamctl ipam show --show-blocks' is the overview."),
    **dict.fromkeys(
        ("ns", "namespace", "namespaces", "svc", "service", "services"), "'kubectl get' shows what is Kubernetes' own."
    ),
}
