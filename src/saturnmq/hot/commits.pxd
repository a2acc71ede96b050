cimport cython
from saturnmq.hot.answer_frame cimport OpaqueFrame
from saturnmq.hot.header cimport HeaderReader

cdef Py_ssize_t _COMMIT, _ONEWAY, _INT32_MAX, _PREFIX_BYTES, _CLOCK_FRAMES
cdef Py_ssize_t _GROUP, _TOPIC, _QUEUE_ID, _OFFSET, _ALL
cdef dict _FIELDS

cdef class CommitHeader(HeaderReader):
    cdef public str group, topic
    cdef public Py_ssize_t queue_id, offset

    cpdef bint read(self, bytes data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t serialization) except -1

    cdef bint _expects(self, Py_ssize_t code) except -1

    @cython.locals(bit=Py_ssize_t, number=Py_ssize_t)
    cdef bint _field(self, bytes data, Py_ssize_t key_at, Py_ssize_t key_end, Py_ssize_t at, Py_ssize_t end) except -1

cdef class Commits:
    cdef object _context, _serves, _check, _admits
    cdef Py_ssize_t _length_max, _header_bytes_max, _count
    cdef CommitHeader _header
    cdef OpaqueFrame _response

    @cython.locals(at=Py_ssize_t, count=Py_ssize_t, header=CommitHeader, out=list)
    cpdef Py_ssize_t feed(self, bytes data, double until, connection) except -1

    @cython.locals(header=CommitHeader, group=str, topic=str, queue_id=Py_ssize_t)
    cdef bint _take(self, connection) except -1

    @cython.locals(count=Py_ssize_t)
    cpdef dict finish(self)
