"""What the roles say to each other. Nothing here imports torch, zmq or a simulator."""
