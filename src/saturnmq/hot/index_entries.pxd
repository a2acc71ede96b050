cimport cython
from saturnmq.hot.numbers cimport int16, int32, int64

cdef Py_ssize_t _SIGN, _U32, _SPACE, _HEADER_BYTES, _SLOT_BYTES, _ENTRY_BYTES, _SECONDS_MAX
cdef Py_ssize_t _WAITING_BYTES, _KEY_BYTES
cdef Py_ssize_t _RECORD_BYTES_MIN, _HEAD_BYTES, _AT_PHYSICAL, _AT_SYS_FLAG, _AT_STORE_MS, _AT_BODY_BYTES
cdef Py_ssize_t _MAGIC, _V6, _TOPIC_BYTES_MAX, _TIME_END_MS, _TRANSACTION, _ROLLBACK
cdef bytes _UNIQUE_KEY, _KEYS

@cython.locals(count=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t, value=Py_ssize_t, words=Py_ssize_t, start=Py_ssize_t)
cpdef bint add_hashes(list items, Py_ssize_t prefix, bytes properties, physical_offset, store_ms, Py_ssize_t words_max) except -1

@cython.locals(start=Py_ssize_t, end=Py_ssize_t, last=Py_ssize_t, topic=bytes, prefix=Py_ssize_t, head=bytes, size=Py_ssize_t, body_bytes=Py_ssize_t, flag=Py_ssize_t, store_ms=Py_ssize_t, tail=bytes, topic_bytes=Py_ssize_t, properties_at=Py_ssize_t, name=bytes)
cpdef Py_ssize_t add_records(list items, data, tuple piece, Py_ssize_t at, bint skips_first, prefix_of, Py_ssize_t words_max, Py_ssize_t items_max, double until) except? -1

@cython.locals(keys=Py_ssize_t)
cpdef Py_ssize_t weight_of(bytes properties, Py_ssize_t words_max) except -1

@cython.locals(count=Py_ssize_t, weight=Py_ssize_t)
cpdef tuple weigh(list records, Py_ssize_t count_max, Py_ssize_t weight_max, Py_ssize_t words_max)

@cython.locals(at=Py_ssize_t, value_at=Py_ssize_t)
cdef Py_ssize_t _last(bytes properties, bytes name) except? -1

@cython.locals(position=Py_ssize_t, byte=Py_ssize_t)
cdef Py_ssize_t _hash(bytes text, Py_ssize_t at, Py_ssize_t end, Py_ssize_t value) except? -1

@cython.locals(slots=Py_ssize_t, entries_at=Py_ssize_t, used=Py_ssize_t, at=Py_ssize_t, number=Py_ssize_t, value=Py_ssize_t, physical_offset=Py_ssize_t, store_ms=Py_ssize_t, slot_at=Py_ssize_t, previous=Py_ssize_t, seconds=Py_ssize_t, first=Py_ssize_t, second=Py_ssize_t, third=Py_ssize_t, fourth=Py_ssize_t)
cpdef Py_ssize_t put_entries(unsigned char[::1] view, list items, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t count, tuple shape, Py_ssize_t begin_ms) except -1

cdef int _put32(unsigned char[::1] view, Py_ssize_t at, Py_ssize_t value) except -1
