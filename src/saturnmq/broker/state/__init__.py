"""What a broker keeps: topics, groups, offsets, clients, filters, locks."""
