"""What the roles say to each other, and what all of them need. Nothing here imports torch, zmq or a simulator."""
