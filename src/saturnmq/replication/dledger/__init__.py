"""The message store of a broker in a DLedger group: the replicated ledger takes the place of the commit log."""
