"""Reads the header of a plain send request: see `header.py`.

A plain send is one message, or a batch, for a queue that its header names, without a repeated or unknown field. `read` accepts only
headers for which the reference implementation (`broker/requests/send.py`) reads the same values. `send_header.pxd` declares types
for Cython.
"""

from __future__ import annotations

from saturnmq.hot.header import HeaderReader
from saturnmq.protocol.codes import CONFIRMATION_FIELD, RequestCode
from saturnmq.protocol.headers.send_fields import SEND_V2_BY_V1

_V1 = int(RequestCode.SEND_MESSAGE)
_V2 = int(RequestCode.SEND_MESSAGE_V2)
_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
_LETTERS = {name.encode(): ord(letter) for name, letter in SEND_V2_BY_V1.items()}
_CONFIRMATION = CONFIRMATION_FIELD.encode()
_ONEWAY = 2  # CommandFlag.ONEWAY
_INT32_MAX = 2**31 - 1
_A, _B, _E, _F, _G, _H, _I, _J, _M, _N = (ord(letter) for letter in "abefghijmn")


class SendHeader(HeaderReader):
    """The values of the last header that `read` accepted.

    topic and properties are positions in the frame; properties_escaped: the separators of properties are written as JSON escapes;
    properties_plain: all its bytes are ASCII. asks: the sender asks how its message is confirmed. is_batch: the body holds
    messages.
    """

    def __init__(self, fields_max: int, *, signed: bool = False) -> None:
        super().__init__(fields_max, signed=signed)
        self.topic_at = self.topic_end = self.properties_at = self.properties_end = 0
        self.queue_id = self.sys_flag = self.message_flag = self.reconsume_times = 0
        self.born_ms = 0
        self.asks = self.properties_escaped = self.is_batch = False
        self.properties_plain = True
        self._letters = 0
        self._short = self._long = False  # how fields are named

    def read(self, data: bytes, at: int, end: int, serialization: int) -> bool:
        """Whether the header in data[at:end] is that of a plain send; the attributes have its values then."""
        self._letters = 0
        self.properties_at = self.properties_end = self.reconsume_times = 0
        self.asks = self.properties_escaped = self.is_batch = self._short = self._long = False
        self.properties_plain = True
        if not self._read(data, at, end, serialization):
            return False
        if self.code == _BATCH:
            self.is_batch = True
        # producerGroup, topic, queueId, sysFlag, bornTimestamp and flag, by the letters of SendMessageRequestHeaderV2.
        required = 1 << (_B - _A) | 1 << (_E - _A) | 1 << (_F - _A) | 1 << (_G - _A) | 1 << (_H - _A) | 1
        return (
            self._letters & required == required
            and (self.flag == 0 or self.flag == _ONEWAY)
            # Code 310 and 320 name fields by letters, code 10 in full; a mixture is the reference's.
            and (
                ((self.code == _V2 or self.code == _BATCH) and not self._long) or (self.code == _V1 and not self._short)
            )
        )

    def _expects(self, code: int) -> bool:
        """Whether it is the code of a send."""
        return code in (_V2, _V1, _BATCH)

    def _field(self, data: bytes, key_at: int, key_end: int, at: int, end: int) -> bool:
        """Take the field named data[key_at:key_end] with the value data[at:end]; whether a plain send has such a field."""
        # A field of one letter: the V2 form.
        if key_end == key_at + 1:
            letter = data[key_at]
            if letter < _A or letter > _N:
                return False
            self._short = True
        else:
            name = data[key_at:key_end]
            if name == _CONFIRMATION:
                if self.asks or self._high or self._escaped:
                    return False
                self.asks = True
                return True
            letter = _LETTERS.get(name, 0)
            if letter == 0:
                return False
            self._long = True
        bit = 1 << (letter - _A)
        if self._letters & bit:
            return False
        self._letters |= bit
        # The only field with arbitrary text: looked through and decoded later, when a record is made of it.
        if letter == _I:
            self.properties_at, self.properties_end = at, end
            self.properties_escaped = self._escaped
            self.properties_plain = not self._high
            return True
        if self._escaped or self._high:
            return False
        if letter == _B:
            self.topic_at, self.topic_end = at, end
            return end > at
        # The body of a batch holds several messages; any other text than Java's booleans is the reference's.
        if letter == _M:
            self.is_batch = data[at:end] == b"true"
            return self.is_batch or data[at:end] == b"false"
        if letter == _G:
            self.born_ms = self._digits(data, at, end)
            return self.born_ms >= 0
        if letter in (_E, _F, _H, _J):
            number = self._digits(data, at, end)
            # Java ints; a negative queue id asks the broker to choose one.
            if number < 0 or number > _INT32_MAX:
                return False
            if letter == _E:
                self.queue_id = number
            elif letter == _F:
                self.sys_flag = number
            elif letter == _H:
                self.message_flag = number
            else:
                self.reconsume_times = number
        return True
