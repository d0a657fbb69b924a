"""``ipamctl ipam configure``: the IPAM settings of the cluster (cli §6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from calico_ipam.ctl.commands import Mirrored
from calico_ipam.ctl.failures import Told
from calico_ipam.ctl.flags import FALSE, TRUE, whole_number
from calico_ipam.ctl.options import yes_option
from calico_ipam.ctl.output import say
from calico_ipam.ctl.session import Session, common_options, confirm, pass_session

if TYPE_CHECKING:
    from calico_ipam.model.config import IPAMConfig


def _seconds(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int:
    """Return whole seconds; a negative number means not given, as upstream's default does."""
    try:
        return whole_number(text, any_base=True) if text is not None else -1
    except ValueError as error:
        raise Told(
            f'invalid argument "{text}" for "--ip-cooldown-seconds" flag: strconv.ParseInt: parsing "{text}": {error}',
            hint="Give whole seconds, from 0 to 1200.",
        ) from None


@click.command(cls=Mirrored)
@click.option(
    "--strictaffinity", metavar="BOOL", help="Nodes take addresses from their own blocks only: true or false."
)
@click.option("--strict-affinity/--no-strict-affinity", "strict", default=None, help="The same as a switch.")
@click.option("--max-blocks-per-host", metavar="NUMBER", help="Most blocks that a node may own; needs strict affinity.")
@click.option(
    "--kubevirt-ip-persistence", metavar="Enabled|Disabled", help="Whether virtual machines keep their address."
)
@click.option(
    "--ip-cooldown-seconds", callback=_seconds, metavar="SECONDS", help="How long a released address rests: 0 to 1200."
)
@click.option(
    "--auto-allocate-blocks/--no-auto-allocate-blocks",
    "auto",
    default=None,
    help="Whether nodes claim blocks by themselves.",
)
@yes_option
@click.option("--dry-run", is_flag=True, help="Show what would change and write nothing.")
@common_options
@pass_session
def configure(
    session: Session,
    /,
    strictaffinity: str | None,
    strict: bool | None,
    max_blocks_per_host: str | None,
    kubevirt_ip_persistence: str | None,
    ip_cooldown_seconds: int,
    auto: bool | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Change the IPAM settings of the cluster. What is not given stays as it is."""
    from calico_ipam.ctl.version import check_version
    from calico_ipam.engine.settings import get_config, set_config

    check_version(session, writes=not dry_run)
    given = _given(strictaffinity, max_blocks_per_host, kubevirt_ip_persistence, ip_cooldown_seconds)
    if strict is not None:
        given = {"strict_affinity": strict, **{k: v for k, v in given.items() if k != "strict_affinity"}}
    if auto is not None:
        given["auto_allocate_blocks"] = auto
    if not given:
        raise Told(
            "at least one configuration option must be specified", hint="'ipamctl ipam configure --help' lists them."
        )
    before = get_config(session.engine)
    after = _checked(before, given)
    if session.for_people:
        _show(before, after, given)
    if dry_run:
        if not session.for_people:
            _tell(after, given, "Would set")
        return
    if session.for_people:
        confirm(session, "Change these settings?", assume_yes=yes, refusal="nothing was changed.")
    try:
        set_config(session.engine, after)
    except _refused() as error:
        raise _told(error) from None
    _tell(after, given, "Successfully set")


def _given(strict: str | None, blocks: str | None, persistence: str | None, seconds: int) -> dict[str, Any]:
    """Return the settings that were given, in the order in which they are told. Raises Told."""
    found: dict[str, Any] = {}
    if strict:
        if strict not in TRUE | FALSE:
            raise Told(
                "invalid value. Use true or false to set strictaffinity", hint="For example --strictaffinity=true."
            )
        found["strict_affinity"] = strict in TRUE
    if blocks:
        try:
            found["max_blocks_per_host"] = whole_number(blocks)
        except ValueError:
            raise Told(
                "invalid value for maxblockhost. Use a valid number", hint="For example --max-blocks-per-host=20."
            ) from None
    if persistence:
        if persistence not in ("Enabled", "Disabled"):
            raise Told("invalid value for --kubevirt-ip-persistence. Use Enabled or Disabled")
        found["kubevirt_persistence"] = persistence
    if seconds >= 0:
        found["cooldown_seconds"] = seconds
    return found


def _checked(before: IPAMConfig, given: dict[str, Any]) -> IPAMConfig:
    from dataclasses import replace

    after = replace(before, **given)
    try:
        after.check()
    except _refused() as error:
        raise _told(error) from None
    return after


def _refused() -> type[Exception]:
    from calico_ipam.errors import RefusedError

    return RefusedError


_WAYS_OUT = {
    "MaxBlocksPerHost requires": "Give both: --strictaffinity=true --max-blocks-per-host=20; or 0 for no limit.",
    "Cannot disable": "One of the two must stay on.",
}


def _told(error: Exception) -> Told:
    hint = next((hint for text, hint in _WAYS_OUT.items() if str(error).startswith(text)), "")
    return Told(f"error: {error}", hint=hint or getattr(error, "hint", ""))


_TITLES = {
    "strict_affinity": "StrictAffinity",
    "max_blocks_per_host": "MaxBlocksPerHost",
    "kubevirt_persistence": "KubeVirtVMAddressPersistence",
    "cooldown_seconds": "IPCooldownSeconds",
    "auto_allocate_blocks": "AutoAllocateBlocks",
}


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _show(before: IPAMConfig, after: IPAMConfig, given: dict[str, Any]) -> None:
    for name in given:
        old, new = _shown(getattr(before, name)), _shown(getattr(after, name))
        say(f"{_TITLES[name]}: {old} → {new}" if old != new else f"{_TITLES[name]}: {old} (as it is)")


def _tell(config: IPAMConfig, given: dict[str, Any], verb: str) -> None:
    for name in given:
        say(f"{verb} {_TITLES[name]} to: {_shown(getattr(config, name))}")
