"""`python -m tests.backends.local.driver RUN ACTORS KILL_AT`: an `up` that kills itself at its KILL_AT-th step outside.

A step is a rename, a removal, a message to a socket or a started process: whatever another process could notice.
"""

import sys

from tests.backends.local.machine import Machine, role_plan
from tests.support.kills import Fuse

STEPS = ("os.rename", "os.remove", "os.mkdir", "os.symlink", "socket.connect", "subprocess.Popen", "shutil.rmtree")


def main() -> None:
    run, actors, fuse = sys.argv[1], int(sys.argv[2]), Fuse(int(sys.argv[3]))

    def count(event: str, _: object) -> None:
        if event in STEPS:
            fuse.step()

    machine = Machine()
    sys.addaudithook(count)
    machine.up(run, role_plan("manager"), role_plan("actor", actors, {"version": actors}))
    print(fuse.steps)


if __name__ == "__main__":
    main()
