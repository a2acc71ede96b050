"""State tables of a broker: topics, groups, consumer offsets, live clients, filters, queue locks."""
