cimport cython
from saturnmq.hot.header cimport HeaderReader
from saturnmq.hot.numbers cimport int16, int32, int64

cdef Py_ssize_t _END, _COMMIT, _ROLLBACK, _ONEWAY, _REQUIRED, _PAIR_END, _QUEUE_DIGITS, _HOSTS_V6, _MAGIC
cdef Py_ssize_t _GROUP, _QUEUE_OFFSET, _PHYSICAL, _DECISION, _FROM_CHECK, _ID, _TRANSACTION, _BROKER
cdef Py_ssize_t _AT_MAGIC, _AT_CRC, _AT_QUEUE_OFFSET, _AT_PHYSICAL, _AT_SYS_FLAG, _AT_BODY_BYTES, _HEAD_BYTES
cdef dict _FIELDS
cdef bytes _HALF_TOPIC

cdef class EndHeader(HeaderReader):
    cdef public bytes group
    cdef public Py_ssize_t queue_offset, physical
    cdef public bint is_commit

    cpdef bint read(self, bytes data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t serialization) except -1

    cdef bint _expects(self, Py_ssize_t code) except -1

    @cython.locals(bit=Py_ssize_t, number=Py_ssize_t)
    cdef bint _field(self, bytes data, Py_ssize_t key_at, Py_ssize_t key_end, Py_ssize_t at, Py_ssize_t end) except -1

cdef class HalfProperties:
    cdef public bytes group, topic, tags, immunity
    cdef public Py_ssize_t queue_id
    cdef public bint has_checks

    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, start=Py_ssize_t, first=Py_ssize_t)
    cpdef bint read(self, bytes properties) except -1

    @cython.locals(value=Py_ssize_t, position=Py_ssize_t)
    cdef bint _read_queue_id(self, bytes properties, Py_ssize_t at, Py_ssize_t end) except -1

cdef class HalfRecord:
    cdef public HalfProperties fields
    cdef public bytes head, body, properties
    cdef public Py_ssize_t queue_offset, sys_flag

    @cython.locals(size=Py_ssize_t, body_bytes=Py_ssize_t, topic_at=Py_ssize_t, topic_end=Py_ssize_t)
    cpdef bint read(self, bytes record, Py_ssize_t physical) except -1

cdef bint _is_text(bytes properties) except -1
