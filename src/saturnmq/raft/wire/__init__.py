"""Encoding of DLedger requests and responses: DLedger's JSON, and a binary form for pushes between SaturnMQ members."""
