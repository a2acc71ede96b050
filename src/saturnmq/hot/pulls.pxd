cimport cython
from saturnmq.hot.gather cimport Gathering
from saturnmq.hot.pull_header cimport PullHeader

cdef Py_ssize_t _COMMIT, _FLUSH_BYTES, _PREFIX_BYTES
cdef tuple _SERIALIZATIONS

cdef class Pulls:
    cdef object _context, _serves, _store, _check, _count, _encode, _admits
    cdef Py_ssize_t _length_max, _header_bytes_max, _count_max, _read_ahead
    cdef PullHeader _header
    cdef str _own_group
    cdef dict _counts

    @cython.locals(at=Py_ssize_t, header=PullHeader, began_ns=Py_ssize_t, gathering=Gathering, answer=bytearray)
    cpdef Py_ssize_t feed(self, bytes data, double until, connection) except -1

    cpdef dict finish(self)

    @cython.locals(header=PullHeader, group=str, topic=str, queue_id=Py_ssize_t, offset=Py_ssize_t, count=Py_ssize_t, gathering=Gathering, codes=frozenset)
    cdef Gathering _gathered(self, connection)

    @cython.locals(header=PullHeader, group=str, topic=str, queue_id=Py_ssize_t)
    cdef bytearray _answer(self, Gathering gathering, Py_ssize_t elapsed_ns, connection)
