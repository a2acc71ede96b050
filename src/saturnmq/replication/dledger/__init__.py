"""The store over a DLedger group."""
