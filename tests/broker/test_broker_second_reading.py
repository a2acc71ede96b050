"""What a second reading of the broker found: bytes that no client of ours sends, and moments that no test waited for."""

from __future__ import annotations

import pytest
from wire import run, wire

from saturnmq.protocol.codes import SysFlag
from saturnmq.protocol.message import BatchItem


@pytest.mark.spec("MSG-02", "SND-10")
@pytest.mark.parametrize("flag", [SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6])
def test_a_sender_cannot_say_that_the_hosts_of_its_record_are_ipv6(flag: SysFlag) -> None:
    """The bits tell the layout of the record: with them set, nobody could read it, and a recovery would end the log there."""

    async def work() -> None:
        async with wire() as w:
            assert (await w.send(body=b"one", f=int(flag))).code == 0
            assert (await w.send_batch([BatchItem(b"two")], queue=0, f=int(flag))).code == 0
            assert [m.body for m in await w.messages()] == [b"one", b"two"]
            assert [m.sys_flag & int(flag) for m in await w.messages()] == [0, 0]

    run(work)
