"""``calico -t``: can the datastore be reached with this configuration? (cni.md §1)"""

from __future__ import annotations

import re
from pathlib import Path

from calico_cni import gojson, netconf, timers
from calico_cni.context import Call, Context
from calico_cni.errors import CONNECTION_TEST, CNIError
from calico_cni.logs import PLUGIN, Log
from calico_cni.node import reason
from calico_cni.plugin.readiness import check_ready
from calico_cni.protocol import Request, Response
from calico_ipam.datastore.api import Datastore, Deadline
from calico_ipam.errors import IPAMError

_NAME = re.compile(r"[a-zA-Z0-9_.\-]+")


def test_connection(request: Request, context: Context) -> Response:
    """Return an empty response, or error 100 whose details say what failed. Nothing but the datastore is looked at."""
    try:
        _test(request, context)
    except (CNIError, IPAMError) as error:
        return Response.error(CNIError("data store connection failed", str(error), code=CONNECTION_TEST))
    return Response()


def _test(request: Request, context: Context) -> None:
    try:
        document = gojson.load(request.stdin)
    except gojson.GoJSONError as error:
        raise CNIError(f"failed to load netconf: {error}") from None
    if not isinstance(document, dict):
        raise CNIError("failed to load netconf: it is no JSON object")
    conf = netconf.load(document)
    if not _NAME.fullmatch(conf.name):
        raise CNIError(
            "invalid characters detected in the given network name. "
            "Only letters a-z, numbers 0-9, and symbols _.- are supported"
        )
    call = Call(request, conf, context, Log(PLUGIN))
    with call.store() as store:
        check_ready(store, timers.CONNECTION_TEST)
        if conf.kubeconfig:
            _test_kubernetes(call, store)


def _test_kubernetes(call: Call, store: Datastore) -> None:
    """Ask the API server for its version, which needs no right."""
    kubeconfig = call.conf.kubeconfig
    try:
        Path(kubeconfig).stat()
    except OSError as error:
        raise CNIError(f"error building K8s client config: stat {kubeconfig}: {reason(error)}") from None
    cluster = call.cluster(store).within(Deadline.after(timers.CONNECTION_TEST))
    try:
        cluster.version()
    except IPAMError as error:
        raise CNIError(f"unable to connect to K8s server: {error}") from error
