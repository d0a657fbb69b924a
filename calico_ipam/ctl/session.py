"""What the commands of one ipamctl call share: the options given anywhere, and the datastore, opened when needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from calico_ipam.ctl.output import FORMATS, Format, note

if TYPE_CHECKING:
    from calico_ipam.datastore.api import Datastore
    from calico_ipam.datastore.settings import Settings
    from calico_ipam.engine.client import IPAM
    from calico_ipam.engine.world import Engine

Command = TypeVar("Command", bound=Callable[..., Any])


class Session:
    """Options and open connections of one call.

    ``environ`` is the process environment. ``makes_store``: an embedded datastore that is not there is made.
    """

    def __init__(self) -> None:
        self.datastore: str | None = None
        self.config: str | None = None
        self.output: Format = "table"
        self.log_level = "panic"
        self.environ: Mapping[str, str] = os.environ
        self.makes_store = False
        self._settings: Settings | None = None
        self._store: Datastore | None = None

    @property
    def store(self) -> Datastore:
        """The datastore, opened at the first use."""
        if self._store is None:
            _quieten()
            self._store = self._open()
        return self._store

    @property
    def settings(self) -> Settings:
        """How the datastore is reached."""
        if self._settings is None:
            from calico_ipam.datastore.config import load_settings

            self._settings = load_settings(self.datastore, environ=self.environ, config_file=self.config)
        return self._settings

    @property
    def engine(self) -> Engine:
        """What engine functions work with."""
        from calico_ipam.engine.policy import Retry, SystemClock
        from calico_ipam.engine.world import Engine

        clock = SystemClock()
        return Engine(self.store, clock, Retry(clock=clock))

    @property
    def ipam(self) -> IPAM:
        """The library's facade on the same store."""
        from calico_ipam.engine.client import IPAM

        return IPAM(self.store)

    @property
    def wants_document(self) -> bool:
        """True when the result is to be JSON or YAML."""
        return self.output in ("json", "yaml")

    def close(self) -> None:
        """Close what was opened."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _open(self) -> Datastore:
        from calico_ipam.datastore.config import open_datastore

        settings = self.settings
        if settings.fallback:
            note(f"no datastore is configured, so this is the one of this host: {settings.sqlite_path}")
        elif settings.source.startswith("the file ") and any(v in self.environ for v in _WHERE):
            note(f"settings come from {settings.source}; those in the environment are not used.")
        if settings.datastore_type == "sqlite" and not self.makes_store:
            _check_there(settings.sqlite_path)
        return open_datastore(settings)


#: variables with which people say where the datastore is
_WHERE = tuple(
    prefix + name
    for name in ("DATASTORE_TYPE", "ETCD_ENDPOINTS", "KUBECONFIG", "SQLITE_PATH")
    for prefix in ("", "CALICO_")
)


def _check_there(path: str) -> None:
    """Refuse an embedded store that does not exist: only ``init`` makes one, a mistyped path must not."""
    from calico_ipam.errors import NotConfigured

    try:
        os.stat(path)  # noqa: PTH116 - pathlib is not needed otherwise, and costs 7 ms
    except (FileNotFoundError, NotADirectoryError):
        raise NotConfigured(
            f"there is no datastore {path}",
            subject=path,
            hint="'ipamctl init' makes one; or say where yours is: --datastore URL.",
        ) from None
    except OSError:
        return  # the datastore itself tells it best


LOG_LEVELS = ("panic", "fatal", "error", "warn", "info", "debug")


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Keep a common option: given after the command it beats the one before."""
    if value is not None:
        setattr(context.ensure_object(Session), str(parameter.name), value)
        if parameter.name == "log_level":
            _log(value)
    return value


def _quieten() -> None:
    """Keep the library's warnings off standard error unless --log-level asks for them; commands tell what matters."""
    import logging

    logging.getLogger("calico_ipam").addHandler(logging.NullHandler())


def _log(level: str) -> None:
    """Send what happens inside to standard error, from ``level`` on."""
    import logging

    known = {"panic": logging.CRITICAL, "fatal": logging.CRITICAL, "warn": logging.WARNING}
    logging.basicConfig(level=known.get(level, level.upper()), format="%(levelname)s %(name)s: %(message)s", force=True)


_COMMON = (
    click.option(
        "--datastore",
        metavar="URL",
        expose_value=False,
        callback=_remember,
        help="Where the data is, such as sqlite:///path/to/file. Default: the configuration file or the environment.",
    ),
    click.option(
        "-c",
        "--config",
        metavar="FILE",
        expose_value=False,
        callback=_remember,
        help="Datastore settings (YAML or JSON). Default: /etc/calico/calicoctl.cfg, if it exists.",
    ),
    click.option(
        "-o",
        "--output",
        "--format",
        "output",
        type=click.Choice(FORMATS),
        expose_value=False,
        callback=_remember,
        help="How to write the result.",
    ),
    click.option(
        "-l",
        "--log-level",
        type=click.Choice(LOG_LEVELS),
        expose_value=False,
        callback=_remember,
        help="How much of what happens inside goes to standard error.",
    ),
)


def common_options(command: Command) -> Command:
    """Add the options that every command takes, before or after its name."""
    for option in reversed(_COMMON):
        command = option(command)
    return command


pass_session = click.make_pass_decorator(Session, ensure=True)


def confirm(question: str, *, assume_yes: bool, refusal: str) -> None:
    """Ask a person; where nobody can be asked, go on. Raises click.Abort when the answer is no, or none."""
    from calico_ipam.ctl.output import can_ask

    if assume_yes or not can_ask():
        return
    try:
        agreed = click.confirm(question, default=False, err=True)
    except click.Abort:
        click.echo(err=True)  # the cursor stands behind the question
        agreed = False
    if not agreed:
        note(refusal)
        raise click.Abort
