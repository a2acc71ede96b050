"""Request handlers of a broker, one per request code; `table` lists them all."""
