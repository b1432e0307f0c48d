"""What indexing files does to a gallery, wherever they are embedded: new items in, old ones followed, all reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from serving.gallery.gallery import Gallery
from serving.gallery.image_files import ImageFile, folder_of
from serving.gallery.items import AS_IT_IS, Item, Kept, NewItem, Place, same_metadata


@dataclass
class Report:
    """What indexing a folder or a table did.

    `already_there`: files whose content the gallery had, the `moved` among them; `moved`: items that got another
    source, label or metadata; `kept`: items that keep a label which is not their folder's; `differing`: of files that
    were there already, source, id and label of the item, where another label or other metadata was asked for, also of
    one image in two folders; and `updated`, how many got it; `unreadable`: source and reason of every image that was
    left out; `not_in_folder`: sources of the gallery's items whose content is not among the images indexed, and
    `pruned`, how many of them were removed; `other_files`: how many files of other kinds a folder holds, by suffix. Of
    a file of labels: `unlabelled`: images that it does not name; `labels_unused`: the paths that it names and the
    folder does not hold; `metadata`: its columns, or a table's, that are kept as metadata.
    """

    gallery: str
    found: int
    added: int = 0
    already_there: int = 0
    moved: int = 0
    kept: int = 0
    differing: list[tuple[str, int, str | None]] = field(default_factory=list)
    updated: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    not_in_folder: list[str] = field(default_factory=list)
    pruned: int = 0
    other_files: dict[str, int] = field(default_factory=dict)
    unlabelled: int = 0
    labels_unused: list[str] = field(default_factory=list)
    metadata: tuple[str, ...] = ()
    items: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Run:
    """One run over files: it is told of each in their order, and writes to the gallery what is new."""

    def __init__(
        self,
        gallery: Gallery,
        report: Report,
        named: bool = False,
        keys: Sequence[str] = (),
        update: bool = False,
    ) -> None:
        """named: labels are of a file, not of folders; keys: of metadata that the files are given; update: labels and
        these keys replace all that items have, also by none."""
        self.gallery, self.report, self._named, self._keys, self._update = gallery, report, named, keys, update
        self.differing: list[tuple[ImageFile, Item]] = []
        self._places: list[Place] = []
        self._seen: dict[str, ImageFile] = {}
        self._contested: list[tuple[ImageFile, str]] = []
        self._gone: dict[str, str] = {}

    def leave_out(self, file: ImageFile, reason: str) -> None:
        """The file cannot be read."""
        self.report.unreadable.append((file.source, reason))

    def is_first(self, file: ImageFile, content_sha256: str) -> bool:
        """Whether no earlier file had this content; one that had counts, and this one does not."""
        first = self._seen.setdefault(content_sha256, file)
        if first is file:
            return True
        self.report.already_there += 1
        if file.label not in (None, first.label) or not same_metadata(file.metadata, first.metadata):
            self._contested.append((file, content_sha256))
        return False

    def recognise(self, file: ImageFile, item: Item | None) -> None:
        """The file is the first with the content of this item of the gallery; None: it was, and is removed by now."""
        self.report.already_there += 1
        if item is None:
            return
        label = self._label(file, item)
        self.report.kept += label != file.label and file.label is not None
        metadata = self._metadata(file, item)
        if (item.source, item.label) != (file.source, label) or metadata is not AS_IT_IS:
            self._places.append(Place(item.id, file.source, label, metadata))
        if item.differs(file.label, file.metadata):
            self.differing.append((file, item))

    def _label(self, file: ImageFile, item: Item) -> str | None:
        """What the item is to be labelled: as it is, unless the file says otherwise and nobody else has said it."""
        if self._update:
            return file.label
        of_folder = item.label in (None, folder_of(item.source)) and item.source != file.source
        return file.label if file.label is not None and (self._named or of_folder) else item.label

    def _metadata(self, file: ImageFile, item: Item) -> dict[str, Any] | Kept:
        """As it is, but for the keys of the file; what it leaves empty goes on an update alone."""
        if not self._keys:  # folders say nothing of them
            return AS_IT_IS
        kept = {key: value for key, value in item.metadata.items() if not (self._update and key in self._keys)}
        changed = {**kept, **file.metadata}
        return AS_IT_IS if same_metadata(changed, item.metadata) else changed

    def write(self, items: Sequence[NewItem]) -> None:
        """Add items in one transaction; where another process added one of them meanwhile, that one stays."""
        added = self.gallery.add(items)
        self.report.added += added.new
        self.report.already_there += len(items) - added.new

    def follow(self) -> None:
        """Give the items that lie elsewhere now their new place, and report those that the folder does not hold."""
        if self._places:
            self.gallery.move(self._places)
        self.report.moved = len(self._places)
        for file, content in self._contested:
            if item := self.gallery.item_of_content(content):
                self.report.differing.append((file.source, item.id, item.label))
        contents = self.gallery.sources_by_content()
        self._gone = {content: source for content, source in contents.items() if content not in self._seen}
        self.report.not_in_folder = list(self._gone.values())

    def to_prune(self) -> list[int]:
        """The items, after `follow`, whose content the folder does not hold; not those whose file cannot be read now,
        and none where no file can be.
        """
        if not self._seen:
            return []
        unreadable = {source for source, _ in self.report.unreadable}
        gone = [content for content, source in self._gone.items() if source not in unreadable]
        return [item.id for item in map(self.gallery.item_of_content, gone) if item]
