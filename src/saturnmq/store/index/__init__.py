"""Message index: the hash table on disk from topic and key to physical offset."""
