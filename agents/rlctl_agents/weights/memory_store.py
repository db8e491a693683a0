"""The newest versions of every policy in memory, each serialised once and never parsed."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict, deque

from rlctl_agents.types.experience import ModelRef
from rlctl_agents.weights.client import Model

VERSIONS = 16
"""Number of newest versions of a policy that stay."""
PINNED = 8
"""Number of models last reported to the manager that stay besides: it may order an evaluation of exactly these."""


class RefusedModel(ValueError):
    """A refused model; `reason` is one word for the metrics."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class LiveModels:
    """Models by policy and version, of the live lineage of each policy. Thread-safe.

    Args:
        budget_bytes: of all weights together; the newest of each policy stays in any case.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._models: dict[str, OrderedDict[int, Model]] = {}  # policy -> version -> model, oldest first
        self._terms: dict[str, int] = {}
        self._pins: deque[ModelRef] = deque(maxlen=PINNED)

    def put(self, ref: ModelRef, term: int, sha256: str, data: bytes | memoryview, policy: bytes = b"") -> Model:
        """Store a new version; returns it. Storing the same one again is fine.

        Args:
            policy: its description.

        Raises:
            RefusedModel: an older term, lineage or version than what is there, other weights under the same name, or
                weights that are not what the checksum says.
        """
        owned = data if isinstance(data, bytes) else bytes(data)
        digest = hashlib.sha256(owned).hexdigest()  # before the lock: no client that pulls waits for it
        with self._lock:
            return self._put(Model(ref, sha256, owned, policy), term, digest)

    def _put(self, model: Model, term: int, digest: str) -> Model:
        ref, sha256 = model.ref, model.sha256
        models = self._models.get(ref.policy) or OrderedDict[int, Model]()
        newest = next(reversed(models.values()), None)
        if term < self._terms.get(ref.policy, term):
            raise RefusedModel("term", f"{ref}: of term {term}, the run is at {self._terms[ref.policy]}")
        if newest is not None:
            if ref.lineage < newest.ref.lineage:
                raise RefusedModel("lineage", f"{ref}: lineage {newest.ref.lineage} is live")
            if ref.lineage == newest.ref.lineage and ref.version <= newest.ref.version:
                if ref.version in models and models[ref.version].sha256 == sha256:
                    return models[ref.version]
                raise RefusedModel("version", f"{ref}: version {newest.ref.version} is there already")
        if digest != sha256:
            raise RefusedModel("checksum", f"{ref}: {len(model.data)} bytes do not have sha256 {sha256[:12]}")
        if newest is not None and ref.lineage > newest.ref.lineage:
            models = OrderedDict[int, Model]()
        self._terms[ref.policy] = term
        models[ref.version] = model
        self._models[ref.policy] = models
        self._trim()
        return model

    def newest(self, policy: str) -> Model | None:
        """The newest version of the live lineage; None when there is none."""
        with self._lock:
            return next(reversed(self._models.get(policy, OrderedDict[int, Model]()).values()), None)

    def exactly(self, policy: str, version: int) -> Model | None:
        """One version of the live lineage, if it is still there."""
        with self._lock:
            return self._models.get(policy, OrderedDict[int, Model]()).get(version)

    def pin(self, ref: ModelRef) -> None:
        """Keep a model that was reported for a while, as far as the budget goes."""
        with self._lock:
            if not self._pins or self._pins[-1] != ref:
                self._pins.append(ref)

    @property
    def bytes(self) -> int:
        """Bytes of all weights."""
        with self._lock:
            return self._sum()

    def _sum(self) -> int:
        return sum(len(model.data) for models in self._models.values() for model in models.values())

    def _trim(self) -> None:
        pinned = set(self._pins)
        for models in self._models.values():
            for version in list(models)[:-VERSIONS]:
                if models[version].ref not in pinned:
                    del models[version]
        while self._sum() > self._budget_bytes:
            longest = max(self._models.values(), key=len)
            if len(longest) == 1:
                return
            longest.popitem(last=False)
