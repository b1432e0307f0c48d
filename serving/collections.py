"""All that a service serves, and the way from a path to the collection that it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus

from starlette.types import ASGIApp, Receive, Scope, Send

from serving.collection import FOLDER, Collection
from serving.configuration import DEVICE, PRECISION, Configuration
from serving.galleries import COLLECTIONS, GALLERY, Place, from_environment
from serving.gallery.search import Models, Searcher
from serving.keys import Keys, reading_key
from serving.metrics import CURRENT, SCOPE, stage
from serving.refusals import RefusedError, respond
from serving.renewing import Renewing
from zoo.errors import UsageError

NAMED = 10
"""So many collections are named to who asks for one that there is not."""


class Collections:
    """One collection without a name, or several with one."""

    def __init__(self, each: Sequence[Collection]) -> None:
        self.each = tuple(each)
        self._by_name = {one.name: one for one in each}

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Collections:
        """Those that the environment names; their galleries are opened at first use.

        `DEVICE`: what their models run on; `PRECISION`: the variant that embeds, of those models that have it; both as
        `zoo.load` takes them. Raises `UsageError` for settings and keys that are none. Where nothing is named, there is
        one collection that raises when it is opened.
        """
        limits, precision = Configuration.of(environment).limits, environment.get(PRECISION) or "fp32"
        models = Models(precision=precision, device=environment.get(DEVICE) or None, or_fp32=True)
        places = from_environment(environment)
        if not places:
            return cls([Collection("", Renewing(_nothing), Keys.of(environment))])

        def opened(place: Place, model: str | None = None) -> Searcher:
            return Searcher.open(place.gallery, model, limits, models, stage)

        def collection(place: Place) -> Collection:
            # The gallery says itself how a model that it is given later is loaded.
            searchers = Renewing(partial(opened, place, place.model), partial(opened, place), models)
            return Collection(place.name, searchers, Keys.of(environment, place.name))

        return cls([collection(place) for place in places])

    @property
    def root(self) -> Collection | None:
        """The one at the service's root; None where all have names."""
        return self._by_name.get("")

    @property
    def are_guarded(self) -> bool:
        """Whether every one of them asks for a key."""
        return all(one.keys.read for one in self.each)

    def at(self, path: str, key: str | None = None) -> Collection | None:
        """The collection that a path is about; None for the service's own paths.

        Raises `RefusedError` for a name that there is not; it names those that the key may read.
        """
        name = path.removeprefix(f"{FOLDER}/").partition("/")[0] if path.startswith(f"{FOLDER}/") else None
        if name is None or (self.root and not name):
            return self.root
        if self.root or name not in self._by_name:
            message = f"There is no collection {name[:80]!r} here{self._instead(key)}"
            raise RefusedError(HTTPStatus.NOT_FOUND, "no_such_collection", message)
        return self._by_name[name]

    def _instead(self, key: str | None) -> str:
        if self.root:
            return ": the service has one gallery, which has no name. Ask without a collection, at /search, ..."
        names = [one.name for one in self.readable(key)]
        more = ", ..." if len(names) > NAMED else ""
        listed = f" There are: {', '.join(names[:NAMED])}{more}." if names else ""
        return f"; GET {FOLDER} lists those that your key may read.{listed}"

    def readable(self, key: str | None) -> list[Collection]:
        """Those that the key may read."""
        return [one for one in self.each if one.keys.may_read(key)]

    def knows(self, key: str) -> bool:
        """Whether it is a key of any of them."""
        return sum(one.keys.has(key) for one in self.each) > 0

    def open(self) -> None:
        """Open all. Raises `GalleryError`, `ModelFolderError`, ... of the first that cannot be served."""
        for one in self.each:
            one.gallery.index.compact_in_background()
            one.searcher.check_texts()
            one.watch()

    def is_ready(self) -> bool:
        try:
            return all(one.steadily(Searcher.is_ready) for one in self.each)
        except RefusedError:
            return False

    def close(self) -> None:
        for one in self.each:
            one.close()

    def __str__(self) -> str:
        return "; ".join(f"{one.name}: {_summary(one)}" if one.name else _summary(one) for one in self.each)


class Chosen:
    """ASGI middleware: names the collection in the request's scope, and lets its routes begin behind its path.

    It changes the scope that it is given, so that those outside, who count requests, know the collection too.
    """

    def __init__(self, app: ASGIApp, collections: Collections) -> None:
        self.app, self.collections = app, collections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                found = self.collections.at(scope["path"], reading_key(scope))
            except RefusedError as refusal:
                await respond(refusal)(scope, receive, send)
                return
            scope[SCOPE] = found
            CURRENT.set(found.name if found else "")
            if found and found.path:
                scope["root_path"] = found.path
        await self.app(scope, receive, send)


def _nothing() -> Searcher:
    raise UsageError(f"{GALLERY} must name the gallery folder to serve, or {COLLECTIONS} several.")


def _summary(one: Collection) -> str:
    count = one.gallery.store.count()
    model = one.searcher.embedder
    variant = "" if model.precision == "fp32" else f" in {model.precision}"
    return f"{count:,} {'image' if count == 1 else 'images'}, embedded by {model.card.name}{variant}"
