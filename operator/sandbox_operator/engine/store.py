"""What is known of the cluster: objects by kind and name, trimmed to what decisions need, and by owner.

Two feeds and our own writes fill it, in any order, so an older state never replaces a newer one.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from sandbox_api.kube import Object, Resource, Trim

#: Objects that are remembered to be gone.
_REMEMBERED = 4096
#: Namespace and name.
Key = tuple[str, str]
Change = Literal["new", "changed", "gone"]
#: Told of each change of the store, with the state after it (before it, where the object is gone).
OnChange = Callable[[Resource, Change, Object], None]


class Store:
    """Objects of some kinds.

    Args:
        trims: The kinds kept, each with what makes an object smaller. Twice is as good as once.
        on_change: Called at each change; it must not block.
    """

    def __init__(self, trims: dict[Resource, Trim], on_change: OnChange | None = None) -> None:
        self.on_change: OnChange = on_change or (lambda resource, change, item: None)
        self.trims = trims
        self._items: dict[Resource, dict[Key, Object]] = {resource: {} for resource in trims}
        self._owned: dict[Resource, dict[str, set[Key]]] = {resource: {} for resource in trims}
        self._gone: OrderedDict[str, str] = OrderedDict()

    def get(self, resource: Resource, key: Key) -> Object | None:
        """The object of a name; it is not to be changed."""
        return self._items[resource].get(key)

    def keys(self, resource: Resource) -> list[Key]:
        """Names of all objects of a kind."""
        return list(self._items[resource])

    def owned(self, resource: Resource, uid: str) -> list[Object]:
        """Objects whose controller has a UID, in the order of their names."""
        items = self._items[resource]
        return [items[key] for key in sorted(self._owned[resource].get(uid, ()))]

    def in_namespace(self, resource: Resource, namespace: str) -> Iterator[Object]:
        """Objects of a namespace."""
        return (item for key, item in self._items[resource].items() if key[0] == namespace)

    def put(self, resource: Resource, item: Object, *, read: bool = False) -> bool:
        """Take in a state of an object; False where a newer one is known.

        Args:
            resource: Its kind.
            item: The state.
            read: It was read by name just now. A feed that selects by labels calls an object gone that has
                only lost its label; the state of that very version, read, says that it lives.
        """
        key = key_of(item)
        known = self._items[resource].get(key)
        if known is not None and not _newer(item, known):
            return False
        gone = self._gone.get(item["metadata"].get("uid") or "")
        if gone is not None and not _newer_than(item, gone, or_same=read):
            # The answer to a DELETE may come after the event that the object is gone, and has its version.
            return False
        trimmed = self.trims[resource](item)
        self._unindex(resource, key, known)
        self._items[resource][key] = trimmed
        if owner := controller_uid(trimmed):
            self._owned[resource].setdefault(owner, set()).add(key)
        self.on_change(resource, "new" if known is None else "changed", trimmed)
        return True

    def remove(self, resource: Resource, key: Key, uid: str | None = None, version: str = "") -> None:
        """Take in that an object is gone; another one that has its name by now stays.

        Args:
            resource: Its kind.
            key: Its name.
            uid: Its UID.
            version: Resource version at which it went: what is older and comes later is ignored.
        """
        if uid and version:
            self._gone[uid] = version
            if len(self._gone) > _REMEMBERED:
                self._gone.popitem(last=False)
        known = self._items[resource].get(key)
        if known is None or (uid and known["metadata"].get("uid") != uid):
            return
        del self._items[resource][key]
        self._unindex(resource, key, known)
        self.on_change(resource, "gone", known)

    def replace(self, resource: Resource, items: Iterable[Object], before: Iterable[Key]) -> None:
        """Take in a whole list.

        Args:
            resource: The kind.
            items: What the list holds.
            before: Keys that were known before the list was asked for: what came later is not in it by right.
        """
        present = set()
        for item in items:
            present.add(key_of(item))
            self.put(resource, item)
        for key in before:
            if key not in present:
                self.remove(resource, key)

    def _unindex(self, resource: Resource, key: Key, known: Object | None) -> None:
        owner = controller_uid(known) if known is not None else None
        if owner and (keys := self._owned[resource].get(owner)):
            keys.discard(key)
            if not keys:
                del self._owned[resource][owner]


def _newer_than(item: Object, version: str, *, or_same: bool) -> bool:
    own = item["metadata"].get("resourceVersion", "")
    if not (own.isdigit() and version.isdigit()):
        return True
    return int(own) > int(version) or (or_same and own == version)


def key_of(item: Object) -> Key:
    """Namespace and name of an object."""
    metadata = item["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def controller_uid(item: Object) -> str | None:
    """UID of the object that owns this one as its controller."""
    for reference in item["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            uid: str | None = reference.get("uid")
            return uid
    return None


def _newer(item: Object, known: Object) -> bool:
    """Whether a state is to replace a known one.

    Resource versions of one kind are comparable numbers (KEP-5504). Another UID under the name is a new
    object unless its version says that it is the old one, told late.
    """
    new, old = item["metadata"].get("resourceVersion", ""), known["metadata"].get("resourceVersion", "")
    if new.isdigit() and old.isdigit():
        return int(new) > int(old)
    return bool(new != old)
