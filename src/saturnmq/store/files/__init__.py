"""File layer of the store: mapped files, descriptor cache, lock file, state files, disk reserve."""
