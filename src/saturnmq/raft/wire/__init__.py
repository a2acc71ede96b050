"""DLedger's requests and responses as bytes."""
