"""The replicated commit log: Raft as DLedger 0.3.1.2 speaks it. `core` decides, the rest does. Source: spec 04."""
