"""Sequences over processes: sharding one so that work is even, and a whole model over its shards."""

from regard.parallel.sequence_parallel import SequenceShards, sequence_parallel
from regard.parallel.shard_sequence import ShardedSequence, shard_sequence
from regard.parallel.sharded_cache import ShardedKVCache

__all__ = ["SequenceShards", "ShardedKVCache", "ShardedSequence", "sequence_parallel", "shard_sequence"]
