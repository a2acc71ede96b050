cimport cython
from saturnmq.hot.header cimport HeaderReader

cdef class SendHeader(HeaderReader):
    cdef public Py_ssize_t topic_at, topic_end, properties_at, properties_end
    cdef public Py_ssize_t queue_id, sys_flag, message_flag, reconsume_times
    cdef public Py_ssize_t born_ms
    cdef public bint asks, is_batch, properties_escaped, properties_plain
    cdef Py_ssize_t _letters
    cdef bint _short, _long

    @cython.locals(required=Py_ssize_t)
    cpdef bint read(self, bytes data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t serialization) except -1

    cdef bint _expects(self, Py_ssize_t code) except -1

    @cython.locals(name=bytes, letter=Py_ssize_t, bit=Py_ssize_t, number=Py_ssize_t)
    cdef bint _field(self, bytes data, Py_ssize_t key_at, Py_ssize_t key_end, Py_ssize_t at, Py_ssize_t end) except -1

cdef Py_ssize_t _V1, _V2, _BATCH, _ONEWAY, _INT32_MAX
cdef Py_ssize_t _A, _B, _E, _F, _G, _H, _I, _J, _M, _N
cdef dict _LETTERS
cdef bytes _CONFIRMATION
