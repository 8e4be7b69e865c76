"""The same fit on many machines: data as parts by customer, models fitted on a Dask cluster.

Dask is imported when a cluster is connected to, not before.
"""

from turncoat.distributed.clusters import connect
from turncoat.distributed.fitting import fit
from turncoat.distributed.shards import Shard, ShardFolder, load_shards, write_shards

__all__ = ["Shard", "ShardFolder", "connect", "fit", "load_shards", "write_shards"]
