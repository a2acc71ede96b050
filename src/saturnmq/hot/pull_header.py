"""Reads the header of a plain pull request: see `header.py`.

A plain pull asks for messages of a queue with the fields that clients of RocketMQ 4.9 send, none repeated, all numbers written in
digits. `read` accepts only headers of which the reference implementation (`broker/requests/pull.py`) reads the same values.
`pull_header.pxd` declares types for Cython.
"""

from __future__ import annotations

from saturnmq.hot.header import HeaderReader
from saturnmq.protocol.codes import PullSysFlag, RequestCode

_PULL, _LITE_PULL = int(RequestCode.PULL_MESSAGE), int(RequestCode.LITE_PULL_MESSAGE)
_FLAGS = int(PullSysFlag.COMMIT_OFFSET | PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION | PullSysFlag.LITE_PULL)
_INT32_MAX = 2**31 - 1
(_GROUP, _TOPIC, _QUEUE_ID, _OFFSET, _COUNT, _SYS_FLAG, _COMMIT, _SUBSCRIPTION, _KIND, _VERSION, _SUSPEND) = (
    1 << bit for bit in range(11)
)
_REQUIRED = _GROUP | _TOPIC | _QUEUE_ID | _OFFSET | _COUNT | _SYS_FLAG
_FIELDS = {
    b"consumerGroup": _GROUP,
    b"topic": _TOPIC,
    b"queueId": _QUEUE_ID,
    b"queueOffset": _OFFSET,
    b"maxMsgNums": _COUNT,
    b"sysFlag": _SYS_FLAG,
    b"commitOffset": _COMMIT,
    b"subscription": _SUBSCRIPTION,
    b"expressionType": _KIND,
    b"subVersion": _VERSION,
    b"suspendTimeoutMillis": _SUSPEND,
}


class PullHeader(HeaderReader):
    """The values of the last header that `read` accepted; commit_offset: -1 without one."""

    def __init__(self, fields_max: int, *, signed: bool = False) -> None:
        super().__init__(fields_max, signed=signed)
        self.group = self.topic = self.subscription = self.kind = ""
        self.queue_id = self.offset = self.count = self.sys_flag = self.version = 0
        self.commit_offset = -1

    def read(self, data: bytes, at: int, end: int, serialization: int) -> bool:
        """Whether the header in data[at:end] is that of a plain pull; the attributes have its values then."""
        # Optional fields: the values of the request before must not show through.
        self.version = 0
        self.commit_offset = -1
        self.subscription = self.kind = ""
        return (
            self._read(data, at, end, serialization)
            and self._present & _REQUIRED == _REQUIRED
            and self.flag == 0
            # A one-way pull has no answer and is the reference's; so are flags of filter classes.
            and self.sys_flag & ~_FLAGS == 0
        )

    def _expects(self, code: int) -> bool:
        """Whether it is the code of a pull."""
        return code in (_PULL, _LITE_PULL)

    def _field(self, data: bytes, key_at: int, key_end: int, at: int, end: int) -> bool:
        """Take the field named data[key_at:key_end] with the value data[at:end]; whether a plain pull has such a field."""
        bit = self._plain(_FIELDS, data[key_at:key_end])
        if bit == 0:
            return False
        if bit == _GROUP:
            self.group = data[at:end].decode()
        elif bit == _TOPIC:
            self.topic = data[at:end].decode()
        elif bit == _SUBSCRIPTION:
            self.subscription = data[at:end].decode()
        elif bit == _KIND:
            self.kind = data[at:end].decode()
        else:
            # An offset below 0 is answered by the reference.
            number = self._digits(data, at, end)
            if number < 0:
                return False
            if bit == _OFFSET:
                self.offset = number
            elif bit == _COMMIT:
                self.commit_offset = number
            elif bit == _VERSION:
                self.version = number
            # Its value is not needed: a pull that has to wait is never handled here.
            elif bit != _SUSPEND:
                if number > _INT32_MAX:
                    return False
                if bit == _QUEUE_ID:
                    self.queue_id = number
                elif bit == _COUNT:
                    self.count = number
                else:
                    self.sys_flag = number
        return True
