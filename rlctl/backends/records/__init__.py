"""What processes write, whatever target they run on: records out of lines, which are wanted, the last error."""
