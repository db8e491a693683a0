"""One program per peer, each run by the interpreter of that peer's own virtual environment: `PROGRAM TASK`.

TASK is pong, cartpole, native or solve; a program ends with exit code 2 for one that its peer cannot do. They import
nothing of this repository but `tell` and `nets`, which lie beside them.
"""
