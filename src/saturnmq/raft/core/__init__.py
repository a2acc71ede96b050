"""The Raft state machine as a pure function: messages, ticks and completions in, an ordered list of actions out.

The caller's duties, for each list of actions that a method of `Node` returns:
  1. Execute all actions in order before the next input. If an action fails, drop the rest of the list and call
     `Node.disk_failed`.
  2. PersistTerm must be on disk (fsync) before the next action is executed. AppendEntries and CutLog need only be visible to
     the reader; SyncLog requests an fsync, whose completion is reported with `Node.synced` at any later time.
  3. For each Send, call `Node.response` exactly once: with the response, or with None if none arrived within the timeout.
  4. Call `Node.tick` with a monotonic clock, at `Node.next_due_ms` or up to about 10 ms later. Every input changes that time,
     so read it again after each list.

No module of this package reads a clock, a file or a socket, or generates random numbers; time and randomness are arguments.
Requirements and algorithms: docs/spec/04-dledger.md.
"""
