"""Loading data: batches of each host become arrays of all devices, sharded by name and prefetched."""

from ._local_rows import LocalRows as LocalRows, find_local_rows as find_local_rows
from ._sharded_loader import ShardedLoader as ShardedLoader
