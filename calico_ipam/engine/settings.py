"""The cluster-wide IPAM settings (ipam-library §16)."""

from __future__ import annotations

from dataclasses import replace

from calico_ipam.datastore.api import Create, Update, Write
from calico_ipam.engine.world import CONFIG, Engine
from calico_ipam.errors import AlreadyExists, Conflict, NotFound
from calico_ipam.model.config import IPAMConfig


def get_config(engine: Engine) -> IPAMConfig:
    """Return the settings; the defaults when nothing is stored. Never writes."""
    entry = engine.store.read(CONFIG).entry(CONFIG)
    return entry.value if entry is not None else IPAMConfig()


def set_config(engine: Engine, config: IPAMConfig) -> None:
    """Store settings by compare-and-swap, so that nobody's change is lost (limit L20).

    Settings equal to the stored ones are not written again. Unknown fields of the stored document stay. Raises
    InvalidInput.
    """
    for _ in engine.retry.tries("storing the IPAM configuration"):
        entry = engine.store.read(CONFIG).entry(CONFIG)
        current = entry.value if entry is not None else IPAMConfig()
        wanted = replace(config, extra=current.extra)
        if entry is not None and wanted == current:
            return
        wanted.check()
        write: Write = Create(CONFIG, wanted) if entry is None else Update(entry, wanted)
        try:
            engine.store.commit(write)
        except (Conflict, AlreadyExists, NotFound):
            continue
        return
