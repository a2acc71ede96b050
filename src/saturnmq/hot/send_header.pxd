cimport cython
from saturnmq.hot.numbers cimport int16, int32

cdef class SendHeader:
    cdef public Py_ssize_t fields_max, code, flag, opaque
    cdef public Py_ssize_t topic_at, topic_end, properties_at, properties_end
    cdef public Py_ssize_t queue_id, sys_flag, message_flag, reconsume_times
    cdef public Py_ssize_t born_ms
    cdef public bint asks, is_batch, properties_escaped, properties_plain
    cdef Py_ssize_t _at
    cdef Py_ssize_t _fields, _letters, _members
    cdef bint _escaped, _high, _short, _long

    @cython.locals(required=Py_ssize_t)
    cpdef bint read(self, bytes data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t serialization) except -1

    @cython.locals(key_end=Py_ssize_t)
    cdef bint _read_json(self, bytes data, Py_ssize_t at, Py_ssize_t end) except -1

    @cython.locals(name=bytes, member=Py_ssize_t, length=Py_ssize_t)
    cdef bint _read_member(self, bytes data, Py_ssize_t key_at, Py_ssize_t key_end, Py_ssize_t end) except -1

    @cython.locals(key_at=Py_ssize_t, key_end=Py_ssize_t, value_at=Py_ssize_t)
    cdef bint _read_fields(self, bytes data, Py_ssize_t end) except -1

    @cython.locals(at=Py_ssize_t, byte=Py_ssize_t)
    cdef bint _skip_text(self, bytes data, Py_ssize_t end) except -1

    @cython.locals(at=Py_ssize_t, start=Py_ssize_t, value=Py_ssize_t, digits=Py_ssize_t, negative=bint)
    cdef Py_ssize_t _number(self, bytes data, Py_ssize_t end) except? -1

    @cython.locals(key_at=Py_ssize_t, key_end=Py_ssize_t, value_at=Py_ssize_t, value_bytes=Py_ssize_t, position=Py_ssize_t)
    cdef bint _read_binary(self, bytes data, Py_ssize_t at, Py_ssize_t end) except -1

    @cython.locals(name=bytes, letter=Py_ssize_t, bit=Py_ssize_t, number=Py_ssize_t)
    cdef bint _field(self, bytes data, Py_ssize_t key_at, Py_ssize_t key_end, Py_ssize_t at, Py_ssize_t end) except -1

@cython.locals(value=Py_ssize_t, byte=Py_ssize_t, position=Py_ssize_t)
cdef Py_ssize_t _digits(bytes data, Py_ssize_t at, Py_ssize_t end) except? -1

cdef Py_ssize_t _V1, _V2, _BATCH, _ONEWAY, _INT32_MAX, _DIGITS_MAX, _FIXED_BYTES
cdef Py_ssize_t _A, _B, _E, _F, _G, _H, _I, _J, _M, _N
cdef Py_ssize_t _CODE, _EXT, _FLAG, _LANGUAGE, _OPAQUE, _REMARK, _SERIALIZATION, _VERSION
cdef dict _LETTERS
cdef bytes _CONFIRMATION
