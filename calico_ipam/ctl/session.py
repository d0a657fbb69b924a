"""What the commands of one ipamctl call share: the options given anywhere, and the datastore, opened when needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from calico_ipam.ctl.output import FORMATS, Column, Format, Row, note, table

if TYPE_CHECKING:
    from calico_ipam.datastore.api import Datastore
    from calico_ipam.datastore.settings import Settings
    from calico_ipam.engine.client import IPAM
    from calico_ipam.engine.world import Engine
    from calico_ipam.model.resource import Resource

#: seconds in which the server of a datastore must answer the first time; upstream waits for etcd for ever (cli §1.4)
PATIENCE = 8.0

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
        self.color = "auto"  #: or ``always``, ``never``
        self.compat = False  #: calicoctl's words exactly, wherever output goes
        self.mirrored = False  #: the command is one that calicoctl has too
        self.allow_version_mismatch = False
        self.kube_context: str | None = None
        self.environ: Mapping[str, str] = os.environ
        self.makes_store = False
        self.patience = PATIENCE
        self._settings: Settings | None = None
        self._opened: Datastore | None = None
        self._greeted = False
        self._cluster: Resource | None = None

    @property
    def store(self) -> Datastore:
        """The datastore, opened at the first use. Raises TransientError soon when its server does not answer."""
        from calico_ipam.errors import IPAMError, NotConfigured, TransientError

        opened = self.open()
        if not self._greeted and self.settings.datastore_type != "sqlite":
            try:
                self.cluster()
            except (TransientError, NotConfigured):
                raise
            except IPAMError:
                self._greeted = True  # it answers; what it says of this one object is for those who ask for it
        return opened

    def cluster(self) -> Resource | None:
        """Return what the cluster says about itself, as read at the first contact; None when it says nothing."""
        from calico_ipam.datastore.api import Deadline
        from calico_ipam.errors import DeadlineExceeded, NotFound, StoreUnavailable
        from calico_ipam.model.keys import ResourceKey
        from calico_ipam.model.resource import CLUSTER_INFORMATION

        if not self._greeted:
            hurried = self.open().within(Deadline.after(self.patience))
            try:
                self._cluster = hurried.get(ResourceKey(CLUSTER_INFORMATION, "default")).value
            except NotFound:
                self._cluster = None
            except DeadlineExceeded as error:
                raise StoreUnavailable(
                    f"the datastore {hurried.name} did not answer within {self.patience:g} seconds",
                    subject=hurried.name,
                    hint=error.hint,
                ) from error
            self._greeted = True
        return self._cluster

    def open(self) -> Datastore:
        """Return the datastore; its server need not have answered yet."""
        if self._opened is None:
            _quieten()
            self._opened = self._open()
        return self._opened

    @property
    def settings(self) -> Settings:
        """How the datastore is reached."""
        if self._settings is None:
            from calico_ipam.datastore.config import load_settings

            settings = load_settings(self.datastore, environ=self.environ, config_file=self.config)
            if self.kube_context:
                from dataclasses import replace

                settings = replace(settings, k8s_current_context=self.kube_context)
            self._settings = settings
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
        """True when the result is to be a document, such as JSON, YAML or CSV."""
        return self.output in ("json", "yaml", "csv", "name") or self.output.startswith("jsonpath=")

    @property
    def for_people(self) -> bool:
        """True when a person reads the result, and calicoctl's form of it was not asked for."""
        from calico_ipam.ctl.output import on_terminal

        return on_terminal() and not self.compat

    @property
    def colours(self) -> bool:
        """True when the reader sees colours and wants them."""
        if self.color_choice is not None:
            return self.color_choice
        return self.for_people and not self.environ.get("NO_COLOR")

    @property
    def color_choice(self) -> bool | None:
        """Whether --color asks for colours or forbids them; None leaves it to the terminal."""
        return {"always": True, "never": False}.get(self.color)

    def table(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """Write a table, for the reader there is."""
        table(columns, rows, people=self.for_people)

    def note(self, text: str, *, label: str = "note") -> None:
        """Write a line beside the result; calicoctl says nothing there. What only helps is for people."""
        from calico_ipam.ctl.output import errors_on_terminal

        if not self.compat and (label == "warning" or not self.mirrored or errors_on_terminal()):
            note(text, label=label, color=self.color_choice)

    def close(self) -> None:
        """Close what was opened."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _open(self) -> Datastore:
        from calico_ipam.datastore.config import open_datastore

        settings = self.settings
        if settings.fallback:
            self.note(f"no datastore is configured, so this is the one of this host: {settings.sqlite_path}")
        elif settings.source.startswith("the file ") and any(v in self.environ for v in _WHERE):
            self.note(f"settings come from {settings.source}; those in the environment are not used.")
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
        os.stat(path)  # noqa: PTH116  # pathlib is not needed otherwise, and costs 7 ms
    except (FileNotFoundError, NotADirectoryError):
        raise NotConfigured(
            f"there is no datastore {path}",
            subject=path,
            hint="'ipamctl init' makes one; or say where yours is: --datastore URL.",
        ) from None
    except OSError:
        return  # the datastore itself tells it best


class OutputFormat(click.ParamType):  # type: ignore[type-arg]  # generic in later versions of click only
    """One of the formats, or ``jsonpath=EXPRESSION``."""

    name = "FORMAT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text in FORMATS or text.startswith("jsonpath="):
            return text
        return self.fail(f"{text!r} is none of {', '.join(FORMATS)} and jsonpath=EXPRESSION.", param, ctx)

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(each) for each in (*FORMATS, "jsonpath=") if each.startswith(incomplete)]


class LogLevel(click.ParamType):  # type: ignore[type-arg]  # as above
    """How much of what happens inside is told."""

    name = "LEVEL"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        if str(value).lower() in (*LOG_LEVELS, *_MORE_LEVELS):
            return str(value).lower()
        from calico_ipam.ctl.failures import Told

        raise Told(
            f"unknown log level: {value}, expected one of: {', '.join(LOG_LEVELS)}",
            hint="Give one of these to --log-level.",
        )


LOG_LEVELS = ("panic", "fatal", "error", "warn", "info", "debug")
_MORE_LEVELS = ("warning", "trace")  #: calicoctl takes these too, and does not tell


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Keep a common option: given after the command it beats the one before."""
    if value is not None:
        setattr(context.ensure_object(Session), str(parameter.name), value)
        if parameter.name == "log_level":
            _log(value)
    return value


def _color(context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Keep when to use colours; click itself strips them from what is no terminal, unless it is told."""
    if value is not None:
        context.ensure_object(Session).color = value
        if value != "auto":
            context.find_root().color = context.color = value == "always"
    return value


def _switch(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    """Keep a common switch: given anywhere it is on."""
    if value:
        setattr(context.ensure_object(Session), str(parameter.name), True)
    return value


def _quieten() -> None:
    """Keep the library's warnings off standard error unless --log-level asks for them; commands tell what matters."""
    import logging

    logging.getLogger("calico_ipam").addHandler(logging.NullHandler())


def _log(level: str) -> None:
    """Send what happens inside to standard error, from ``level`` on."""
    import logging

    known = {"panic": logging.CRITICAL, "fatal": logging.CRITICAL, "warn": logging.WARNING, "trace": logging.DEBUG}
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
        "-l",
        "--log-level",
        type=LogLevel(),
        expose_value=False,
        callback=_remember,
        help="How much of what happens inside goes to standard error: " + ", ".join(LOG_LEVELS) + ".",
    ),
    click.option(
        "--context",
        "kube_context",
        metavar="NAME",
        expose_value=False,
        callback=_remember,
        help="The context of the kubeconfig to use.",
    ),
    click.option(
        "--allow-version-mismatch",
        is_flag=True,
        expose_value=False,
        callback=_switch,
        help="Go on although the cluster runs a version that this program does not know.",
    ),
    click.option(
        "--color",
        type=click.Choice(("auto", "always", "never")),
        expose_value=False,
        is_eager=True,
        callback=_color,
        help="When to use colours. Default: on a terminal, unless NO_COLOR is set.",
    ),
    click.option(
        "--compat",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_switch,
        help="Say exactly what calicoctl says, also on a terminal.",
    ),
)

_OUTPUT = click.option(
    "-o",
    "--output",
    "--format",
    "output",
    type=OutputFormat(),
    expose_value=False,
    callback=_remember,
    help="How to write the result: " + ", ".join(FORMATS) + " or jsonpath=EXPRESSION.",
)


def connection_options(command: Command) -> Command:
    """Add the options that every command takes, before or after its name, but the one for the output's format."""
    for option in reversed(_COMMON):
        command = option(command)
    return command


def common_options(command: Command) -> Command:
    """Add the options that every command takes, before or after its name."""
    return connection_options(_OUTPUT(command))


def group_options(group: Command) -> Command:
    """Add the options that every command takes to a group: ``ipam --context c show`` (cli §1.2). Its help leaves
    them to the commands."""
    connection_options(group)
    for parameter in getattr(group, "params", ()):
        if isinstance(parameter, click.Option):
            parameter.hidden = True
    return group


pass_session = click.make_pass_decorator(Session, ensure=True)


def confirm(session: Session, question: str, *, assume_yes: bool, refusal: str) -> None:
    """Ask a person; where nobody can be asked, go on. Raises click.Abort when the answer is no, or none."""
    from calico_ipam.ctl.output import can_ask

    if assume_yes or session.compat or not can_ask():
        return
    try:
        agreed = click.confirm(question, default=False, err=True)
    except click.Abort:
        click.echo(err=True)  # the cursor stands behind the question
        agreed = False
    if not agreed:
        note(refusal)
        raise click.Abort
