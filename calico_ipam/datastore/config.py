"""Where the datastore is: settings from a URL, the environment, a file or a network configuration (datastore §11).

The only place that looks at the environment of the process when it is not handed one (rulings 17).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from calico_ipam.datastore.api import Datastore
from calico_ipam.datastore.settings import (
    ETCD,
    KUBERNETES,
    SQLITE,
    Settings,
    completed,
    from_environment,
    from_file,
    of_cluster,
    overlaid,
    split_endpoints,
)
from calico_ipam.errors import InvalidInput, NotConfigured

if TYPE_CHECKING:
    from calico_ipam.datastore.kube.cluster import Cluster

__all__ = [
    "DEFAULT_CONFIG_FILE",
    "Settings",
    "load_settings",
    "open_cluster",
    "open_datastore",
    "open_plugin_datastore",
    "plugin_settings",
]

_log = logging.getLogger(__name__)

ENVIRONMENT = "the environment"
DEFAULT_CONFIG_FILE = "/etc/calico/calicoctl.cfg"

#: variables whose presence says that somebody meant a datastore; the others only refine one
_TELLING = frozenset({"datastore_type", "etcd_endpoints", "etcd_discovery_srv", "kubeconfig", "k8s_api_endpoint"})


def open_datastore(
    where: str | Settings | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    config_file: str | Path | None = None,
) -> Datastore:
    """Open the datastore that ``where`` names, or that :func:`load_settings` finds.

    A fallback to the embedded store of this host is logged as a warning; who tells a person in another way loads the
    settings first and hands them in. Raises NotConfigured for a datastore this installation lacks, InvalidInput for bad
    settings, and the errors of the datastore itself.
    """
    if isinstance(where, Settings):
        return _opened(where)
    settings = load_settings(where, environ=environ, config_file=config_file)
    if settings.fallback:
        _log.warning("no datastore is configured: using the file %s of this host", settings.sqlite_path)
    return _opened(settings)


def open_plugin_datastore(netconf: Mapping[str, Any], environ: Mapping[str, str]) -> Datastore:
    """Open the datastore of a plugin call; see :func:`plugin_settings`.

    A plugin never makes an embedded store (rulings 3): it would be empty, and nobody's. So a path that is mistyped, or
    relative to wherever the runtime was started, is refused.
    """
    settings = plugin_settings(netconf, environ)
    if settings.datastore_type != SQLITE:
        return _opened(settings)
    path = settings.sqlite_path
    if not path.startswith("/"):
        raise InvalidInput(
            f"sqlite_path {path!r} is no absolute path",
            subject=path,
            hint="Write the whole path, for example /var/lib/calico/ipam/ipam.db.",
        )
    from calico_ipam.datastore.sqlite import SQLiteStore
    from calico_ipam.datastore.sqlite_file import Missing

    return SQLiteStore(path, missing=Missing.REFUSED)


def open_cluster(netconf: Mapping[str, Any], environ: Mapping[str, str], store: Datastore) -> Cluster:
    """Return the Kubernetes cluster of a plugin call: the API server that knows its pods (datastore §11).

    On the Kubernetes datastore it is the store's own connection, unless the network configuration has other
    credentials for it. Elsewhere it is a second one; where none is configured, the first question raises
    NotConfigured. Nothing is sent yet, and the store closes what is its own. Raises InvalidInput for bad settings.
    """
    from calico_ipam.datastore.kube.cluster import Cluster, NoServer

    settings = of_cluster(netconf, environ)
    api = getattr(store, "api", None) if store.capabilities.endpoints_are_pods else None
    if api is not None and settings == api.settings:
        return Cluster(api)
    if api is None and not (settings.kubeconfig or settings.k8s_api_endpoint or _inside_pod(environ)):
        return Cluster(NoServer(settings))
    from calico_ipam.datastore.kube.api import KubeApi

    return Cluster(KubeApi(settings))


def _inside_pod(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("KUBERNETES_SERVICE_HOST"))


def load_settings(
    url: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    config_file: str | Path | None = None,
) -> Settings:
    """Return settings from the first of: ``url``, ``config_file``, the default file, the environment, the default.

    A file is taken alone, without the environment. ``url`` is ``sqlite:///path``, ``etcd://host:2379,host:2379`` (with
    TLS: ``etcds://`` or ``https://``) or ``kubernetes://``; what it does not say (credentials, certificates, a
    kubeconfig) comes from file or environment.
    Nothing configured at all gives the embedded store of this host, with ``fallback`` set.
    """
    found, source = _configured(os.environ if environ is None else environ, config_file)
    if url:
        return completed(found | _from_url(url), url)
    if source != ENVIRONMENT or _TELLING & _set(found):
        return completed(found, source)
    if found.get("sqlite_path"):
        return completed(found | {"datastore_type": SQLITE}, source)
    return Settings(SQLITE, "the default, since no datastore is configured", fallback=True)


def plugin_settings(netconf: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Return the settings of a plugin call: the network configuration, gaps filled by the environment.

    Never the embedded store unless asked for by name (rulings 3): a configuration that lost its settings must fail, not
    hand out addresses from an empty store of its own.
    """
    return completed(from_environment(overlaid(netconf, environ)), "the network configuration")


def _configured(environ: Mapping[str, str], config_file: str | Path | None) -> tuple[dict[str, Any], str]:
    path = Path(DEFAULT_CONFIG_FILE if config_file is None else config_file)
    try:
        return from_file(path.read_text(encoding="utf-8"), str(path)), f"the file {path}"
    except (FileNotFoundError, NotADirectoryError):
        if config_file is not None and str(config_file) != DEFAULT_CONFIG_FILE:
            raise NotConfigured(
                f"Error reading config file: {path}", subject=str(path), hint="The file does not exist."
            ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise NotConfigured(
            f"Error reading config file: {path}", subject=str(path), hint=f"It cannot be read: {reason}."
        ) from None
    found = from_environment(environ)
    if environ.get("KUBERNETES_SERVICE_HOST") and not _TELLING & _set(found):
        found["datastore_type"] = KUBERNETES  # inside a pod, whose service account is the configuration
    return found, ENVIRONMENT


def _set(found: Mapping[str, Any]) -> set[str]:
    return {name for name, value in found.items() if value}


def _from_url(url: str) -> dict[str, Any]:
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise InvalidInput(
            f"{url} is no datastore URL",
            subject=url,
            hint="Write sqlite:///path/to/ipam.db, etcd://host:2379 or kubernetes://.",
        )
    match scheme:
        case "sqlite":
            return {"datastore_type": SQLITE, "sqlite_path": _sqlite_path(url, rest)}
        case "etcd" | "etcds" | "etcd+http" | "etcd+https" | "http" | "https":
            return {"datastore_type": ETCD, "etcd_endpoints": _etcd_endpoints(scheme, rest)}
        case "kubernetes":
            found = {"datastore_type": KUBERNETES}
            return found | ({"kubeconfig": unquote(urlsplit(url).path)} if rest.strip("/") else {})
    raise InvalidInput(
        f"unknown kind of datastore {scheme!r}", subject=scheme, hint="Known are sqlite, etcd and kubernetes."
    )


def _etcd_endpoints(scheme: str, rest: str) -> tuple[str, ...]:
    """Return the endpoints of ``etcd://a:2379,b:2379`` (``etcds://`` with TLS) or ``http://a:2379,http://b:2379``."""
    secure = "https" if scheme.endswith("s") else "http"
    endpoints = split_endpoints(rest)
    bare = [each.removeprefix(f"{secure}://").rstrip("/") for each in endpoints]
    if not bare or any("/" in each or "@" in each for each in bare):
        raise InvalidInput(
            "an etcd URL is etcd://host:2379,host:2379, or etcds:// with TLS, and nothing else",
            subject=scheme,
            hint="User and password go into ETCD_USERNAME and ETCD_PASSWORD.",
        )
    return tuple(f"{secure}://{each}" for each in bare)


def _sqlite_path(url: str, rest: str) -> str:
    path = unquote(rest)
    if not path.startswith("/") or path == "/":
        raise InvalidInput(
            f"{url} names no absolute path", subject=url, hint="Write three slashes: sqlite:///path/to/ipam.db."
        )
    return path


def _opened(settings: Settings) -> Datastore:
    if settings.datastore_type == SQLITE:
        from calico_ipam.datastore.sqlite import SQLiteStore

        return SQLiteStore(settings.sqlite_path)
    if settings.datastore_type == ETCD:
        from calico_ipam.datastore.etcd import EtcdStore

        return EtcdStore(settings)
    from calico_ipam.datastore.kube.store import KubernetesStore

    return KubernetesStore(settings)
