cimport cython
from saturnmq.hot.numbers cimport int32, int64

cdef Py_ssize_t _UNIT_BYTES, _FILLER, _ADDRESS_MAX, _MAGIC, _RECORD_BYTES_MIN
cdef Py_ssize_t _AT_MAGIC, _AT_QUEUE_ID, _AT_QUEUE_OFFSET, _AT_PHYSICAL
cdef Py_ssize_t _DONE, _ELSEWHERE, _ODD
cdef Py_ssize_t _SIGN, _SPAN

cdef class Gathering:
    cdef bytes _units
    cdef object _file
    cdef const unsigned char[::1] _data
    cdef readonly list ranges
    cdef readonly Py_ssize_t total, count, scanned
    cdef readonly bint behind
    cdef Py_ssize_t _queue_id, _offset, _begin, _end, _at, _physical
    cdef Py_ssize_t _max_count, _on_disk, _first, _disk_bytes, _disk_count, _memory_bytes, _memory_count

    @cython.locals(outcome=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t)
    cpdef bint gather(self, log, frozenset codes, Py_ssize_t max_count, Py_ssize_t on_disk, tuple in_disk, tuple in_memory) except -1

    cdef int _end_range(self, Py_ssize_t start) except -1

    cpdef list views(self)

    @cython.locals(target="unsigned char[::1]", source="const unsigned char[::1]", at=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t)
    cpdef bytearray frame(self, bytes head)

    @cython.locals(at=Py_ssize_t, last_code=Py_ssize_t, code=Py_ssize_t, matches=bint, units=bytes, physical=Py_ssize_t, size=Py_ssize_t, head=Py_ssize_t)
    cdef Py_ssize_t _scan(self, Py_ssize_t start, Py_ssize_t end, frozenset codes) except -1

    @cython.locals(first=Py_ssize_t, second=Py_ssize_t, third=Py_ssize_t, fourth=Py_ssize_t, value=Py_ssize_t)
    cdef Py_ssize_t _int32(self, Py_ssize_t at) except? -1

    @cython.locals(high=Py_ssize_t, low=Py_ssize_t)
    cdef Py_ssize_t _int64(self, Py_ssize_t at) except? -1

@cython.locals(begin=Py_ssize_t, end=Py_ssize_t, total=Py_ssize_t, at=Py_ssize_t, physical=Py_ssize_t, size=Py_ssize_t)
cpdef list extents(bytes units, Py_ssize_t recent, Py_ssize_t bytes_max, Py_ssize_t gap_bytes)
