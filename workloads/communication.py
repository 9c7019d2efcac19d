"""The one way to a collective: launches it, marks it for the profiler and records it.

Nothing else in `workloads` calls `torch.distributed` for data. All collectives work along the first
dimension of contiguous tensors and sum where they reduce. A shift around a ring (send_recv) counts as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from sp_profiler.record.annotate import annotate

# Both pairs do the same; torch 2.13 warns when the older names are used.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_current_graph_task: Any = getattr(torch._C, "_current_graph_task_id")  # noqa: B009 - its stub lacks it
"""A number while the autograd engine runs on this thread, else -1."""


@dataclass(frozen=True)
class Site:
    """Where in the model something happens: `layers.3.attention.q`, and the block's number."""

    module: str
    layer: int | None = None


@dataclass(frozen=True)
class Intent:
    """Why a collective happens. `purpose` and `partner` as in the range grammar."""

    site: Site
    purpose: str
    phase: str
    """forward | backward | optimizer (from the end of backward on)."""
    partner: str | None = None
    """The computation of the same module that should hide it, also where the schedule does not try."""


def forward_phase() -> str:
    """The phase of what a forward does: one that a checkpoint repeats belongs to the backward that asked."""
    return "backward" if _current_graph_task() != -1 else "forward"


def activation_intent(site: Site) -> Intent:
    """Of a collective in a linear's forward, whose result every computation there needs."""
    return Intent(site, "activation", forward_phase())


@dataclass(frozen=True)
class Call:
    """One recorded collective. `bytes` is the full tensor, as in the range grammar."""

    op: str
    group: str
    bytes: int
    dtype: str
    is_async: bool
    seq: int
    module: str
    layer: int | None
    purpose: str
    partner: str | None
    phase: str
    src: int | None = None
    """Of a send_recv: the global ranks it receives from and sends to."""
    dst: int | None = None


class Work(Protocol):
    def wait(self) -> Any: ...


class Transport:
    """The collectives of torch.distributed, with one name each. Returns a handle when `is_async`."""

    def all_reduce(self, output: Tensor, source: Tensor, group: Any, is_async: bool) -> Work | None:
        assert output is source, "an all-reduce is done in place"
        return dist.all_reduce(output, group=group, async_op=is_async)

    def all_gather(self, output: Tensor, source: Tensor, group: Any, is_async: bool) -> Work | None:
        return _all_gather(output, source, group=group, async_op=is_async)

    def reduce_scatter(self, output: Tensor, source: Tensor, group: Any, is_async: bool) -> Work | None:
        return _reduce_scatter(output, source, group=group, async_op=is_async)

    def all_to_all(self, output: Tensor, source: Tensor, group: Any, is_async: bool) -> Work | None:
        return dist.all_to_all_single(output, source, group=group, async_op=is_async)

    def send_recv(self, output: Tensor, source: Tensor, group: Any, is_async: bool) -> Work | None:
        """Everything to the next rank of the group, in exchange for everything of the one before.

        On NCCL a batch, because a bare send that waits for its peer's receive can deadlock. Elsewhere an
        all-to-all in which the others get nothing: gloo's sends run from post to wait on the calling
        thread, which says nothing of the transfer; its all-to-all runs on a thread of its own.
        """
        ranks = dist.get_process_group_ranks(group)
        place = ranks.index(dist.get_rank())
        before, following = (place - 1) % len(ranks), (place + 1) % len(ranks)
        if dist.get_backend(group) == dist.Backend.NCCL:
            sending = dist.P2POp(dist.isend, source, ranks[following], group)
            receiving = dist.P2POp(dist.irecv, output, ranks[before], group)
            batch = Batch(dist.batch_isend_irecv([sending, receiving]))
            return batch if is_async else batch.wait()
        sent, received = [0] * len(ranks), [0] * len(ranks)
        sent[following], received[before] = len(source), len(output)
        return dist.all_to_all_single(output, source, received, sent, group=group, async_op=is_async)


@dataclass(frozen=True)
class Batch:
    """Several operations that are waited for together."""

    works: Sequence[Work]

    def wait(self) -> None:
        for work in self.works:
            work.wait()


class Pending:
    """A collective in flight. Until `wait` returns neither its input nor its result may be touched."""

    def __init__(self, work: Work, output: Tensor, source: Tensor, call: Call) -> None:
        self._work = work
        self._output = output
        self._source: Tensor | None = source  # kept alive: the transport reads it until the end
        self._call = call

    def wait(self) -> Tensor:
        """The result; the launching thread (on GPUs: its stream) waits for it."""
        call = self._call
        with annotate(
            "wait", op=call.op, group=call.group, seq=call.seq, module=call.module, layer=call.layer
        ):
            self._work.wait()
        self._source = None
        return self._output


@dataclass(frozen=True)
class Complete:
    """The result of a collective that was waited for where it was launched."""

    output: Tensor

    def wait(self) -> Tensor:
        return self.output


class Communicator:
    """One process group. `run` is synchronous, `start` asynchronous; both take one of five ops.

    ============== ==================== ====================
    op             input                result
    ============== ==================== ====================
    all_reduce     [n, ...]             [n, ...], in place
    all_gather     [n, ...]             [n * size, ...]
    reduce_scatter [n, ...]             [n / size, ...]
    all_to_all     [n, ...]             [n, ...], part i of every rank on rank i, in the order of ranks
    send_recv      [n, ...]             [n, ...], what the rank before had: a shift to the next rank
    ============== ==================== ====================
    """

    def __init__(
        self,
        description: str,
        ranks: Sequence[int],
        rank: int,
        group: Any,
        transport: Transport | None = None,
    ) -> None:
        self.description = description
        self.ranks = tuple(ranks)
        self.rank = self.ranks.index(rank)
        self.size = len(self.ranks)
        self.key = f"{description}[{','.join(map(str, self.ranks))}]"
        self.calls: list[Call] = []
        self._group = group
        self._transport = transport or Transport()
        self._next_seq = 0

    @property
    def communicators(self) -> tuple[Communicator]:
        return (self,)

    def twin(self) -> Communicator:
        """Another communicator over the same process group, with its own record and numbering."""
        return Communicator(self.description, self.ranks, self.ranks[self.rank], self._group, self._transport)

    def run(self, op: str, source: Tensor, intent: Intent) -> Tensor:
        """The result of a synchronous collective; its range lasts to the end of the collective."""
        source = source.contiguous()
        call = self._record(op, source, intent, is_async=False)
        output = self._output(op, source)
        with _comm_range(call):
            getattr(self._transport, op)(output, source, self._group, False)
        return output

    def start(self, op: str, source: Tensor, intent: Intent) -> Pending:
        """Launch a collective; its range lasts until the launching call returns."""
        source = source.contiguous()
        call = self._record(op, source, intent, is_async=True)
        output = self._output(op, source)
        with _comm_range(call):
            work = getattr(self._transport, op)(output, source, self._group, True)
        return Pending(work, output, source, call)

    def launch(self, comm: str, op: str, source: Tensor, intent: Intent) -> Pending | Complete:
        """`start` where `comm` is async, `run` where it is sync; either way `wait` gives the result."""
        if comm == "async":
            return self.start(op, source, intent)
        return Complete(self.run(op, source, intent))

    def _output(self, op: str, source: Tensor) -> Tensor:
        if op == "all_reduce":
            return source
        length = source.shape[0]
        if op in ("reduce_scatter", "all_to_all") and length % self.size:
            raise ValueError(f"{length} rows cannot be divided over the {self.size} ranks of {self.key}")
        rows = {"all_gather": length * self.size, "reduce_scatter": length // self.size}.get(op, length)
        return source.new_empty(rows, *source.shape[1:])

    def _record(self, op: str, source: Tensor, intent: Intent, *, is_async: bool) -> Call:
        copies = self.size if op == "all_gather" else 1
        is_shift = op == "send_recv"
        call = Call(
            op=op,
            group=self.key,
            bytes=source.numel() * source.element_size() * copies,
            dtype=str(source.dtype).removeprefix("torch."),
            is_async=is_async,
            seq=self._next_seq,
            module=intent.site.module,
            layer=intent.site.layer,
            purpose=intent.purpose,
            partner=intent.partner,
            phase=intent.phase,
            src=self.ranks[self.rank - 1] if is_shift else None,
            dst=self.ranks[(self.rank + 1) % self.size] if is_shift else None,
        )
        self._next_seq += 1
        self.calls.append(call)
        return call


def new_communicator(description: str, ranks: Sequence[int]) -> Communicator:
    """A process group of its own, so that traces name it. Every rank of the world must call this."""
    group = dist.new_group(list(ranks), group_desc=description)
    return Communicator(description, ranks, dist.get_rank(), group)


def own_communicator(description: str, groups: Sequence[Sequence[int]]) -> Communicator:
    """A process group for each of `groups`, which divide the world's ranks, and the one of this rank.

    Every rank of the world must call this, with the same groups.
    """
    rank = dist.get_rank()
    made = [(ranks, dist.new_group(list(ranks), group_desc=description)) for ranks in groups]
    (mine,) = [(ranks, group) for ranks, group in made if rank in ranks]
    return Communicator(description, mine[0], rank, mine[1])


def _comm_range(call: Call) -> Any:
    return annotate(
        "comm",
        op=call.op,
        group=call.group,
        bytes=call.bytes,
        dtype=call.dtype,
        async_=call.is_async,
        seq=call.seq,
        purpose=call.purpose,
        partner=call.partner,
        phase=call.phase,
        src=call.src,
        dst=call.dst,
        module=call.module,
        layer=call.layer,
    )
