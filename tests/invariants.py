"""What must hold of stored data after every operation (ipam-library §1, design §7, ruling 28).

``check_block`` looks at one block, ``check_store`` at everything a store holds. Both return one sentence for each
broken rule, always the same for the same damage, so that two states can be compared: ``new_violations`` and
``fallen_sequences`` tell what an operation made worse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from calico_ipam.datastore.api import Datastore, Entry
from calico_ipam.model.addresses import Network, overlaps
from calico_ipam.model.affinity import CONFIRMED, Affinity
from calico_ipam.model.block import Block
from calico_ipam.model.handle import WINDOWS_RESERVED, Handle
from calico_ipam.model.keys import Affinities, AffinityKey, BlockKey, Blocks, HandleKey, Handles


def check_block(block: Block) -> list[str]:
    """Return the broken rules of one block, as it is stored (not as it is between a change and its write)."""
    return [f"block {block.cidr}: {sentence}" for sentence in _block_rules(block)]


def _block_rules(block: Block) -> Iterator[str]:
    # Loading mends what is damaged; what it had to mend is what was broken.
    yield from block.problems
    size = block.cidr.num_addresses
    if len(block.allocations) != size:
        yield f"{len(block.allocations)} allocation slots for {size} addresses"
        return
    free = Counter(block.unallocated)
    yield from (f"ordinal {o} is {n} times in the free queue" for o, n in free.items() if n > 1)
    yield from (f"ordinal {o} of the free queue is outside" for o in free if not 0 <= o < size)
    taken = {o: i for o, i in enumerate(block.allocations) if i is not None}
    yield from (f"ordinal {o} is free and in use" for o in free if o in taken)
    yield from (f"ordinal {o} is neither free nor in use" for o in range(size) if o not in taken and o not in free)
    yield from (f"ordinal {o} has no attribute {i}" for o, i in taken.items() if not 0 <= i < len(block.attributes))
    used = set(taken.values())
    yield from (f"attribute {i} is of no address" for i in range(len(block.attributes)) if i not in used)
    cold = sum(1 for i in taken.values() if 0 <= i < len(block.attributes) and block.attributes[i].cold)
    held = len(taken) - cold
    if held + cold + len(block.unallocated) != size:
        yield f"{held} allocated + {cold} cooling + {len(block.unallocated)} free addresses are not {size}"
    for ordinal, number in block.sequence_for.items():
        if ordinal not in taken:
            yield f"ordinal {ordinal} has a sequence number and is not in use"
        elif number >= block.sequence_number:
            yield f"ordinal {ordinal} has sequence number {number}, not below the block's {block.sequence_number}"


def check_store(entries: Iterable[Entry]) -> list[str]:
    """Return the broken rules of all blocks, affinity rows and handles together."""
    found = list(entries)
    blocks = {e.key.cidr: e.value for e in found if isinstance(e.key, BlockKey) and not e.value.deleted}
    handles = {e.key.id: e.value for e in found if isinstance(e.key, HandleKey) and not e.value.deleted}
    rows = [(e.key, e.value) for e in found if isinstance(e.key, AffinityKey) and not e.value.deleted]
    sentences: list[str] = []
    for cidr, block in blocks.items():
        if block.cidr != cidr:
            sentences.append(f"block {cidr}: its document says {block.cidr}")
        sentences += check_block(block)
    sentences += _overlaps(blocks)
    sentences += _owners(blocks, rows)
    sentences += _handles(blocks, handles)
    return sentences


def _overlaps(blocks: Iterable[Network]) -> Iterator[str]:
    widest: Network | None = None  # of those that began so far, the one that reaches furthest
    for cidr in sorted(blocks, key=lambda n: (n.version, int(n.network_address), n.prefixlen)):
        if widest is not None and overlaps(widest, cidr):
            yield f"blocks {widest} and {cidr} overlap"
        else:
            widest = cidr


def _owners(blocks: dict[Network, Block], rows: list[tuple[AffinityKey, Affinity]]) -> Iterator[str]:
    confirmed: dict[Network, list[str]] = {}
    for key, row in rows:
        if row.state == CONFIRMED:
            confirmed.setdefault(key.cidr, []).append(str(key.owner))
    for cidr, owners in confirmed.items():
        if len(owners) > 1:
            yield f"block {cidr}: {', '.join(sorted(owners))} are its confirmed owners"
        block = blocks.get(cidr)
        for owner in owners:
            if block is None:
                yield f"block {cidr}: {owner} is its confirmed owner and it does not exist"
            elif block.affinity != owner:
                yield f"block {cidr}: {owner} is its confirmed owner, its own affinity is {block.affinity}"


def _handles(blocks: dict[Network, Block], handles: dict[str, Handle]) -> Iterator[str]:
    held: Counter[tuple[str, str]] = Counter()
    for cidr, block in blocks.items():
        for _, attribute in block.taken():
            if attribute.handle and not attribute.cold and attribute.clean_handle != WINDOWS_RESERVED:
                held[attribute.clean_handle, str(cidr)] += 1
    counted = {(name, cidr): number for name, handle in handles.items() for cidr, number in handle.blocks.items()}
    for name, place in sorted({*held, *counted}):
        count, really = counted.get((name, place), 0), held[name, place]
        if count != really:
            yield f"handle {name}: counts {count} in {place}, which has {really} of it"
    for name, handle in handles.items():
        if not handle.blocks:
            yield f"handle {name}: holds nothing"


def entries(store: Datastore) -> list[Entry]:
    """Return every block, affinity row and handle that can be read."""
    return [entry for scope in (Blocks(), Affinities(), Handles()) for entry in store.list(scope)]


def violations(store: Datastore) -> list[str]:
    """Return the broken rules of everything in a store, documents that cannot be read included."""
    listings = [store.list(scope) for scope in (Blocks(), Affinities(), Handles())]
    damaged = [f"{bad.path}: cannot be read: {bad.reason}" for listing in listings for bad in listing.damaged]
    return damaged + check_store(entry for listing in listings for entry in listing)


def new_violations(before: Iterable[str], after: Iterable[str]) -> list[str]:
    """Return the sentences of ``after`` that ``before`` did not have; damage that was there already does not count."""
    return list((Counter(after) - Counter(before)).elements())


def fallen_sequences(before: Iterable[Entry], after: Iterable[Entry]) -> list[str]:
    """Return the sequence numbers, of blocks and of their addresses, that are lower than they were."""
    old = {e.key: e.value for e in before if isinstance(e.key, BlockKey)}
    found = []
    for entry in after:
        block = old.get(entry.key) if isinstance(entry.key, BlockKey) else None
        if block is None:
            continue
        if entry.value.sequence_number < block.sequence_number:
            fall = f"from {block.sequence_number} to {entry.value.sequence_number}"
            found.append(f"block {block.cidr}: sequence number fell {fall}")
        for ordinal, number in block.sequence_for.items():
            now = entry.value.sequence_for.get(ordinal, number)
            if now < number:
                found.append(f"block {block.cidr}: sequence number of ordinal {ordinal} fell from {number} to {now}")
    return found
