"""Everything that roles send to each other: the only package that knows ZeroMQ. The protocol is docs/wire.md."""
