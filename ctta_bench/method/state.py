"""Capture the state of an object as a tree of tensors and plain values, and load it again.

Reset, checkpoints and resume of all methods use it: every attribute is captured according to its
type. The tree has only dicts, lists, tensors and primitives, so that
`torch.load(weights_only=True)` reads it.
"""

import functools
import inspect
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn

from ctta_bench.errors import MethodError

Node = dict[str, Any]
_MISSING = object()
LARGE = 2**14  # values of a tensor; copies of smaller ones take little memory
_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
# Settings, not state: they are set again when the object is built.
_CONSTANT = (torch.device, torch.dtype, torch.Size, BaseModel, PurePath, type)


class _Capture:
    def __init__(self, owner: object, frozen: nn.Module | None) -> None:
        self.owner = owner
        self.frozen = frozen
        self.owned: set[int] = set()
        self.seen: dict[int, int] = {}
        self.alive: list[object] = []  # ids are valid only while the objects exist
        self.copies: dict[Any, list[Tensor]] = {}
        for parameter in frozen.parameters() if frozen is not None else ():
            if not parameter.requires_grad and (like := self.likes(parameter)) is not None:
                like.append(parameter.detach())

    def note_modules(self, value: object, depth: int = 0) -> None:
        """Note the tensors of modules, which are saved with their module and nowhere else."""
        if isinstance(value, nn.Module):
            self.owned.update(map(id, value.parameters()))
            self.owned.update(map(id, value.buffers()))
        elif isinstance(value, dict):
            for item in value.values():
                self.note_modules(item, depth + 1)
        elif isinstance(value, list | tuple | deque) and depth < 3:
            for item in value:
                self.note_modules(item, depth + 1)

    def encode(self, value: Any, path: str) -> Node:
        if isinstance(value, np.number | np.bool_):  # first: np.float64 is a float, too
            return {"kind": "scalar", "value": torch.from_numpy(np.asarray(value))}
        if isinstance(value, Enum):
            return {"kind": "enum", "class": type(value).__name__, "name": value.name}
        if isinstance(value, _PLAIN):
            return {"kind": "value", "value": value}
        if value is self.owner:
            return {"kind": "owner"}
        if isinstance(value, nn.Module):
            return {"kind": "module", "tensors": self.module_tensors(value)}
        if isinstance(value, Tensor):
            return self.encode_tensor(value)
        if isinstance(value, torch.optim.Optimizer):
            return {"kind": "stateful", "state": _clone(value.state_dict())}
        if isinstance(value, torch.Generator):
            return {"kind": "generator", "state": value.get_state()}
        if isinstance(value, np.ndarray):
            return {"kind": "array", "value": torch.from_numpy(value.copy())}
        if isinstance(value, random.Random):
            return {"kind": "random", "state": value.getstate()}
        if isinstance(value, np.random.Generator):
            return {"kind": "numpy_random", "state": self.encode(value.bit_generator.state, path)}
        if isinstance(value, dict):
            items = [
                [self.key(k, path), self.encode(v, f"{path}[{k!r}]")] for k, v in value.items()
            ]
            return {"kind": "dict", "items": items, "ordered": isinstance(value, OrderedDict)}
        if isinstance(value, list | tuple | deque | set | frozenset):
            return self.encode_sequence(value, path)
        if isinstance(value, _CONSTANT) or inspect.isroutine(value):
            return {"kind": "constant"}
        if isinstance(value, functools.partial):
            return {"kind": "constant"}
        return self.encode_object(value, path)

    def key(self, key: Any, path: str) -> Any:
        key = key.item() if isinstance(key, np.generic) else key
        if not isinstance(key, (*_PLAIN, tuple)):
            raise self.refusal(f"a key of {path}", key)
        return key

    def refusal(self, path: str, value: object) -> MethodError:
        return MethodError(
            f"{type(self.owner).__name__}: {path} is a {type(value).__name__}, which cannot be "
            "saved; use tensors, numbers, lists, dicts or plain objects for state."
        )

    def encode_sequence(self, value: Any, path: str) -> Node:
        kind = next(t for t in (tuple, list, deque, frozenset, set) if isinstance(value, t))
        items = [self.encode(v, f"{path}[{i}]") for i, v in enumerate(value)]
        node: Node = {"kind": "sequence", "type": kind.__name__, "items": items}
        if isinstance(value, deque):
            node["maxlen"] = value.maxlen
        if hasattr(value, "_fields"):
            node["class"] = type(value).__name__
        return node

    def encode_tensor(self, value: Tensor) -> Node:
        if id(value) in self.owned:
            return {"kind": "owned"}
        if id(value) in self.seen:
            return {"kind": "same", "id": self.seen[id(value)]}
        number = self.remember(value)
        kind = "parameter" if isinstance(value, nn.Parameter) else "tensor"
        return {"kind": kind, "id": number, "value": self.copy(value)}

    def copy(self, value: Tensor) -> Tensor:
        """A copy; equal tensors share one, as student, teacher and anchor are equal at the start.

        A tensor equal to a frozen weight of the source model needs no copy: that weight is used.
        """
        value = value.detach()
        like = self.likes(value)
        if like is None:
            return value.clone()
        found = next((other for other in like if torch.equal(_bits(other), _bits(value))), None)
        if found is None:
            found = value.clone()
            like.append(found)
        return found

    def likes(self, value: Tensor) -> list[Tensor] | None:
        """Copies that may equal a tensor; None for tensors that are not compared."""
        if value.numel() < LARGE or value.dtype not in _BITS or not value.is_contiguous():
            return None
        first = tuple(_bits(value).flatten()[:4].tolist())
        return self.copies.setdefault((value.shape, value.dtype, value.device, first), [])

    def encode_object(self, value: Any, path: str) -> Node:
        if id(value) in self.seen:
            return {"kind": "same", "id": self.seen[id(value)]}
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            return {"kind": "stateful", "state": _clone(value.state_dict())}
        if not hasattr(value, "__dict__"):
            raise self.refusal(path, value)
        number = self.remember(value)
        fields = {k: self.encode(v, f"{path}.{k}") for k, v in vars(value).items()}
        return {"kind": "object", "id": number, "class": type(value).__name__, "fields": fields}

    def remember(self, value: object) -> int:
        self.alive.append(value)
        return self.seen.setdefault(id(value), len(self.seen))

    def module_tensors(self, module: nn.Module) -> dict[str, Tensor]:
        """The tensors that can change: all of a module; of the source model (`frozen`) only
        trainable parameters and buffers."""
        names = set(module.state_dict())
        if module is self.frozen:
            names -= {n for n, p in module.named_parameters() if not p.requires_grad}
        return {n: self.copy(t) for n, t in _tensors(module).items() if n in names}


def _bits(value: Tensor) -> Tensor:
    """A tensor's values as integers: 0 differs from -0, and NaN equals itself."""
    return value.detach().view(_BITS[value.dtype])


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _clone(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {k: _clone(v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_clone(v) for v in tree)
    return tree


def capture(
    owner: object, *, skip: frozenset[str] = frozenset(), frozen: nn.Module | None = None
) -> Node:
    """A copy of every attribute of `owner` except those in `skip`; equal large tensors share one.

    Frozen parameters of the module `frozen` are not copied. Raises MethodError for an attribute
    that cannot be saved.
    """
    attributes = {k: v for k, v in vars(owner).items() if k not in skip}
    job = _Capture(owner, frozen)
    for value in vars(owner).values():
        job.note_modules(value)
    return {k: job.encode(v, k) for k, v in attributes.items()}


class _Load:
    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.made: dict[int, Any] = {}

    def decode(self, node: Node, current: Any, path: str) -> Any:
        return getattr(self, f"decode_{node['kind']}")(node, current, path)

    def decode_value(self, node: Node, current: Any, path: str) -> Any:
        return node["value"]

    def decode_scalar(self, node: Node, current: Any, path: str) -> Any:
        return node["value"].numpy()[()]

    def decode_owner(self, node: Node, current: Any, path: str) -> Any:
        return self.owner

    def decode_enum(self, node: Node, current: Any, path: str) -> Any:
        return self.find_class(node, current, path)[node["name"]]

    def decode_constant(self, node: Node, current: Any, path: str) -> Any:
        return self.existing(current, path)

    decode_owned = decode_constant

    def decode_module(self, node: Node, current: Any, path: str) -> Any:
        module = self.existing(current, path)
        tensors = _tensors(module)
        with torch.no_grad():
            for name, value in node["tensors"].items():
                if name not in tensors or tensors[name].shape != value.shape:
                    raise MethodError(
                        f"{type(self.owner).__name__}.{path} has no tensor {name} of shape "
                        f"{tuple(value.shape)}: the saved state belongs to another method or model."
                    )
                tensors[name].copy_(value)
        return module

    def decode_tensor(self, node: Node, current: Any, path: str) -> Any:
        value = node["value"].clone()
        if isinstance(current, Tensor):
            value = value.to(current.device)
            if current.is_leaf and current.requires_grad and current.shape == value.shape:
                with torch.no_grad():
                    value = current.copy_(value)  # in place: an optimiser may refer to it
        self.made[node["id"]] = value
        return value

    def decode_parameter(self, node: Node, current: Any, path: str) -> Any:
        parameter = self.existing(current, path)
        with torch.no_grad():
            parameter.copy_(node["value"])
        self.made[node["id"]] = parameter
        return parameter

    def decode_same(self, node: Node, current: Any, path: str) -> Any:
        return self.made[node["id"]]

    def decode_stateful(self, node: Node, current: Any, path: str) -> Any:
        self.existing(current, path).load_state_dict(_clone(node["state"]))
        return current

    def decode_generator(self, node: Node, current: Any, path: str) -> Any:
        self.existing(current, path).set_state(node["state"])
        return current

    def decode_random(self, node: Node, current: Any, path: str) -> Any:
        self.existing(current, path).setstate(node["state"])
        return current

    def decode_numpy_random(self, node: Node, current: Any, path: str) -> Any:
        generator = self.existing(current, path).bit_generator
        generator.state = self.decode(node["state"], _MISSING, path)
        return current

    def decode_array(self, node: Node, current: Any, path: str) -> Any:
        return node["value"].numpy().copy()

    def decode_dict(self, node: Node, current: Any, path: str) -> Any:
        old = current if isinstance(current, dict) else {}
        items = {
            k: self.decode(v, old.get(k, _MISSING), f"{path}[{k!r}]") for k, v in node["items"]
        }
        if isinstance(current, defaultdict | Counter):  # they have more than the items
            current.clear()
            current.update(items)
            return current
        return OrderedDict(items) if node["ordered"] else items

    def decode_sequence(self, node: Node, current: Any, path: str) -> Any:
        old = list(current) if isinstance(current, list | tuple | deque) else []
        old += [_MISSING] * (len(node["items"]) - len(old))
        items = [self.decode(v, old[i], f"{path}[{i}]") for i, v in enumerate(node["items"])]
        if node["type"] == "deque":
            return deque(items, maxlen=node["maxlen"])
        if "class" in node:
            return self.find_class(node, current, path)(*items)
        types = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
        return types[node["type"]](items)

    def decode_object(self, node: Node, current: Any, path: str) -> Any:
        kind = self.find_class(node, current, path)
        target = current if type(current) is kind else kind.__new__(kind)
        self.made[node["id"]] = target
        old = vars(target)
        for name, field in node["fields"].items():
            value = self.decode(field, old.get(name, _MISSING), f"{path}.{name}")
            object.__setattr__(target, name, value)
        return target

    def find_class(self, node: Node, current: Any, path: str) -> Any:
        """The class of a saved object: that of the present attribute, or the class of this name
        in the modules that define the owner and its bases; no other class is ever built."""
        if type(current).__name__ == node["class"]:
            return type(current)
        homes = [sys.modules[base.__module__] for base in type(self.owner).__mro__]
        for home in homes:
            if inspect.isclass(kind := getattr(home, node["class"], None)):
                return kind
        raise MethodError(
            f"{type(self.owner).__name__}.{path}: the saved state needs the class "
            f"{node['class']!r}, which {homes[0].__name__} does not define."
        )

    def existing(self, current: Any, path: str) -> Any:
        if current is _MISSING:
            raise MethodError(
                f"{type(self.owner).__name__}.{path} is in the saved state but not in a new "
                "object: create modules, optimisers and parameters in setup()."
            )
        return current


def load_state(owner: object, tree: Node, *, skip: frozenset[str] = frozenset()) -> None:
    """Load a captured tree into `owner`; attributes that the tree lacks are deleted.

    Modules, parameters and optimisers are filled in place; everything else is replaced.
    Raises MethodError if the tree was captured from another kind of object.
    """
    job = _Load(owner)
    for name in set(vars(owner)) - set(tree) - skip:
        delattr(owner, name)
    for name, node in tree.items():
        setattr(owner, name, job.decode(node, vars(owner).get(name, _MISSING), name))
