"""The replicated commit log: Raft, compatible with DLedger 0.3.1.2 on the wire and on disk.

`core` is a pure state machine; `ledger` owns the files, `wire` the encoding, and `driver` runs timers, disk and network around the
core. Requirements and algorithms: docs/spec/04-dledger.md.
"""
