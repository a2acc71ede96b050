"""Replication of the commit log between brokers.

`dledger` is the message store over a DLedger (Raft) group, `masterslave` copies a master's log to its slaves.
"""
