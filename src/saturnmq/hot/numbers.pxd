cimport cython

cdef Py_ssize_t _SIGN, _SPAN

@cython.locals(first=Py_ssize_t, second=Py_ssize_t, value=Py_ssize_t)
cpdef Py_ssize_t int16(bytes data, Py_ssize_t at) except? -1

@cython.locals(first=Py_ssize_t, second=Py_ssize_t, third=Py_ssize_t, fourth=Py_ssize_t, value=Py_ssize_t)
cpdef Py_ssize_t int32(bytes data, Py_ssize_t at) except? -1

@cython.locals(high=Py_ssize_t, low=Py_ssize_t)
cpdef Py_ssize_t int64(bytes data, Py_ssize_t at) except? -1

cpdef int put32(bytearray data, Py_ssize_t at, Py_ssize_t value) except -1

cpdef int put64(bytearray data, Py_ssize_t at, Py_ssize_t value) except -1
