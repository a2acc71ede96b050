"""The pure heart of a replicated log: messages, ticks and completions in, an ordered list of actions out.

The caller's duties, in this order, for each list that a method of `Node` returns:
  1. Execute the actions one after the other, all of them, before the next input. An action that cannot be executed ends the
     list: drop the rest of it and call `Node.disk_failed`.
  2. PersistTerm is on disk (fsync) before the action behind it is executed. AppendEntries and CutLog need only be visible to the
     reader; SyncLog asks for a sync that is reported by `Node.synced` whenever it is done.
  3. For each Send, call `Node.response` exactly once: with the answer, or with None when there is none within the timeout.
  4. Call `Node.tick` with a clock that never goes back, at `Node.next_due_ms` or up to about 10 ms later. Every input changes
     that time, so it is read again after each list.

Nothing in this package reads a clock, a file or a socket, or makes a random number by itself. Source: spec 04, design section 6.
"""
