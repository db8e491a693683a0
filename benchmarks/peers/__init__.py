"""rlctl beside other trainers: same work, same network, same reuse, in turn on one machine."""
