"""A peer that behaves as DLedger 0.3.1.2."""
