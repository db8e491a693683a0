"""Replay of one shard: rows of many streams in a ring, windows of n steps drawn from it by priority."""
