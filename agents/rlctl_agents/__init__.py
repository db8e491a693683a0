"""The role processes of rlctl: PyTorch and ZeroMQ."""
