"""The operator's tools on a store that is not open: dump, verify, repair."""
