"""The faults of spec 07, CHA-02 and CHA-09.

A fault lasts for some seconds and is healed by its caller. It returns whether the group could not serve until the heal:
the recovery time then counts from the heal (CHA-07).

Requirements: CHA-02, CHA-07, CHA-09.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from chaosgroup import Group
from chaosproxy import pause

if TYPE_CHECKING:
    from chaospair import Pair

HOUR_SECONDS: Final = 3600
Fault = Callable[[Group, float], Awaitable[bool]]


def some(group: Group, count: int) -> list[str]:
    return group.rng.sample(group.names, count)


def quorum(group: Group) -> int:
    return len(group.names) // 2 + 1


async def chosen(group: Group, whom: str) -> list[str]:
    """minor: as many as may fail; major: one more; random: any number; fixed: the first member; leader: the leader."""
    size = len(group.names)
    if whom == "leader":
        return [await group.leader()]
    if whom == "fixed":
        return group.names[:1]
    counts = {"minor": size - quorum(group), "major": quorum(group), "random": group.rng.randint(1, size)}
    return some(group, counts[whom])


def kill(whom: str) -> Fault:
    async def fault(group: Group, seconds: float) -> bool:
        names = await chosen(group, whom)
        await group.kill(*names)
        await pause(seconds)
        return len(group.names) - len(names) < quorum(group)

    return fault


def suspend(whom: str) -> Fault:
    async def fault(group: Group, seconds: float) -> bool:
        names = await chosen(group, whom)
        group.freeze(*names)
        await pause(seconds)
        return len(group.names) - len(names) < quorum(group)

    return fault


def partition(whom: str) -> Fault:
    """random: a random minority is cut off; fixed: the first member; leader: the leader."""

    async def fault(group: Group, seconds: float) -> bool:
        alone = some(group, len(group.names) - quorum(group)) if whom == "random" else await chosen(group, whom)
        group.network.partition(alone, [name for name in group.names if name not in alone])
        await pause(seconds)
        return False

    return fault


async def majorities_ring(group: Group, seconds: float) -> bool:
    """Every member reaches a majority, and no two members the same one."""
    ring = some(group, len(group.names))
    group.network.keep_only((ring[at - 1], name) for at, name in enumerate(ring))
    await pause(seconds)
    return True  # a ring may find no stable leader; it must lose nothing


async def bridge(group: Group, seconds: float) -> bool:
    """Two halves that only one member connects."""
    names = some(group, len(group.names))
    middle, half = names[0], len(names) // 2
    one, other = names[1 : half + 1], names[half + 1 :]
    group.network.partition(one, other)
    assert not any(middle in pair for pair in group.network.cut)
    await pause(seconds)
    return True


async def random_loss(group: Group, seconds: float) -> bool:
    group.network.loss = 0.2
    await pause(seconds)
    return False


async def one_way(group: Group, seconds: float) -> bool:
    """The others' messages reach the leader, its own do not reach them."""
    leader = await group.leader()
    group.network.cut = {(leader, other) for other in group.names if other != leader}
    await pause(seconds)
    return False


async def deaf(group: Group, seconds: float) -> bool:
    """The leader's messages reach the others; theirs, answers included, do not reach it."""
    leader = await group.leader()
    group.network.cut = {(other, leader) for other in group.names if other != leader}
    await pause(seconds)
    return False


async def flapping(group: Group, seconds: float) -> bool:
    leader = await group.leader()
    group.network.partition([leader], [name for name in group.names if name != leader])
    cut = group.network.cut
    for turn in range(10):
        await pause(seconds / 10)
        group.network.heal()
        group.network.cut = set() if turn % 2 == 0 else cut
    return True


async def kill_all(group: Group, seconds: float) -> bool:
    await group.kill(*group.names)
    await pause(seconds)
    return True


async def kill_during_recovery(group: Group, seconds: float) -> bool:
    """Kill the leader; as soon as it is back and catching up, kill all members."""
    first = await group.leader()
    await group.kill(first)
    await pause(seconds / 2)
    await group.members[first].start()
    await pause(group.rng.random() * 0.5)
    await group.kill(*group.names)
    await pause(seconds / 4)
    return True


async def rolling_restart(group: Group, seconds: float) -> bool:
    for name in group.names:
        assert await group.members[name].end(signal.SIGTERM) == 0
        await group.members[name].start()
        await group.members[name].ready()
        await pause(seconds / len(group.names))
    return True


def bad_disk(kind: str) -> Fault:
    async def fault(group: Group, seconds: float) -> bool:
        group.disk(await group.leader(), kind)
        await pause(seconds)
        return kind == "full"  # a leader with a full disk rejects sends and stays leader

    return fault


async def clock_jump(group: Group, seconds: float) -> bool:
    """The leader's wall clock jumps an hour ahead and another member's an hour back, then vice versa, then both are correct."""
    leader = await group.leader()
    pair = [leader, *(name for name in group.names if name != leader)][:2]
    for hours in ((1, -1), (-1, 1)):
        for name, ahead in zip(pair, hours, strict=False):
            group.jump(name, ahead * HOUR_SECONDS)
        await pause(seconds / 2)
    return False


async def noop(group: Group, seconds: float) -> bool:
    await pause(seconds)
    return False


FAULTS: Final[dict[str, Fault]] = {
    "noop": noop,
    **{f"{whom}-kill": kill(whom) for whom in ("minor", "major", "random", "fixed", "leader")},
    **{f"{whom}-suspend": suspend(whom) for whom in ("minor", "major", "random", "fixed", "leader")},
    "random-partition": partition("random"),
    "fixed-partition": partition("fixed"),
    "partition-majorities-ring": majorities_ring,
    "bridge": bridge,
    "random-loss": random_loss,
    # beyond OpenChaos
    "leader-partition": partition("leader"),
    "one-way": one_way,
    "leader-deaf": deaf,
    "flapping": flapping,
    "kill-all": kill_all,
    "kill-during-recovery": kill_during_recovery,
    "rolling-restart": rolling_restart,
    "clock-jump": clock_jump,
    "disk-full": bad_disk("full"),
    "disk-slow": bad_disk("slow"),
    "disk-eio": bad_disk("eio"),
}
FIVE: Final = ("partition-majorities-ring", "bridge")  # with three members they would be other faults


# ---- of a master and its slave


def of_pair(act: Callable[[Pair], Awaitable[object]], *, master: bool) -> Callable[[Any, float], Awaitable[bool]]:
    """Inflict and wait. master: whether the pair cannot serve until the heal in ASYNC_MASTER; in SYNC_MASTER it never can."""

    async def fault(pair: Pair, seconds: float) -> bool:
        await act(pair)
        await pause(seconds)
        return master or pair.sync

    return fault


async def cut_link(pair: Pair) -> None:
    pair.network.partition([pair.master], [pair.slave])


def suspend_one(whom: Callable[[Pair], str]) -> Callable[[Pair], Awaitable[object]]:
    async def act(pair: Pair) -> None:
        pair.freeze(whom(pair))

    return act


async def lose_master_disk(pair: Pair, seconds: float) -> bool:
    """The slave becomes the master, and the old master returns as its slave with an empty disk."""
    await pair.caught_up()
    return await take_over(pair, seconds)


async def take_over(pair: Pair, seconds: float, *, disk_lost: bool = True) -> bool:
    await pair.kill(pair.master)
    await pause(seconds)
    await pair.take_over(disk_lost=disk_lost)
    return True


async def lose_master_disk_behind(pair: Pair, seconds: float) -> bool:
    """The same while the slave is cut off and behind."""
    await pair.fall_behind()
    await pause(seconds / 2)
    return await take_over(pair, seconds / 2)


async def return_behind(pair: Pair, seconds: float) -> bool:
    """The old master returns with messages that the new one does not have, and is repaired as it says."""
    await pair.fall_behind()
    await pause(seconds / 2)
    await take_over(pair, seconds / 2, disk_lost=False)
    pair.network.heal()
    await pair.repair_slave()
    return True


async def lose_slave_disk(pair: Pair, seconds: float) -> bool:
    await pair.caught_up()
    await pair.kill(pair.slave)
    pair.empty(pair.slave)
    await pause(seconds)
    return pair.sync


FAULTS_OF_PAIRS: Final[dict[str, Callable[[Any, float], Awaitable[bool]]]] = {
    "pair-slave-kill": of_pair(lambda pair: pair.kill(pair.slave), master=False),
    "pair-master-kill": of_pair(lambda pair: pair.kill(pair.master), master=True),
    "pair-kill-both": of_pair(lambda pair: pair.kill(*pair.names), master=True),
    "pair-slave-suspend": of_pair(suspend_one(lambda pair: pair.slave), master=False),
    "pair-master-suspend": of_pair(suspend_one(lambda pair: pair.master), master=True),
    "pair-partition": of_pair(cut_link, master=False),
    "pair-slave-disk-lost": lose_slave_disk,
    "pair-master-disk-lost": lose_master_disk,
    "pair-master-disk-lost-behind": lose_master_disk_behind,
    "pair-old-master-returns": return_behind,
}


GOALS: Final = ("corrupt", "fsync-eio")  # chaosdamage.py


def faults_asked_for(only: str | None, seconds: float, among: Collection[str] = FAULTS) -> list[str]:
    """Fault names for the long run: all, or the one in CHAOS_FAULT; empty for the short run, or if it is a fault of others.

    Raises ValueError for an unknown name, since the short run would pass instead.
    """
    if only is None:
        return list(among) if seconds else []
    known = [*FAULTS, *FAULTS_OF_PAIRS, *GOALS]
    if only not in known:
        raise ValueError(f"CHAOS_FAULT={only}: no such fault; there are {', '.join(known)}")
    return [only] if only in among else []
