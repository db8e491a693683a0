"""Messages of the roles to the manager and to the modelpool, and the replies."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec

from rlctl_agents.types.experience import Ledger, ModelRef, Schema
from rlctl_agents.types.figures import MAX_INFO, MAX_SHARES, Moments
from rlctl_agents.types.spaces import Spaces

MAX_FILM_BYTES = 2 << 20
Mode = Literal["greedy", "sample"]
"""Choice of an evaluator's actions: the policy's best, or samples from it."""
Channels = dict[str, str]  # channel -> address
Peers = dict[str, Channels]  # "role/index" -> channels
Word = Annotated[str, msgspec.Meta(max_length=64)]
"""Name or number of a process, bounded: a process with an actor's key may send any, and events show it."""
MOST_NAMES = 1_000
_NAMES, _BOOTS = msgspec.Meta(max_length=MOST_NAMES), msgspec.Meta(max_length=100_000)
"""Entries of maps in a report, at most, which are refused before they are decoded: a process with an actor's key may
send any."""


class Experience(msgspec.Struct, frozen=True):
    """Environment as described by a process that has the simulator: the learner's image has none."""

    spaces: Spaces
    schema: Schema
    frame_skip: int = 1  # simulator frames of one step


class Origin(msgspec.Struct, frozen=True):
    """Node and image of a process: they show whether a fault is that of a machine, or of a build."""

    node: Annotated[str, msgspec.Meta(max_length=253)] = ""  # of the cluster, else the host's name
    image: Annotated[str, msgspec.Meta(max_length=1000)] = ""  # with its digest; "": none
    settings: Annotated[str, msgspec.Meta(max_length=64)] = ""  # digest of its run file

    @property
    def build(self) -> str:
        """First 16 hex digits of the digest of the image; "" where it has none, and may hold anything."""
        return self.image.partition("@sha256:")[2][:16]

    def __str__(self) -> str:
        node = f"node {self.node}" if self.node else "an unknown node"
        return f"{node}, image {self.image}" if self.image else node


class Hello(msgspec.Struct, frozen=True):
    """The first message of a process. Repeating it with the same boot gives the same lease."""

    role: Word
    boot: Word  # 16 hex digits, new with every start of the process
    prefer: int | None = None  # index wanted, where the backend has ordinals: its former holder is surely gone
    run: Word = ""  # run uid; another run's manager refuses
    experience: Experience | None = None  # actor, evaluator; learner: where it reads other segments than were agreed
    streams: int = 0  # slots of this process
    origin: Origin = Origin()


class Generation(msgspec.Struct, frozen=True):
    """A committed checkpoint of one policy."""

    number: int
    policy: str
    term: int
    ref: ModelRef
    steps: int  # agent steps consumed so far
    created: float  # unix time
    parts: dict[str, str]  # part ("learner") -> file name below checkpoints/, immutable
    sha256: dict[str, str]  # part -> checksum
    absent: dict[str, str] = {}  # part that was wanted ("replay0") -> why it is not there


class Lease(msgspec.Struct, frozen=True):
    """Reply to Hello: index, addresses and settings of the process, or a reason to wait."""

    index: int
    term: int
    report_every_s: float
    bind: Channels  # where this process listens
    peers: Peers
    experience: Experience | None = None  # None: no hello has brought one yet, ask again
    match: Match | None = None
    generations: tuple[Generation, ...] = ()  # learner, replay: newest first, committed ones of its policy
    next_lineage: int = 0  # learner: the lineage that this boot opens
    stop_steps: int = 0  # learner: no update once its weights were learned from so many agent steps; 0: no limit
    learners: int = 1  # learner: how many step together; with more than one it has to `Enlist`
    shards: int = 1  # replay: number of shards that the capacity is divided among
    ticket: str = ""  # actor: its learner takes experience of leased boots only; "" where there are no keys
    leased_since_s: int = 0  # learner: unix time; boots with an older ticket were silent for long
    wait: str = ""  # why there is no lease yet, in words; then nothing else here counts, and it asks again


class Quota(msgspec.Struct, frozen=True):
    """Quota of an evaluation match: whole episodes, nothing learned."""

    episodes: int
    mode: Mode
    keep_above: float = math.inf  # for a mean return above it, the evaluator has the modelpool keep the model
    record: bool = False  # one more episode, as a film


class Match(msgspec.Struct, frozen=True):
    """Models in the seats of a game, and the seats that are learned from."""

    id: int
    seats: dict[int, ModelRef]  # version -1: the newest of that policy, followed as it changes
    learn: tuple[int, ...]  # seats whose rows become segments
    seed: int
    quota: Quota | None = None  # evaluation: learn is empty, refs are pinned


class Histogram(msgspec.Struct):
    """Counts per bucket since boot; the last bucket has no upper bound."""

    bounds: list[float]
    counts: list[int]
    total: float = 0.0  # sum of the values


class Average(msgspec.Struct):
    """Sum and count of values since boot: the difference of two readings gives the mean between them."""

    total: float
    count: int


class Account(msgspec.Struct):
    """A receiver's account of the rows of one sender boot."""

    ledger: Ledger  # newest seen from the sender
    received: int = 0
    lost: int = 0  # sent but missing: gaps in the sequence, counted by the ledgers on both sides of the gap
    consumed: int = 0
    stale: int = 0
    fenced: int = 0
    invalid: int = 0
    queued: int = 0  # received, not settled yet
    fault: str = ""  # description of the first invalid values; nothing of this sender is taken since


class Report(msgspec.Struct):
    """A process's state, about once a second; totals since boot, so a lost report loses nothing."""

    role: Word
    boot: Word
    term: int
    counters: Annotated[dict[str, float], _NAMES] = {}  # totals, by metric name without prefix: "env_steps"
    gauges: Annotated[dict[str, float], _NAMES] = {}
    histograms: Annotated[dict[str, Histogram], _NAMES] = {}
    averages: Annotated[dict[str, Average], _NAMES] = {}  # by the name of a gauge: the mean of the last seconds
    sent: Annotated[dict[Word, Ledger], _BOOTS] = {}  # sender: receiver boot -> totals
    pending: int = 0  # sender: rows produced, neither sent nor dropped
    accounts: Annotated[dict[Word, Account], _BOOTS] = {}  # receiver: sender boot -> account
    model: ModelRef | None = None  # learner: newest; actor: in use
    figures: Annotated[list[Moments], msgspec.Meta(max_length=2 + MAX_SHARES)] = []
    """actor: moments of the figures of its episodes since boot, in the order of `figure_names`."""
    log: Annotated[list[str], msgspec.Meta(max_length=10_000)] = []
    """Log lines (JSON) that no reply has confirmed yet: the process itself may have no volume."""
    log_from: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Number of the first of them among the lines of this boot: a report that came late holds lines twice."""


class Sampling(msgspec.Struct, frozen=True):
    """Order to a process: sample the stacks of its threads for a while."""

    id: str
    seconds: float


class Sampled(msgspec.Struct, frozen=True):
    """CPU seconds and stacks of threads, as sampled. Bounded: a process with an actor's key may send one."""

    id: str
    role: str
    boot: str
    seconds: float  # wall time that was sampled
    samples: int
    threads: dict[str, float]  # name -> CPU seconds meanwhile; {}: the system does not say
    frames: Annotated[list[Annotated[str, msgspec.Meta(max_length=300)]], msgspec.Meta(max_length=20_000)]
    stacks: Annotated[list[tuple[list[int], int]], msgspec.Meta(max_length=5_000)]
    """Indices into `frames`, the thread first and the innermost function last, and microseconds."""


class Recorded(msgspec.Struct, frozen=True):
    """actor, evaluator -> manager: an episode as data, to be kept on the volume. See `repro.record`.

    A crash without a header asks for a place first: thousands of one cause come together, and few are kept.
    """

    boot: str
    kind: Literal["crash", "worst", "best"]
    header: Annotated[bytes, msgspec.Meta(max_length=1 << 20)]  # a line of JSON
    body: Annotated[bytes, msgspec.Meta(max_length=12 << 20)]


class Orders(msgspec.Struct, frozen=True):
    """Reply to Report: what the process is to do, and fields of its lease as they are now."""

    term: int
    known: bool  # False: say hello again
    peers: Peers
    match: Match | None = None
    checkpoint: int = 0  # learner, replay: save its part of the generation of this number, once
    stop: bool = False  # finish in good order
    stop_steps: int = 0  # as in the lease, as it is now
    report_every_s: float = 0.0  # from now on: others may have come; 0: as before
    group: int = 0  # learner: a group of this number is being formed: leave an older one and `Enlist`; 0: none is
    profile: Sampling | None = None  # sample yourself, unless you have for this id
    ticket: str = ""  # actor: in place of the one before
    leased_since_s: int = 0  # as in the lease, as it is now


class Film(msgspec.Struct, frozen=True):
    """Film of one episode, or why there is none."""

    gif: Annotated[bytes, msgspec.Meta(max_length=MAX_FILM_BYTES)] = b""
    returned: float = 0.0  # raw, of seat 0
    length: int = 0  # decisions
    seconds: float = 0.0  # length of the film
    fault: str = ""


class EvalResult(msgspec.Struct, frozen=True):
    """Result of a finished quota."""

    match: int
    ref: ModelRef
    mode: str
    returns: list[float]  # raw, one per episode
    lengths: list[int]
    seconds: float
    info: Annotated[dict[str, float], msgspec.Meta(max_length=MAX_INFO)] = {}
    """Mean over the episodes of each number that the environment reported at their end."""
    kept: str = ""  # file in models/ that describes the model; "": it was not to be kept, or could not
    fault: str = ""  # why it could not
    recording: Film | None = None  # None: none was asked for


class Commit(msgspec.Struct, frozen=True):
    """learner -> manager: the parts of a generation are on the volume."""

    generation: Generation
    boot: str


class Contribute(msgspec.Struct, frozen=True):
    """replay -> manager: its part of a generation is on the volume, or why it is not."""

    boot: str
    term: int
    number: int  # as ordered
    file: str = ""
    sha256: str = ""
    fault: Annotated[str, msgspec.Meta(max_length=1000)] = ""  # "": it is on the volume


class Enlist(msgspec.Struct, frozen=True):
    """learner -> manager: request for a place in a group, repeated until there is one."""

    boot: str
    left: int  # number of the newest group in which it had a place, 0: it learned alone, -1: in none
    learned: bool  # its weights are those of a group, or learned alone; else of a generation, or the first
    ref: ModelRef  # its weights


class GroupPlace(msgspec.Struct, frozen=True):
    """Reply to Enlist: a place in a group of learners that step together."""

    number: int  # of the group; 0: wait, and ask again
    rank: int = 0
    world: int = 1
    seed: int = 0  # rank whose weights, optimizer and counters every member takes over
    ref: ModelRef | None = None  # these weights, in the lineage of the group
    key: str = ""  # by which members recognise each other; new with each group


NoteAction = Literal["set", "get", "add", "delete", "count"]


class Note(msgspec.Struct, frozen=True):
    """learner -> manager: operation on the key-value store of torch that the members of a group share."""

    boot: str
    group: int
    action: NoteAction
    keys: Annotated[list[Annotated[str, msgspec.Meta(max_length=300)]], msgspec.Meta(max_length=256)]
    """One key for all actions but `get`; none for `count`."""
    value: Annotated[bytes, msgspec.Meta(max_length=1 << 16)] = b""  # set
    amount: int = 0  # add


class StoreReply(msgspec.Struct, frozen=True):
    """Reply to Note: result of the operation."""

    values: list[bytes | None] = []  # get: of each key
    count: int = 0  # add: the sum; delete: 1 if the key was there; count: number of keys


class Reply(msgspec.Struct, frozen=True):
    """Reply to a request that needs no other: `ok`, or why not."""

    ok: bool
    why: str = ""
    again: bool = False  # it is not decided yet: ask again


# modelpool


class PutModel(msgspec.Struct, frozen=True):
    """learner -> modelpool: new weights, in the buffers."""

    ref: ModelRef
    term: int
    sha256: str
    policy: bytes = b""  # `policy.json` of that learner's first version, for the learner that restores them


class GetModel(msgspec.Struct, frozen=True):
    """Any process -> modelpool: request for weights."""

    policy: str
    have: ModelRef | None = None  # reply `not_modified` unless something newer is there
    version: int | None = None  # exactly this one of the live lineage
    lineage: int = 0  # of this lineage; a kept model too, and with its description


class GotModel(msgspec.Struct, frozen=True):
    """Reply to GetModel: weights in the buffers, unless `state` says otherwise."""

    state: Literal["new", "not_modified", "missing"]
    pool: str  # boot of the pool: a learner that sees a new one puts again
    ref: ModelRef | None = None
    sha256: str = ""
    policy: bytes = b""


class KeepModel(msgspec.Struct, frozen=True):
    """evaluator -> first modelpool: weights in the buffers, to be kept on the volume. May be repeated."""

    ref: ModelRef
    sha256: str
    policy: bytes


class KeepReply(msgspec.Struct, frozen=True):
    """Reply to KeepModel."""

    file: str = ""  # in models/, describes the weights
    why: str = ""  # why they are not kept


def to_plain(message: msgspec.Struct) -> Any:
    """A message as dicts, lists and scalars that JSON can hold."""
    return msgspec.to_builtins(message)
