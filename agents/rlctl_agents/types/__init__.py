"""Messages between roles, and types that all of them use. Nothing here imports torch, zmq or a simulator."""
