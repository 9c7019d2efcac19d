"""Files with device events: what each kernel, copy and memset is, and where it was launched from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from operator import attrgetter

import numpy as np

from sp_profiler.changed import changer
from sp_profiler.classify.batches import Batch, Batches
from sp_profiler.classify.collectives import (
    SEND_RECV,
    annotated_peers,
    collective_bytes,
    ends_of,
    is_collective,
    peers_of,
    range_bytes,
    unified_op,
)
from sp_profiler.classify.context import Context, annotated_phase
from sp_profiler.classify.dtypes import dtype_name
from sp_profiler.classify.kernels import (
    PEER_COPY,
    KernelFacts,
    activity_facts,
    is_graph_launch,
    is_nccl_kernel,
    is_peer_copy_call,
)
from sp_profiler.classify.links import Links, link_launches
from sp_profiler.classify.purpose import decide_purpose, purposes_of
from sp_profiler.classify.roles import Computations, roles_of
from sp_profiler.classify.steps import steps_at
from sp_profiler.classify.tables import Activities, Collective, Kind, Phase, Role
from sp_profiler.classify.waits import with_device_waits
from sp_profiler.record.annotate import Range
from sp_profiler.trace.tables import DEVICE_CATEGORIES, NONE, Bool, Category, CollectiveArgs, Int64, Trace

_PEER_COPY_FACTS = KernelFacts(Kind.COMMUNICATION, PEER_COPY)


@dataclass(frozen=True)
class _DeviceEvents:
    """The activities of a file before anything is known of their launches, sorted by (start, row)."""

    rows: Int64
    fact: Int64  # index into `facts`
    facts: tuple[KernelFacts, ...]

    def flag(self, name: str) -> Bool:
        return np.array([bool(getattr(fact, name)) for fact in self.facts], dtype=np.bool_)[self.fact]

    @property
    def kind(self) -> np.ndarray:
        return np.array([int(fact.kind) for fact in self.facts], dtype=np.int8)[self.fact]


def _device_events(trace: Trace) -> _DeviceEvents:
    """Decide every distinct (category, name) once and gather."""
    events = trace.events
    rows = np.flatnonzero(np.isin(events.category, [int(c) for c in DEVICE_CATEGORIES])).astype(np.int64)
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    width = len(trace.strings.pool) + 1
    keys = events.category[rows].astype(np.int64) * width + events.name[rows] + 1
    distinct, index = np.unique(keys, return_inverse=True)
    facts: list[KernelFacts] = []
    place = np.full(len(distinct), NONE, dtype=np.int64)
    for at, key in enumerate(distinct.tolist()):
        category, code = divmod(key, width)
        fact = activity_facts(Category(category), trace.strings[code - 1] or "")
        if fact is not None:
            place[at] = len(facts)
            facts.append(fact)
    fact_of = place[index.reshape(-1)]
    kept = fact_of != NONE
    return _DeviceEvents(rows[kept], fact_of[kept], tuple(facts))


def _with_peer_copies(device: _DeviceEvents, context: Context, links: Links) -> _DeviceEvents:
    """Copies whose call says "peer" are communication, whatever their record is called."""
    events = context.trace.events
    call = np.where(links.launch_row != NONE, events.name[links.launch_row], -1).astype(np.int32)
    peer = (events.category[device.rows] == int(Category.MEMCPY)) & context.trace.strings.match(
        call, is_peer_copy_call
    )
    if not bool(peer.any()):
        return device
    return replace(
        device, fact=np.where(peer, len(device.facts), device.fact), facts=(*device.facts, _PEER_COPY_FACTS)
    )


def classify_device(context: Context) -> tuple[Activities, tuple[Collective, ...]]:
    """Activities and collectives of a file with device events."""
    events, strings = context.trace.events, context.trace.strings
    device = _device_events(context.trace)
    links = link_launches(context.trace, context.nest, device.rows)
    device = _with_peer_copies(device, context, links)
    rows, kind = device.rows, device.kind
    call = np.where(links.launch_row != NONE, events.name[links.launch_row], -1).astype(np.int32)
    launch_ns = np.where(links.launch_row != NONE, events.start_ns[links.launch_row], NONE)
    communicates = (kind == Kind.COMMUNICATION) | (kind == Kind.FUSED)
    computes = np.flatnonzero((kind == Kind.COMPUTATION) | (kind == Kind.FUSED))

    phase = links.pick(context.phases.phase, int(Phase.UNKNOWN))
    role = np.full(len(rows), Role.UNKNOWN, dtype=np.int8)
    rule = np.zeros(len(rows), dtype=np.int32)
    replayed = device.flag("is_compiled") | strings.match(call, is_graph_launch)
    role[computes], rule[computes] = roles_of(
        context,
        Computations(
            events.name[rows[computes]],
            launch_ns[computes],
            phase[computes].astype(np.int8),
            device.flag("is_gemm")[computes],
            device.flag("is_gemm_part")[computes],
            device.flag("is_attention")[computes],
            device.flag("is_optimizer")[computes],
            replayed[computes],
        ),
        lambda nearest: links.through(nearest)[computes],
    )
    unknown = np.zeros(len(rows), dtype=np.bool_)
    unknown[computes] = role[computes] == Role.UNKNOWN
    _note_unknown(context, unknown & device.flag("is_compiled"), unknown & replayed)
    by_name = device.flag("is_attention_backward") & (role == Role.ATTENTION)
    phase = np.where(by_name & (phase != Phase.OPTIMIZER), np.int8(Phase.BACKWARD), phase)
    # An optimizer's kernel known by its name alone runs in the optimizer, wherever it was called from.
    phase = np.where((role == Role.OPTIMIZER) & (phase != Phase.BACKWARD), np.int8(Phase.OPTIMIZER), phase)

    operator_ns = context.start_at(links.operator)
    collective = np.full(len(rows), NONE, dtype=np.int32)
    collective[communicates] = np.arange(int(communicates.sum()), dtype=np.int32)
    activities = Activities(
        event=rows,
        name=events.name[rows],
        device=np.maximum(events.device[rows], 0),
        stream=events.stream[rows],
        start_ns=events.start_ns[rows],
        end_ns=events.start_ns[rows] + events.dur_ns[rows],
        kind=kind,
        role=role,
        role_rule=rule,
        phase=phase.astype(np.int8),
        launch_ns=launch_ns,
        step=steps_at(context.steps, np.where(launch_ns != NONE, launch_ns, operator_ns)),
        module=context.module_at(links.through(context.annotations.with_module)).astype(np.int32),
        layer=context.layer_at(links.through(context.annotations.with_layer)).astype(np.int32),
        is_gemm=device.flag("is_gemm"),
        range_start_ns=context.start_at(links.through(context.annotations.innermost)),
        node=context.row_at(links.through(context.phases.node)),
        recomputed=links.pick(context.phases.recompute, False).astype(np.bool_),
        collective=collective,
    )
    collectives = _collectives(context, device, links, activities)
    return activities, with_device_waits(context, activities, collectives, links.launch)


def _note_unknown(context: Context, compiled: Bool, replayed: Bool) -> None:
    """Count the kernels whose role nobody can tell because no operator of their own launched them."""
    for code, kernels, what in (
        ("compiled-role-unknown", compiled, "kernels that a compiler made from several operators"),
        ("graph-replay-role-unknown", replayed & ~compiled, "kernels replayed from a CUDA graph"),
    ):
        if kernels.any():
            context.ledger.add(code, "note", f"{what}: their role is unknown", count=int(kernels.sum()))


def _collectives(
    context: Context, device: _DeviceEvents, links: Links, activities: Activities
) -> tuple[Collective, ...]:
    """Every communication activity with its purpose; corrects the phase where the annotation states it.

    What differs by its place and sequence number alone is described once.
    """
    trace, annotations, waits = context.trace, context.annotations, context.waits
    rows = np.flatnonzero(activities.collective != NONE)
    comm = links.through(annotations.innermost_comm)[rows]
    batches = Batches(context, links.launch[rows])
    described: dict[tuple[object, ...], Collective] = {}
    found: list[Collective] = []
    places: list[tuple[object, ...]] = []
    told = zip(
        rows.tolist(),
        device.fact[rows].tolist(),
        _metadata(context, device, links, rows).tolist(),
        comm.tolist(),
        _nccl_ranges(context, links)[rows].tolist(),
        links.launch[rows].tolist(),
        _places(context, activities, rows, comm, links.launch_row[rows]),
        strict=True,
    )
    for activity, kind, own, at, nccl, launch, (module, layer, launch_ns, launch_end_ns) in told:
        fact = device.facts[kind]
        args = trace.collectives[own] if own != NONE else None
        sends = unified_op(args.name) if args is not None else fact.op
        batch = batches.of(launch) if launch != NONE and sends in (SEND_RECV, None) else None
        args = args if batch is None else batch.args
        annotation = annotations.range_at(at) if at != NONE else None
        stated = annotated_phase(annotation)
        if stated is not None:
            activities.phase[activity] = stated
        untold = args is None and annotation is None
        kernel = int(activities.name[activity]) if untold else NONE
        nccl_row = int(context.nest.row[nccl]) if untold and nccl != NONE else NONE
        alike = (
            kind,
            kernel,
            _inputs(trace, nccl_row),
            None if args is None else _ALL_BUT_SEQ(args),
            None if annotation is None else _fields_but_seq(annotation),
            None if batch is None else (batch.sources, batch.targets, batch.bytes),
        )
        one = described.get(alike)
        if one is None:
            one = described[alike] = _describe(context, fact, args, annotation, batch, kernel, nccl_row)
        else:
            context.book.met_again(args, one.group)
        seq = args.seq if args is not None else None
        wait = None
        if one.is_async is not False and launch_ns is not None:
            wait = waits.of_range(annotation, launch_ns)
            if wait is None and args is not None:
                wait = waits.of_metadata(args.group_name, args.seq, launch_ns)
        seq = annotation.seq if seq is None and annotation is not None else seq
        found.append(one)
        places.append((activity, seq, module, layer, launch_ns, launch_end_ns, *(wait or (None, None))))
    purposes = purposes_of(context, activities, rows, found, links.through)
    return tuple(
        _placed(one, *purpose, *place) for one, purpose, place in zip(found, purposes, places, strict=True)
    )


_placed = changer(
    Collective,
    "purpose",
    "purpose_rule",
    "activity",
    "seq",
    "module",
    "layer",
    "launch_ns",
    "launch_end_ns",
    "wait_start_ns",
    "wait_end_ns",
)
_ALL_BUT_SEQ = attrgetter(*(field.name for field in fields(CollectiveArgs) if field.name != "seq"))


def _fields_but_seq(annotation: Range) -> tuple[tuple[str, str], ...]:
    return tuple(item for item in annotation.fields.items() if item[0] != "seq")


def _inputs(trace: Trace, row: int) -> tuple[int, ...]:
    """What tells an event's name, sizes and types from others'; nothing for NONE."""
    events = trace.events
    return () if row == NONE else (int(events.name[row]), int(events.dims[row]), int(events.types[row]))


def _metadata(context: Context, device: _DeviceEvents, links: Links, rows: Int64) -> Int64:
    """The row of `Trace.collectives` that tells of each activity: its own, else that around its launch."""
    events, nest = context.trace.events, context.nest
    described = np.array(
        [is_collective(args) for args in context.trace.collectives] + [False], dtype=np.bool_
    )
    own = events.collective[device.rows[rows]]
    around = links.through(nest.nearest(described[events.collective[nest.row]]))[rows]
    return np.where(described[own], own, np.append(events.collective[nest.row], NONE)[around])


def _nccl_ranges(context: Context, links: Links) -> Int64:
    """The position of the nearest `nccl:*` range around each launch."""
    events, nest = context.trace.events, context.nest
    is_range = events.category[nest.row] != int(Category.RUNTIME)
    is_nccl = context.trace.strings.match(events.name[nest.row], lambda text: text.startswith("nccl:"))
    return links.through(nest.nearest(is_range & is_nccl))


def _places(
    context: Context, activities: Activities, rows: Int64, comm: Int64, call: Int64
) -> Iterator[tuple[str | None, int | None, int | None, int | None]]:
    """Module, layer, start of the launching call, end of the launching range, else of the launching call."""
    events = context.trace.events
    names = (*context.annotations.names, None)  # the last place answers for NONE
    launching = np.where(comm != NONE, context.row_at(comm), call)
    layer, launch_ns = activities.layer[rows], activities.launch_ns[rows]
    return zip(
        (names[module] for module in activities.module[rows].tolist()),
        _known(layer, layer != NONE),
        _known(launch_ns, launch_ns != NONE),
        _known(np.append(events.end_ns, NONE)[launching], launching != NONE),
        strict=True,
    )


def _known(values: np.ndarray, known: Bool) -> Iterator[int | None]:
    return (
        value if is_known else None for value, is_known in zip(values.tolist(), known.tolist(), strict=True)
    )


def _describe(
    context: Context,
    fact: KernelFacts,
    args: CollectiveArgs | None,
    annotation: Range | None,
    batch: Batch | None,
    kernel: int,
    nccl_row: int,
) -> Collective:
    """All of a collective but its place and sequence number.

    `kernel`: string code of its name, `nccl_row`: event row of the `nccl:*` range around its launch; both are
    asked where there are neither metadata nor a range of ours.
    """
    metadata = context.trace.metadata
    stated = annotation.fields if annotation is not None else {}
    group = context.book.from_args(args, context.book.from_key(stated.get("group")))
    size = group.size if group is not None else None
    op = unified_op(args.name) if args is not None else None
    nbytes = collective_bytes(op, args, size) if args is not None else None
    nbytes = batch.bytes if batch is not None else nbytes
    dtype = dtype_name(args.dtype) if args is not None else None
    if annotation is not None:
        op = op or unified_op(stated.get("op"))
        nbytes = annotation.bytes if nbytes is None else nbytes
        dtype = dtype or dtype_name(stated.get("dtype"))
    if args is None and annotation is None:
        op, nbytes, dtype = _by_nccl_range(context, nccl_row, fact)
        group = context.book.only_group() if is_nccl_kernel(context.trace.strings[kernel] or "") else None
    purpose, purpose_rule = decide_purpose(annotation)
    is_async = args.is_async if args is not None else None
    is_async = annotation.is_async if is_async is None and annotation is not None else is_async
    source, target = ends_of(op, args, metadata.rank, group.ranks if group is not None else ())
    if batch is not None:
        source, target = batch.source, batch.target
    elif annotation is not None and source is None and target is None:
        source, target = annotation.source, annotation.target
    peers = batch.peers if batch is not None else peers_of(op, args, metadata.rank)
    if batch is None and peers and (source is not None or target is not None):
        peers = tuple(sorted({end for end in (source, target) if end is not None}))
    if op == "all_to_all" and source is not None and target is not None and _is_even(args):
        op, peers = SEND_RECV, tuple(sorted({source, target}))  # NCCL leaves out what is empty
    return Collective(
        activity=NONE,
        op=op or fact.op,
        group=group,
        bytes=nbytes,
        dtype=dtype,
        seq=None,
        is_async=is_async,
        purpose=purpose,
        purpose_rule=purpose_rule,
        module=None,
        layer=None,
        partner_what=stated.get("partner"),
        launch_ns=None,
        launch_end_ns=None,
        wait_start_ns=None,
        wait_end_ns=None,
        in_elements=args.in_elements if args is not None else None,
        out_elements=args.out_elements if args is not None else None,
        peers=peers or annotated_peers(annotation),
        group_name=args.group_name if args is not None else None,
        source=source,
        target=target,
    )


def _is_even(args: CollectiveArgs | None) -> bool:
    """A shift gives as much as it takes; what experts exchange hardly ever does."""
    return args is not None and args.in_elements == args.out_elements


def _by_nccl_range(
    context: Context, row: int, fact: KernelFacts
) -> tuple[str | None, int | None, str | None]:
    """Operation, bytes and type by the `nccl:*` range around the launch, else by the kernel's name.

    The range says more than the name where the name covers several operations (`SendRecv`, `Generic`).
    """
    if row == NONE or fact.op == PEER_COPY:
        return fact.op, None, None
    events, strings = context.trace.events, context.trace.strings
    op = unified_op(strings[int(events.name[row])])
    if fact.op not in (None, SEND_RECV, op):
        return fact.op, None, None
    return op, *range_bytes(op, strings[int(events.dims[row])], strings[int(events.types[row])])
