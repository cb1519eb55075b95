"""Tensors of all clients of a block, which code written for one client handles like one client's tensors.

A PerClient stands for one tensor per client. Sums and multiples of such tensors are not computed at once but kept as
terms, and gradients keep the form in which they were computed, until `Buffers.settle` evaluates a whole carry, in place
where it can: a step z - eta (g - g0 + u) then reads and writes the weights once, and where g and g0 are the same
gradient it computes neither. Every other function is mapped over the clients by torch.func.vmap.

Legend: C clients.
"""

import math
import numbers
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class Term(Protocol):
    """A term of a sum, (C, *shape), which can be added to memory. Terms are compared by identity."""

    def ready(self) -> None:
        """Computes the term where that is left to do. It is called before any memory is written."""

    def add_to(self, out: Tensor, scale: float) -> None:
        """Adds `scale` times the term to `out` (C, *shape)."""

    def fold_into(self, out: Tensor, weights_C: Tensor) -> None:
        """Adds the term's weighted sum over the clients to `out` (*shape)."""


@dataclass(frozen=True, eq=False)
class Known:
    """A computed tensor (C, *shape), or (*shape) if it is the same for all clients."""

    tensor: Tensor
    shared: bool

    def ready(self) -> None:
        """Does nothing, since the tensor is computed already."""

    def add_to(self, out: Tensor, scale: float) -> None:
        out.add_(self.tensor, alpha=scale)

    def fold_into(self, out: Tensor, weights_C: Tensor) -> None:
        if self.shared:
            out.add_(self.tensor, alpha=float(weights_C.sum()))
        else:
            out.add_((weights_C @ self.tensor.flatten(1).to(weights_C.dtype)).view(out.shape))


Terms = dict[Term, float]

# Attributes and methods of a tensor that do not look at its numbers.
_METADATA = {
    "shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "is_cuda", "is_cpu", "is_meta",
    "is_sparse", "itemsize", "nbytes", "size", "dim", "numel", "nelement", "element_size", "is_floating_point",
    "is_complex", "__len__", "__hash__",
}  # fmt: skip


class PerClient(Tensor):
    """One tensor for each of C clients, with the shape, dtype and device of one client's tensor."""

    clients: int
    terms: Terms

    @staticmethod
    def of(like: Tensor, clients: int, terms: Terms) -> "PerClient":
        """Returns the sum of these terms, with the shape, dtype and device of `like`."""
        total: PerClient = Tensor._make_wrapper_subclass(PerClient, like.shape, dtype=like.dtype, device=like.device)
        total.clients, total.terms = clients, terms
        return total

    @staticmethod
    def stacked(tensor: Tensor) -> "PerClient":
        """Returns the clients' tensors that are stacked in one of shape (C, *shape)."""
        return PerClient.of(tensor[0], len(tensor), {Known(tensor, shared=False): 1.0})

    @staticmethod
    def shared(tensor: Tensor, clients: int) -> "PerClient":
        """Returns a tensor (*shape) as that of each of the clients."""
        return PerClient.of(tensor, clients, {Known(tensor, shared=True): 1.0})

    @staticmethod
    def for_all(tensor: Tensor, clients: int) -> "PerClient":
        """Returns a PerClient unchanged, and a plain tensor as that of each of the clients."""
        return tensor if isinstance(tensor, PerClient) else PerClient.shared(tensor, clients)

    def known(self) -> Known:
        """Returns the clients' numbers, which are computed first where that is left to do."""
        only = _only(self.terms)
        if only is not None:
            return only
        shape, dtype, device = self._like
        # The sum replaces the terms, so that it is computed once.
        known = Known(_sum(self.terms, torch.empty(self.clients, *shape, dtype=dtype, device=device)), shared=False)
        self.terms = {known: 1.0}
        return known

    def folded(self, weights_C: Tensor) -> Tensor:
        """Returns the weighted sum over the clients, of one client's shape and the dtype of the weights."""
        shape, _, device = self._like
        out = torch.zeros(shape, dtype=weights_C.dtype, device=device)
        for term, scale in self.terms.items():
            term.ready()
            term.fold_into(out, scale * weights_C)
        return out

    @property
    def _like(self) -> tuple[torch.Size, torch.dtype, torch.device]:
        with torch._C.DisableTorchFunctionSubclass():
            return self.shape, self.dtype, self.device

    def __add__(self, other: Any) -> Any:
        return self._plus(other, 1.0, torch.add)

    def __sub__(self, other: Any) -> Any:
        return self._plus(other, -1.0, torch.sub)

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, numbers.Real):
            return self.mapped(torch.mul, (self, other), {})
        return PerClient.of(self, self.clients, {term: float(other) * scale for term, scale in self.terms.items()})

    def __neg__(self) -> Any:
        return self * -1.0

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __truediv__(self, other: Any) -> Any:
        return self * (1 / other) if isinstance(other, numbers.Real) else self.mapped(torch.div, (self, other), {})

    def _plus(self, other: Any, sign: float, function: Callable[..., Any]) -> Any:
        if not isinstance(other, PerClient):
            return self.mapped(function, (self, other), {})
        if other.shape != self.shape or other.dtype != self.dtype:
            return self.mapped(function, (self, other), {})
        terms = dict(self.terms)
        for term, scale in other.terms.items():
            terms[term] = terms.get(term, 0.0) + sign * scale
            if not terms[term]:
                del terms[term]
        return PerClient.of(self, self.clients, terms)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__ if func.__name__ != "__get__" else func.__self__.__name__
        if name in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if func is torch.zeros_like and not kwargs:
            return PerClient.of(args[0], args[0].clients, {})
        if (name.endswith("_") and not name.startswith("__")) or name.startswith("__i") or name == "__setitem__":
            return cls._in_place(func, *args, **(kwargs or {}))
        return cls.mapped(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(f"{func} has no meaning for the tensors of several clients")

    @classmethod
    def _in_place(cls, func: Any, target: "PerClient", *args: Any, **kwargs: Any) -> "PerClient":
        """Lets `func` change `target` in new memory, so that other tensors of the same terms stay as they are."""
        memory = torch.empty(target.clients, *target.shape, dtype=target.dtype, device=target.device)
        target.terms = {Known(_sum(target.terms, memory), shared=False): 1.0}

        def written(one: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            func(one, *args, **kwargs)
            return one

        cls.mapped(written, (target, *args), kwargs)
        return target

    @staticmethod
    def mapped(func: Any, args: Any, kwargs: Any) -> Any:
        """Returns the results of `func` on each client's tensors, mapped over the clients by vmap."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        given = [leaf.known() if isinstance(leaf, PerClient) else None for leaf in leaves]
        clients = next(leaf.clients for leaf in leaves if isinstance(leaf, PerClient))

        def one_client(differing: list[Tensor]) -> Any:
            """Calls `func` for one client, with its `differing` tensors in order and those that all clients have."""
            rest = iter(differing)
            inputs = [
                leaf if known is None else known.tensor if known.shared else next(rest)
                for leaf, known in zip(leaves, given, strict=True)
            ]
            args, kwargs = pytree.tree_unflatten(inputs, spec)
            return func(*args, **kwargs)

        differing = [known.tensor for known in given if known is not None and not known.shared]
        if differing:
            return pytree.tree_map(PerClient.stacked, torch.func.vmap(one_client)(differing))
        return pytree.tree_map(lambda result: PerClient.shared(result, clients), one_client([]))


def _only(terms: Terms) -> Known | None:
    """Returns the tensor that these terms consist of, if it is one with the factor 1; otherwise None."""
    if len(terms) != 1:
        return None
    ((term, scale),) = terms.items()
    return term if isinstance(term, Known) and scale == 1 else None


def _sum(terms: Terms, out: Tensor) -> Tensor:
    for term in terms:
        term.ready()
    return _added(terms, out.zero_())


def _added(terms: Terms, out: Tensor) -> Tensor:
    for term, scale in terms.items():
        term.add_to(out, scale)
    return out


@dataclass
class Buffers:
    """Memory of carries, used again from step to step and from group to group: new memory costs as much as a step.

    Attributes:
        own: by id, tensors that nothing but the carry refers to.
        free: flat memory that holds nothing any more.
    """

    own: dict[int, Tensor] = field(default_factory=dict)
    free: list[Tensor] = field(default_factory=list)

    def release(self) -> None:
        """Takes all memory back, once the carry is not needed any more."""
        self._keep(set())

    def settle(self, carry: Any) -> Any:
        """Returns the carry with the terms of every tensor summed, in place where the old memory is free to use."""
        leaves = {id(leaf): leaf for leaf in pytree.tree_leaves(carry) if isinstance(leaf, PerClient)}
        for leaf in leaves.values():
            for term in leaf.terms:
                term.ready()
        uses = Counter(term for leaf in leaves.values() for term in leaf.terms)
        for leaf in leaves.values():
            if leaf.terms and _only(leaf.terms) is None:
                leaf.terms = {Known(self._settled(leaf, uses), shared=False): 1.0}
        held = {id(term.tensor) for leaf in leaves.values() for term in leaf.terms if isinstance(term, Known)}
        self._keep(held)
        return carry

    def _settled(self, leaf: PerClient, uses: Counter[Term]) -> Tensor:
        terms = leaf.terms
        for term, scale in terms.items():
            if isinstance(term, Known) and scale == 1 and uses[term] == 1 and id(term.tensor) in self.own:
                return _added({other: scale for other, scale in terms.items() if other is not term}, term.tensor)
        out = self._memory(leaf)
        whole = next((term for term in terms if isinstance(term, Known) and terms[term] == 1), None)
        if whole is None:
            return _added(terms, out.zero_())
        return _added({term: scale for term, scale in terms.items() if term is not whole}, out.copy_(whole.tensor))

    def _keep(self, held: set[int]) -> None:
        for key in self.own.keys() - held:
            whole = self.own.pop(key)._base
            assert whole is not None
            self.free.append(whole)

    def _memory(self, leaf: PerClient) -> Tensor:
        shape = (leaf.clients, *leaf.shape)
        n = math.prod(shape)
        fits = [t for t in self.free if t.numel() >= n and t.dtype == leaf.dtype]
        if fits:
            whole = min(fits, key=Tensor.numel)
            self.free = [t for t in self.free if t is not whole]
        else:
            whole = torch.empty(n, dtype=leaf.dtype, device=leaf.device)
        made = whole[:n].view(shape)
        self.own[id(made)] = made
        return made
