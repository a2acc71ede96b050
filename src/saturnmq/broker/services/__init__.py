"""Background services of a broker: long polling, delay, timer, transactions, registration, statistics."""
