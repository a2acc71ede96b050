"""Files of the store: mapped files, their cache, the lock file, state files, disk errors."""
