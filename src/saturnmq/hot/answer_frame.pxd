cimport cython
from saturnmq.hot.numbers cimport put32

cdef Py_ssize_t _ID_DIGITS, _LENGTH_BYTES
cdef bytes _OPAQUE_TEXT
cdef bytes _HEX

cdef class AnswerFrame:
    cdef bytearray _frame
    cdef Py_ssize_t _opaque_at, _opaque_digits, _id_at, _offset_at, _offset_digits

    @cython.locals(frame=bytearray, at=Py_ssize_t)
    cpdef bytes answer(self, Py_ssize_t opaque, Py_ssize_t queue_offset, Py_ssize_t physical_offset)

cdef class OpaqueFrame:
    cdef bytearray _head, _binary
    cdef bytes _tail

    @cython.locals(digits=bytes, length=Py_ssize_t)
    cpdef bytes answer(self, Py_ssize_t serialization, Py_ssize_t opaque)

@cython.locals(position=Py_ssize_t, quotient=Py_ssize_t)
cdef bint _put_digits(bytearray frame, Py_ssize_t at, Py_ssize_t digits, Py_ssize_t value) except -1
