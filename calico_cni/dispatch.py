"""A Request and a Context become a Response: the order of checks that both plugins share (cni.md §2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from calico_cni import netconf, protocol
from calico_cni.context import Answer, Call, Context, Verb
from calico_cni.dataplane.errors import DataplaneError
from calico_cni.errors import BAD_ENVIRONMENT, BAD_NETNS, CNIError, cni_error
from calico_cni.logs import IPAM, PLUGIN, Log
from calico_cni.protocol import ADD, CALICO_IPAM, DEL, Request, Response
from calico_ipam.errors import IPAMError

#: Verbs for which a sandbox in the plugin's own namespace is refused before anything is done (§15.2).
_TOUCHES_NETNS = (ADD, DEL)


def handle(request: Request, context: Context) -> Response:
    """Do the call. Whatever happens inside, the caller gets a Response."""
    try:
        answer = _run(request, context)
    except CNIError as error:
        return Response.error(error)
    except Exception as error:  # the outermost guard: a defect must still be told as an error object (§1)
        return Response.error(_told(request, error))
    return Response(answer.text, 0, request.as_verb(DEL) if answer.fresh else None)


def _told(request: Request, error: Exception) -> CNIError:
    """Return what the runtime hears of an error; a defect leaves its trace in the log, not in the answer."""
    if isinstance(error, IPAMError | DataplaneError):
        return cni_error(error)
    import traceback

    log = Log(_logger(request))
    trace = "".join(traceback.format_exception(error))
    log.error("The plugin failed in a way that is a defect of it", command=request.command, trace=trace)
    program = "Calico CNI IPAM" if request.program == CALICO_IPAM else "Calico CNI"
    return CNIError(
        f"{program} panicked during {request.command}: {type(error).__name__}: {error}",
        "This is a defect of the plugin; its log holds where it happened.",
    )


def _run(request: Request, context: Context) -> Answer:
    protocol.check_environment(request.environ)
    if request.command == protocol.VERSION:
        return Answer(protocol.version_answer())
    document = protocol.read_document(request.stdin)
    verb = _verb(request)
    protocol.check_version(request.command, protocol.declared_version(document))
    if request.command in _TOUCHES_NETNS:
        check_namespace(request, context)
    conf = _with_version(netconf.load(document), request.program)
    with context.logging(conf.log):
        call = Call(request, conf, context, Log(_logger(request), _fields(request)))
        for key in conf.ineffective:
            call.log.warning("This key of the network configuration has no effect on the datastore's client", key=key)
        call.log.debug("Called", command=request.command, network=conf.name, version=conf.version)
        try:
            with _turn(call):
                return verb(call)
        except (CNIError, IPAMError, DataplaneError) as error:
            call.log.error("Failed", command=request.command, error=error)
            raise


def _turn(call: Call) -> AbstractContextManager[None]:
    """Return what keeps this call apart from others for the sandbox whose links it makes or removes."""
    request = call.request
    if request.program == CALICO_IPAM or request.command not in _TOUCHES_NETNS or not request.netns:
        return nullcontext()
    return call.context.turn(request.netns, call.log, call.context.stop.heed)


def check_namespace(request: Request, context: Context) -> None:
    """Refuse a sandbox that is the plugin's own namespace: its links are the host's (§2.2 step 6, §15.2)."""
    if request.netns and not request.allows_same_netns and context.same_namespace(request.netns):
        raise CNIError("plugin's netns and netns from CNI_NETNS should not be the same", code=BAD_NETNS)


def _with_version(conf: netconf.NetConf, program: str) -> netconf.NetConf:
    """Return the configuration with the version to print in when it tells none (§2.5)."""
    return conf if conf.version else replace(conf, version="0.1.0" if program == CALICO_IPAM else "0.2.0")


def _logger(request: Request) -> str:
    return IPAM if request.program == CALICO_IPAM else PLUGIN


def _fields(request: Request) -> Mapping[str, Any]:
    found = {"container": request.container_id, "interface": request.ifname}
    return {key: value for key, value in found.items() if value}


def _verb(request: Request) -> Verb:
    """Return what does the command; imported only now, so that each verb pays for itself alone. Raises CNIError."""
    match request.program, request.command:
        case protocol.CALICO, protocol.ADD:
            from calico_cni.plugin.add import add as verb
        case protocol.CALICO, protocol.DEL:
            from calico_cni.plugin.delete import delete as verb
        case protocol.CALICO, protocol.CHECK:
            from calico_cni.plugin.check import check as verb
        case protocol.CALICO, protocol.GC:
            from calico_cni.plugin.gc import collect as verb
        case protocol.CALICO, protocol.STATUS:
            from calico_cni.plugin.status import status as verb
        case protocol.CALICO_IPAM, protocol.ADD:
            from calico_cni.ipam.add import add as verb
        case protocol.CALICO_IPAM, protocol.DEL:
            from calico_cni.ipam.delete import delete as verb
        case protocol.CALICO_IPAM, protocol.CHECK:
            from calico_cni.ipam.check import check as verb
        case protocol.CALICO_IPAM, protocol.GC:
            from calico_cni.ipam.gc import collect as verb
        case protocol.CALICO_IPAM, protocol.STATUS:
            from calico_cni.ipam.status import status as verb
        case _:
            raise CNIError(f"unknown CNI_COMMAND: {request.command}", code=BAD_ENVIRONMENT)
    return verb
