cimport cython
from saturnmq.hot.numbers cimport int16, int32

cdef Py_ssize_t _INT32_MAX, _DIGITS_MAX, _FIXED_BYTES, _PREFIX_BYTES
cdef Py_ssize_t _UPPER_MAX, _ACCESS_KEY, _SIGNATURE, _TOKEN
cdef dict _CREDENTIALS
cdef Py_ssize_t _CODE, _EXT, _FLAG, _LANGUAGE, _OPAQUE, _REMARK, _SERIALIZATION, _VERSION

cdef class HeaderReader:
    cdef public Py_ssize_t fields_max, code, flag, opaque, serialization, body_at, frame_end
    cdef readonly str access_key
    cdef readonly bytes signature
    cdef Py_ssize_t _at, _fields, _members, _credentials, _present
    cdef bint _escaped, _high, _signed
    cdef list _values

    cdef bint _expects(self, Py_ssize_t code) except -1

    cdef bint _field(self, bytes data, Py_ssize_t key_at, Py_ssize_t key_end, Py_ssize_t at, Py_ssize_t end) except -1

    @cython.locals(end=Py_ssize_t, length=Py_ssize_t, header_bytes=Py_ssize_t)
    cpdef bint find(self, bytes data, Py_ssize_t at, Py_ssize_t length_max, Py_ssize_t header_bytes_max) except -1

    cdef bint _read(self, bytes data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t serialization) except -1

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

    @cython.locals(value=bytes)
    cdef bint _take(self, bytes data, Py_ssize_t key_at, Py_ssize_t key_end, Py_ssize_t at, Py_ssize_t end) except -1

    @cython.locals(bit=Py_ssize_t)
    cdef Py_ssize_t _plain(self, dict bits, bytes name) except? -1

    @cython.locals(bit=Py_ssize_t)
    cdef bint _credential(self, bytes name, bytes value) except -1

    @cython.locals(values=list)
    cpdef bytes signed_data(self, bytes body)

    @cython.locals(value=Py_ssize_t, byte=Py_ssize_t, position=Py_ssize_t)
    cdef Py_ssize_t _digits(self, bytes data, Py_ssize_t at, Py_ssize_t end) except? -1

cpdef bytes unescaped(bytes value)
