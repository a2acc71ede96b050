cimport cython
from saturnmq.hot.header cimport HeaderReader

cdef class PullHeader(HeaderReader):
    cdef public str group, topic, subscription, kind
    cdef public Py_ssize_t queue_id, offset, count, sys_flag, version, commit_offset

    cpdef bint read(self, bytes data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t serialization) except -1

    cdef bint _expects(self, Py_ssize_t code) except -1

    @cython.locals(bit=Py_ssize_t, number=Py_ssize_t)
    cdef bint _field(self, bytes data, Py_ssize_t key_at, Py_ssize_t key_end, Py_ssize_t at, Py_ssize_t end) except -1

cdef Py_ssize_t _PULL, _LITE_PULL, _FLAGS, _INT32_MAX, _REQUIRED
cdef Py_ssize_t _GROUP, _TOPIC, _QUEUE_ID, _OFFSET, _COUNT, _SYS_FLAG, _COMMIT, _SUBSCRIPTION, _KIND, _VERSION, _SUSPEND
cdef dict _FIELDS
