"""Registry of forges: one line each."""

from __future__ import annotations

from typing import Final

from rlctl_ci.forges.base import Forge
from rlctl_ci.forges.gitea import Gitea
from rlctl_ci.forges.github import GitHub
from rlctl_ci.forges.gitlab import GitLab
from rlctl_ci.forges.standard import Standard

FORGES: Final[dict[str, Forge]] = {
    "github": GitHub(),
    "gitlab": GitLab(),
    "gitea": Gitea(),
    "standard": Standard(),
}
