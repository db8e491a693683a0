"""`rlctl ci`: the service that builds and redeploys on a push, and the commands by which a user asks it."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlctl.cli.context import World
from rlctl.cli.options import Utc, verb
from rlctl.cli.text import moment_of, plain, span, table
from rlctl.errors import BackendUnreachable, RlctlError, UsageError, WorkloadFailed

if TYPE_CHECKING:
    from rlctl_ci.client import Client
    from rlctl_ci.config.settings import Config
    from rlctl_ci.store.database import Database
    from rlctl_ci.store.people import People

FOLLOW_S = 0.5

app = typer.Typer(rich_markup_mode=None, help="Build and redeploy on a push: the service, and its builds.")

Url = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The service; default: RLCTL_CI_URL, this machine's.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="Default: RLCTL_CI_TOKEN_FILE, on this machine its owner's."),
]
ConfigFile = Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The service's configuration.")]
BuildArgument = Annotated[int, typer.Argument(metavar="BUILD", help="As `rlctl ci builds` numbers them.", min=1)]
ProjectArgument = Annotated[str, typer.Argument(metavar="PROJECT", help="As ci.yaml names it.")]


@app.command()
@verb()
def serve(
    world: World,
    config: ConfigFile = Path("ci.yaml"),
    check: Annotated[
        bool, typer.Option("--check", help="Read the configuration and the files that it names, and end.")
    ] = False,
) -> int:
    """Listen for pushes, build them, redeploy their runs.

    Listens on loopback unless `listen:` says otherwise, and elsewhere only with names and TLS.
    """
    read = _config(config, files=True)
    try:
        from rlctl_ci.core.service import Service
        from rlctl_ci.core.wiring import adapters_of
        from rlctl_ci.web.serve import check as refuse
        from rlctl_ci.web.serve import serve as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rlctl"):
            raise
        raise BackendUnreachable(
            f"the package {error.name} is not installed", hint='install it with: pip install "rlctl[ci]"'
        ) from error
    refuse(read)
    for name, project in read.projects.items():
        world.say(f"{name}: POST /hooks/{project.forge}/{name} -> {project.run} ({project.target}, {project.builder})")
    if read.sharing:
        world.say(f"warning: {read.sharing}")
    if check:
        world.document({"ok": True, "projects": list(read.projects)})
        return 0
    service = Service(read, adapters_of)
    if not read.loopback and not service.people.any_token():
        world.say("note: there is no token yet, so hooks alone are answered: rlctl ci token NAME --scope admin")
    world.say(f"listening on {'https' if read.tls_cert else 'http'}://{read.listen}, state in {read.folder}")
    run(service)
    return 0


@app.command()
@verb()
def builds(
    world: World,
    project: Annotated[str | None, typer.Option("--project", metavar="NAME", help="Of this project alone.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=200, help="The newest so many.")] = 20,
    url: Url = None,
    token_file: TokenFile = None,
    utc: Utc = False,
) -> int:
    """List builds, newest first."""
    found = _client(world, url, token_file).get("/api/v1/builds", project=project, limit=limit)
    rows = [("BUILD", "STATE", "PROJECT", "BRANCH", "COMMIT", "WHEN", "WHAT")]
    for one in found["builds"]:
        when = moment_of(one["created"], utc=utc)
        by_reason = one["state"] in ("failed", "rolled_back", "cancelled", "ignored")
        what = plain(one["reason" if by_reason else "title"])[:60]
        rows.append(
            (str(one["id"]), one["state"], one["project"], plain(one["branch"])[:30], one["sha"][:12], when, what)
        )
    world.lines(table(rows) if found["builds"] else ())
    if not found["builds"]:
        world.say("no build yet; `rlctl ci test-hook PROJECT --sha COMMIT` sends a hook")
    world.document(found)
    return 0


@app.command()
@verb()
def log(
    world: World,
    build: BuildArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Until the build is over; exit 7 if it failed.")
    ] = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> int:
    """Print what a build has said."""
    from rlctl_ci.core.states import TERMINAL

    client = _client(world, url, token_file)
    offset, state, text = 0, "", ""
    while True:
        more, offset, state = client.log(build, offset)
        text += more if world.as_json else ""
        for line in more.splitlines():
            world.data(plain(line))
        if more:
            continue
        if not follow or state in TERMINAL:
            break
        world.sleep(FOLLOW_S)
    world.document({"build": build, "state": state, "offset": offset, "log": text})
    if follow and state in ("failed", "rolled_back"):
        raise WorkloadFailed(f"build {build}: {state}", hint=f"rlctl ci builds; rlctl ci retry {build}")
    return 0


@app.command()
@verb()
def retry(world: World, build: BuildArgument, url: Url = None, token_file: TokenFile = None) -> int:
    """Build the commit of a build once more."""
    return _post(world, f"/api/v1/builds/{build}/retry", "build {build_id} is queued", url, token_file)


@app.command()
@verb()
def cancel(world: World, build: BuildArgument, url: Url = None, token_file: TokenFile = None) -> int:
    """End a build; one whose deployment has begun goes on to its end."""
    return _post(world, f"/api/v1/builds/{build}/cancel", "build {build_id}: {said}", url, token_file)


@app.command()
@verb()
def pause(world: World, project: ProjectArgument, url: Url = None, token_file: TokenFile = None) -> int:
    """Let the pushes of a project wait."""
    return _post(world, f"/api/v1/projects/{project}/pause", "{project} is paused", url, token_file)


@app.command()
@verb()
def resume(world: World, project: ProjectArgument, url: Url = None, token_file: TokenFile = None) -> int:
    """End a pause, and the pins that rollbacks have left."""
    said = "{project} goes on; {lifted} pauses and pins lifted"
    return _post(world, f"/api/v1/projects/{project}/resume", said, url, token_file)


@app.command()
@verb()
def rollback(world: World, project: ProjectArgument, url: Url = None, token_file: TokenFile = None) -> int:
    """Go back from the newest deployment that has changed the run, and pin its branch; waits for it."""
    said = "{project} is back at revision {revision}; what build {build_id} deployed is pinned until resume"
    return _post(world, f"/api/v1/projects/{project}/rollback", said, url, token_file)


@app.command("test-hook")
@verb()
def send_hook(
    world: World,
    project: ProjectArgument,
    sha: Annotated[str, typer.Option("--sha", metavar="COMMIT", help="Full name of the commit that was pushed.")],
    branch: Annotated[
        str | None, typer.Option("--branch", metavar="NAME", help="Default: the project's first.")
    ] = None,
    config: ConfigFile = Path("ci.yaml"),
    url: Url = None,
) -> int:
    """Send a signed push as the forge of a project would: to --url, else RLCTL_CI_URL, else where FILE listens."""
    from rlctl_ci.client import Client
    from rlctl_ci.config.settings import secrets as secrets_of
    from rlctl_ci.forges.find import FORGES
    from rlctl_ci.store.records import Push

    read = _config(config)
    if project not in read.projects:
        raise UsageError(f"{config} has no project {project}", hint=f"projects: {', '.join(read.projects)}")
    about = read.projects[project]
    forge = FORGES[about.forge]
    push = Push(f"refs/heads/{branch or about.branches[0]}", sha, "rlctl ci test-hook", "a test")
    body = json.dumps(forge.example(push)).encode()
    secret = secrets_of(project, about.secret_file)[0]
    delivery = f"test-{secrets.token_hex(8)}"
    headers = forge.sign(body, secret, delivery=delivery, now=world.now().timestamp())
    named = url or world.environ.get("RLCTL_CI_URL")
    where, host = (named.rstrip("/"), "") if named else read.here
    status, text = Client(where, host=host).hook(f"/hooks/{about.forge}/{project}", headers, body)
    world.data(f"{status} {plain(text)}".rstrip())
    world.document({"status": status, "answer": text})
    if status >= 400:
        raise RlctlError(f"the service did not take it: {status} {plain(text)}", hint="its secret, --branch, --sha")
    return 0


@app.command()
@verb()
def token(
    world: World,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of its user; a token of the same name ends.")],
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="read, trigger, deploy, admin; repeatable; default: read.")
    ] = None,
    valid: Annotated[str | None, typer.Option("--valid", metavar="TIME", help="As in 90d; default: for ever.")] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="End it instead.")] = False,
    config: ConfigFile = Path("ci.yaml"),
) -> int:
    """Make a token for the API, printed once; or end one."""
    people = _people(config)
    if revoke:
        if not people.revoke(name):
            raise UsageError(f"there is no token {name}")
        world.say(f"{name} is no longer valid")
        world.document({"revoked": name})
        return 0
    valid_s = None if valid is None else span(valid, "--valid")
    made = people.issue(name, scope or ["read"], valid_s=valid_s)
    world.data(made)
    world.document({"name": name, "scopes": scope or ["read"], "token": made})
    return 0


@app.command()
@verb()
def audit(
    world: World,
    config: ConfigFile = Path("ci.yaml"),
    limit: Annotated[int, typer.Option("--limit", min=1, help="The newest so many.")] = 20,
    utc: Utc = False,
) -> int:
    """List what people have asked of the service, newest first."""
    found = _people(config).audited(limit)
    rows = [("WHEN", "WHO", "ACTION", "OBJECT")]
    for at, who, action, thing in found:
        rows.append((moment_of(at, utc=utc), who, action, plain(thing)))
    world.lines(table(rows) if found else ())
    world.document({"audit": [dict(zip(("at", "who", "action", "object"), one, strict=True)) for one in found]})
    return 0


@app.command()
@verb()
def clean(
    world: World,
    config: ConfigFile = Path("ci.yaml"),
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=1, help="Keep what the newest N builds of each branch made.")
    ] = 10,
    days: Annotated[float, typer.Option("--days", metavar="N", min=0, help="Keep what is younger than N days.")] = 7.0,
    gone: Annotated[
        list[str] | None,
        typer.Option("--gone", metavar="CONTEXT/NAMESPACE", help="A cluster that is no more: not asked; repeatable."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove it; without, it is only listed.")] = False,
) -> int:
    """List images, code folders, copies of repositories and builds that nothing needs; --yes removes them.

    What a revision of any run names stays, of this machine and of every namespace that ci.yaml names or that was ever
    deployed to. When one of them does not answer, nothing is removed.
    """
    from rlctl_ci.core import cleaning
    from rlctl_ci.store.reading import Reading

    read, now, young_s = _config(config), world.now().timestamp(), days * 86_400
    reading = Reading(_database(read))
    deployed_to = {f"{context}/{namespace}": (context, namespace) for context, namespace in reading.targets()}
    if unknown := [one for one in gone or () if one not in deployed_to]:
        raise UsageError(
            f"--gone {unknown[0]}: nothing was deployed there", hint=f"deployed to: {', '.join(deployed_to) or 'none'}"
        )
    without = [deployed_to[one] for one in gone or ()]
    try:
        found = cleaning.waste(read, reading, now, keep=keep, young_s=young_s, gone=without)
    except BackendUnreachable as error:
        if left := ", ".join(one for one in deployed_to if one not in (gone or ())):
            error.hint = f"{error.hint} One that is gone for good: --gone with one of {left}".strip()
        raise
    copies = cleaning.stale_copies(read)
    rows = [(one.project, f"{one.bytes / 1e6:.1f} MB", one.reference) for one in found]
    rows += [("-", f"{size / 1e6:.1f} MB", str(path)) for path, size in copies.items()]
    world.lines(table(rows) if rows else ())
    removed = cleaning.remove(read, reading, found, read.folder / "code", now) if yes else []
    old = cleaning.old(read, reading, removed if yes else found, now, keep=keep, young_s=young_s)
    if yes:
        cleaning.drop_copies(copies)
        cleaning.forget(read, reading, old, now, young_s=young_s)
    logs = f"{len(old.builds)} builds with {old.log_bytes / 1e6:.1f} MB of logs"
    done = len(removed) + len(copies) if yes else 0
    world.say(f"{done} removed, and {logs}" if yes else f"{len(rows)} could go, and {logs}; --yes removes them")
    listed = [{"project": one.project, "reference": one.reference, "bytes": one.bytes} for one in found]
    listed += [{"project": None, "reference": str(path), "bytes": size} for path, size in copies.items()]
    world.document({"waste": listed, "removed": done, "builds": old.builds, "log_bytes": old.log_bytes})
    return 0


@app.command()
@verb()
def manifest(
    world: World,
    image: Annotated[
        str,
        typer.Option("--image", metavar="REF", help="Image of the service, by digest: rlctl[ci,kubernetes] and git."),
    ],
    host: Annotated[
        str, typer.Option("--host", metavar="NAME", help="Name by which the service is reached, one of `hosts:`.")
    ],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the runs.")
    ] = "default",
    service_namespace: Annotated[
        str | None,
        typer.Option("--service-namespace", metavar="NAME", help="Namespace of the service; default: of the runs."),
    ] = None,
    size: Annotated[str, typer.Option("--size", help="Of its volume, as in 50Gi.")] = "20Gi",
    storage_class: Annotated[
        str | None, typer.Option("--storage-class", metavar="NAME", help="Of its volume; default: the cluster's.")
    ] = None,
    pull_secret: Annotated[
        list[str] | None,
        typer.Option("--pull-secret", metavar="NAME", help="Secret by which nodes pull the image; repeatable."),
    ] = None,
    config: ConfigFile = Path("ci.yaml"),
) -> int:
    """Print the objects that run the service on a cluster, with rights for the runs that FILE names."""
    from rlctl_ci.config.manifest import manifest as rendered

    text = rendered(
        _config(config), namespace=namespace, image=image, host=host, own=service_namespace, size=size,
        storage_class=storage_class, pull_secrets=pull_secret or (),
    )  # fmt: skip
    world.data(text.removesuffix("\n"))
    world.document({"manifest": text})
    return 0


def _config(path: Path, *, files: bool = False) -> Config:
    from rlctl_ci.config.settings import load

    return load(path, files=files)


def _people(config: Path) -> People:
    from rlctl_ci.store.people import People

    return People(_database(_config(config)))


def _database(config: Config) -> Database:
    """The database of the service; a new one would be of none."""
    from rlctl.backends.revisions import user
    from rlctl_ci.store.database import Database

    path = config.folder / "ci.db"
    if not path.is_file():
        raise UsageError(
            f"{config.folder} has no database of a service, as user {user()} sees it",
            hint="start `rlctl ci serve` once; or be its user, with its XDG_STATE_HOME, or name its folder by `state:`",
        )
    return Database(path)


def _client(world: World, url: str | None, token_file: Path | None) -> Client:
    from rlctl_ci.client import Client

    return Client.of(world.environ, url, token_file)


def _post(world: World, path: str, said: str, url: str | None, token_file: Path | None) -> int:
    done = _client(world, url, token_file).post(path)
    world.say(said.format(**done))
    world.document(done)
    return 0
