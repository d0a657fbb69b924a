"""Which blocks a process used last, so that its next call asks for them along with everything else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from calico_ipam.model.addresses import Network
from calico_ipam.model.affinity import BlockOwner
from calico_ipam.model.keys import BlockKey

#: more blocks than this are not asked for on a guess
MOST = 4


class Familiar:
    """Keys of the blocks of the last host that was worked for, per family; never what was in them.

    A guess saves a round trip and decides nothing: a block that is not what the call then finds it should be is read
    again. Safe between threads, which replace the whole and change nothing in it.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[BlockOwner | None, dict[int, tuple[BlockKey, ...]]] = (None, {})

    def of(self, owner: BlockOwner, versions: Iterable[int]) -> list[BlockKey]:
        """Return the blocks that an assignment for ``owner`` will probably look at."""
        last, keys = self._last
        return [key for version in versions for key in keys.get(version, ())] if last == owner else []

    def latest(self) -> list[BlockKey]:
        """Return the block of each family that addresses were taken from last."""
        return [keys[-1] for keys in self._last[1].values()]

    def note(self, owner: BlockOwner, version: int, looked: Sequence[Network]) -> None:
        """Remember the blocks that an assignment looked at, the one it took last from at the end."""
        last, keys = self._last
        others = {v: k for v, k in keys.items() if v != version} if last == owner else {}
        if 0 < len(looked) <= MOST:
            others[version] = tuple(BlockKey(cidr) for cidr in looked)
        self._last = (owner, others)
