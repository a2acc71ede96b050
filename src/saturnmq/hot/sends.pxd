cimport cython
from saturnmq.hot.answer_frame cimport AnswerFrame, OpaqueFrame
from saturnmq.hot.halves cimport EndHeader, HalfProperties, HalfRecord
from saturnmq.hot.header cimport unescaped
from saturnmq.hot.numbers cimport int32, put32, put64
from saturnmq.hot.send_header cimport SendHeader

cdef Py_ssize_t _ONEWAY, _TRANSACTION, _COMMIT, _END_CODE, _STORED_FLAGS, _GROUP_LENGTH_MAX, _FIXED_BYTES, _PROPERTIES_MAX, _CLOCK_FRAMES, _CODES_MAX
cdef Py_ssize_t _PREFIX_BYTES, _HOST_BYTES, _BATCH_MAX, _ENTRY_BYTES, _PAIR_END
cdef Py_ssize_t _AT_SIZE, _AT_MAGIC, _AT_CRC, _AT_QUEUE_ID, _AT_FLAG, _AT_QUEUE_OFFSET, _AT_PHYSICAL, _AT_SYS_FLAG, _AT_BORN_MS
cdef Py_ssize_t _AT_BORN_HOST, _AT_STORE_MS, _AT_STORE_HOST, _AT_RECONSUME, _AT_PREPARED, _AT_BODY_BYTES
cdef bytes _OPERATION_TAGS
cdef tuple _SERIALIZATIONS

cdef class QueueBatch:
    cdef readonly object topic, queue
    cdef readonly Py_ssize_t queue_id, first_offset, next_offset, bytes, requests
    cdef readonly bytes topic_block
    cdef readonly list units

cdef class Sends:
    cdef object _context, _serves, _put_soon, _admits, _store, _confirmation, _space, _answers, _stating, _transactions
    cdef Py_ssize_t _small_bytes, _unflushed_bytes, _length_max, _header_bytes_max, _body_bytes_max
    cdef SendHeader _header
    cdef EndHeader _end_header
    cdef HalfRecord _half
    cdef HalfProperties _half_properties
    cdef OpaqueFrame _ended
    cdef bytes _suffix, _host, _tags
    cdef object _store_host
    cdef str _ip
    cdef bytearray _head, _operation_head, _length
    cdef dict _codes, _topics, _system
    cdef list _records, _sums
    cdef Py_ssize_t _file_start, _file_end, _end, _durable, _store_ms
    cdef Py_ssize_t _wait_at, _wait_end
    cdef bint _has_cluster, _has_sums, _indexed, _is_open, _is_soon, _is_full, _is_half, _takes_halves
    cdef dict _taken
    cdef Py_ssize_t _began_ns

    @cython.locals(at=Py_ssize_t, count=Py_ssize_t, host=bytes, out=list)
    cpdef Py_ssize_t feed(self, bytes data, double until, object reader) except -1

    @cython.locals(head=bytearray, operation=bytearray)
    cdef bint _begin(self) except -1

    @cython.locals(serialization=Py_ssize_t, body_at=Py_ssize_t, frame_end=Py_ssize_t, body_bytes=Py_ssize_t, size=Py_ssize_t, header=SendHeader, batch=QueueBatch, properties=bytes, topic=bytes, first=Py_ssize_t)
    cdef bint _take(self, bytes data, Py_ssize_t at, object reader, list answers) except -1

    @cython.locals(header=SendHeader, frame=AnswerFrame, answer=bytes, offset=Py_ssize_t, physical=Py_ssize_t)
    cdef bytes _answer(self, object encoder, Py_ssize_t serialization, QueueBatch batch, Py_ssize_t first)

    @cython.locals(queues=dict, batch=QueueBatch)
    cdef QueueBatch _batch_of(self, bytes name, Py_ssize_t queue_id)

    @cython.locals(batch=QueueBatch)
    cdef QueueBatch _system_batch(self, str topic)

    cdef bint _is_plain(self, str topic, Py_ssize_t queue_id) except -1

    @cython.locals(group=str)
    cdef QueueBatch _half_batch(self, bytes name)

    @cython.locals(fields=HalfProperties, operations=QueueBatch, op_floor=Py_ssize_t)
    cdef int _note_half(self, QueueBatch batch) except -1

    @cython.locals(frame=SendHeader, header=EndHeader, half=HalfRecord, batch=QueueBatch, operations=QueueBatch, size=Py_ssize_t, operation_size=Py_ssize_t, now_ms=Py_ssize_t, digits=bytes, properties=bytes, head=bytearray)
    cdef bint _end_transaction(self, bytes data, Py_ssize_t at, list answers) except -1

    @cython.locals(header=SendHeader, properties=bytes, fields=HalfProperties, topic=bytes)
    cdef bytes _properties(self, bytes data)

    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, start=Py_ssize_t, first=Py_ssize_t)
    cdef bint _look_through(self, bytes properties) except -1

    @cython.locals(entries=list, room=Py_ssize_t, total=Py_ssize_t, flag=Py_ssize_t, body_bytes=Py_ssize_t, body_end=Py_ssize_t, properties_at=Py_ssize_t, properties_end=Py_ssize_t, first=Py_ssize_t, second=Py_ssize_t, size=Py_ssize_t, properties=bytes, tags=bytes, common_tags=bytes)
    cdef bint _append_entries(self, QueueBatch batch, bytes data, Py_ssize_t at, Py_ssize_t end, bytes common) except -1

    @cython.locals(header=SendHeader, head=bytearray)
    cdef int _append(self, QueueBatch batch, bytes body, bytes properties, Py_ssize_t size, Py_ssize_t flag, Py_ssize_t reconsume_times) except -1

    @cython.locals(end=Py_ssize_t, at=Py_ssize_t, properties_bytes=Py_ssize_t, record=bytes)
    cdef int _write(self, QueueBatch batch, bytearray head, bytes body, bytes properties, Py_ssize_t size) except -1

    cdef object _code(self)

    @cython.locals(batch=QueueBatch, batches=list, appends=Py_ssize_t, elapsed_ns=Py_ssize_t, each_ns=Py_ssize_t, taken=dict)
    cpdef dict finish(self)

@cython.locals(at=Py_ssize_t)
cdef Py_ssize_t _find(bytes properties, bytes name) except? -1

@cython.locals(end=Py_ssize_t)
cdef bytes _without(bytes properties, Py_ssize_t at)
