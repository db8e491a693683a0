"""Replay: rows of many streams in the rings of shards; windows of n steps or sequences drawn from them by priority."""
