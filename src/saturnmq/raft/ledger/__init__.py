"""Files of the Raft log: data and index files, term and checkpoint files, recovery, retention, scrub."""

from typing import Final

INDEX_FILE_UNITS: Final = 5 * 1024 * 1024
