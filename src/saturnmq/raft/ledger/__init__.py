"""Files of the Raft log: data and index files, term and checkpoint files, recovery, retention, scrub."""
