"""The map of pools as one file that a browser shows: the collector's page, of what the datastore holds (ruling 18)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calico_ipam.ctl.session import Session


def page(session: Session, pool: str) -> str:
    """Return the page; ``pool`` empty: of all pools. Raises NotConfigured when its package is not installed."""
    from calico_ipam.errors import NotConfigured

    try:
        from calico_gc.web.onefile import one_file
        from calico_gc.web.site import templates
        from calico_gc.web.stored import PAGES, view_of_store

        made = templates()
    except ModuleNotFoundError as error:
        raise NotConfigured(
            f"pages need the package {error.name}, which is not installed",
            hint="pip install 'calico-ipam[gc]'; 'ipamctl ipam map' draws in the terminal without it.",
        ) from None
    view = view_of_store(session.store, session.engine.clock.now(), pool)
    return "".join(one_file(view, made, origin=f"IP pools of {session.store.name}", pages=PAGES))
