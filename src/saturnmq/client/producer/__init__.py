"""Producers: queue selection, send attempts, batches, transactions, request-reply."""
