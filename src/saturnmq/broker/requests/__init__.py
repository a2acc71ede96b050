"""One small handler per request code; `table` is the only list of them."""
