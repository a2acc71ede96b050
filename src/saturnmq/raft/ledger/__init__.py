"""Files of the Raft log."""
