cimport cython

cdef Py_ssize_t _FIXED_BYTES, _PROPERTIES_MAX, _BODY_AT, _FLAG_AT, _LENGTH_AT, _NAME, _PAIR, _COUNTER_DIGITS
cdef bytes _KEYS, _UNIQUE, _TAGS, _DIGITS

cdef class Values:
    cdef const unsigned char[::1] _valid, _data
    cdef const int[::1] _offsets
    cdef Py_ssize_t _first, begin
    cdef bint _has_nulls

    @cython.locals(at=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t)
    cdef Py_ssize_t find(self, Py_ssize_t row) except? -1

    @cython.locals(at=Py_ssize_t)
    cdef bint has_separator(self, Py_ssize_t size) except -1

    @cython.locals(end=Py_ssize_t)
    cdef Py_ssize_t copy(self, unsigned char[::1] out, Py_ssize_t at, Py_ssize_t size) except -1

cdef class BatchRows:
    cdef Py_ssize_t _rows, _body_max
    cdef Values _body, _tags, _keys
    cdef bint _has_tags, _has_keys, _has_flags
    cdef const int[::1] _flags
    cdef bytes _tail
    cdef readonly Py_ssize_t size
    cdef readonly bint is_odd

    @cython.locals(fixed=Py_ssize_t, count=Py_ssize_t, total=Py_ssize_t, size=Py_ssize_t)
    cpdef Py_ssize_t measure(self, Py_ssize_t row, Py_ssize_t count_max, Py_ssize_t used, Py_ssize_t bytes_max, Py_ssize_t id_bytes) except -1

    @cython.locals(body=Py_ssize_t, properties=Py_ssize_t, size=Py_ssize_t)
    cdef Py_ssize_t _row_bytes(self, Py_ssize_t row, Py_ssize_t fixed) except? -1

    @cython.locals(at=Py_ssize_t, current=Py_ssize_t)
    cpdef write(self, unsigned char[::1] out, Py_ssize_t row, Py_ssize_t count, bytes id_prefix, Py_ssize_t number)

    @cython.locals(start=Py_ssize_t, size=Py_ssize_t, length_at=Py_ssize_t, shift=Py_ssize_t)
    cdef Py_ssize_t _write(self, unsigned char[::1] out, Py_ssize_t at, Py_ssize_t row, bytes id_prefix, Py_ssize_t number) except -1

@cython.locals(place=Py_ssize_t)
cdef int _put(unsigned char[::1] out, Py_ssize_t at, Py_ssize_t value, Py_ssize_t size) except -1

@cython.locals(end=Py_ssize_t, place=Py_ssize_t)
cdef Py_ssize_t _put_bytes(unsigned char[::1] out, Py_ssize_t at, bytes text) except -1
