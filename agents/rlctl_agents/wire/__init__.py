"""Transport of all messages between roles: the only package that uses ZeroMQ. The protocol is docs/wire.md."""
