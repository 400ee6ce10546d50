"""What a step may ask of a driver, and what goes with it: the vocabulary of cases beyond query, prepare, execute.

Everything is data, so that a case can be saved and replayed. Numbers that only a run knows (where a value lies, what
time it is) are relative here. Objects that steps make (prepared models, bursts, buffers, fences, cache files) are
kept in numbered slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from nnhal.types import ErrorStatus, ExecutionPreference, Priority

SECOND = 1_000_000_000


class Action(str, Enum):
    """What a step asks of the driver, or does beside it."""

    DESCRIBE = "describe"  # everything that a device says of itself
    RESTART = "restart"  # the suite goes on with a fresh process of the driver
    QUERY = "query"  # get_supported_operations
    PREPARE = "prepare"
    LOAD = "load"  # prepare_model_from_cache
    TAMPER = "tamper"  # the suite changes cache files
    EXECUTE = "execute"  # in the step's mode, and waits for the end
    LAUNCH = "launch"  # an asynchronous or fenced execution that is not waited for
    WAIT = "wait"  # for the end of a launch
    ASK = "ask"  # how a launched fenced execution went, at once
    FENCE = "fence"  # the suite makes a fence
    SIGNAL = "signal"  # the suite ends a fence of its own
    OPEN_BURST = "open_burst"
    FORGET = "forget"  # release_memory_resource of a burst
    CREATE = "create"  # create_reusable_execution
    ALLOCATE = "allocate"
    COPY_IN = "copy_in"
    COPY_OUT = "copy_out"
    RELEASE = "release"  # an object of the driver


class Thing(IntEnum):
    """Kinds of object that a driver gives out."""

    PREPARED = 0
    BURST = 1
    EXECUTION = 2
    BUFFER = 3


@dataclass(frozen=True)
class Preparation:
    """What goes with a preparation, and with loading from cache files.

    Attributes:
        preference: of the execution; a plain number where it is out of range on purpose.
        priority: the same.
        deadline: nanoseconds from the call on; 0 or below is past.
        cache: number of the cache files to save to or load from; None for none.
        token: 32 bytes; other lengths on purpose.
        handles: what is wrong with the descriptors: empty, or one of `HANDLES`.
        pools: kind of memory that the model's pools are put into; empty leaves them as they are. For queries, too.
    """

    preference: int = ExecutionPreference.FAST_SINGLE_ANSWER
    priority: int = Priority.MEDIUM
    deadline: int | None = None
    cache: int | None = None
    token: bytes = bytes(32)
    handles: str = ""
    pools: str = ""


HANDLES = (
    "model_one_fewer",
    "model_one_more",
    "model_none",
    "data_one_fewer",
    "data_one_more",
    "data_none",
    "read_only",
    "write_only",
    "moved",  # positions of the descriptors are not 0: no fault
    "no_descriptor",  # the first model file has none
    "unsupported",  # one file of each kind, for a driver that asks for none; nothing is asked of any other
)


@dataclass(frozen=True)
class Tampering:
    """What the suite does to cache files.

    Attributes:
        cache: number of the files.
        change: `truncate`, `extend`, `flip` (one bit), `empty`, `replace` (by another cache's), `garbage`, `swap` (the
            first model file and the first data file with each other), `write` (other bytes over some), `cut` (takes
            some out), `remember` (keeps a copy), `restore` (puts the copy back).
        data: the data files are meant, not the model files.
        file: which of them.
        place: where, as a share of the file's length.
        other: number of the cache whose files replace these.
        bit: which one of the byte is flipped.
        content: what is written.
        length: bytes that are cut out.
    """

    cache: int
    change: str
    data: bool = False
    file: int = 0
    place: float = 0.5
    other: int = 0
    bit: int = 4
    content: bytes = b""
    length: int = 0


@dataclass(frozen=True)
class Edit:
    """A change of a request before it is sent.

    Attributes:
        change: one of the keys of `harness.requests.CHANGES`.
        place: number of the input, output, pool or token that is changed.
        value: what the change needs.
        output: an output is meant, not an input.
    """

    change: str
    place: int = 0
    value: tuple[int, ...] = ()
    output: bool = False


@dataclass(frozen=True)
class Layout:
    """Where the values of an execution lie.

    Attributes:
        kind: of the pools, one of `KINDS`.
        separate: each value has a pool of its own.
        shift: bytes by which each value is moved off its alignment.
        padding: bytes behind each value that the driver may touch (level 5 on).
        overlap: the inputs lie on one another as far as they hold the same bytes: whole, or one's end on the next
            one's beginning.
        output_bytes: bytes of each output in place of those due; empty where all are as due.
        output_dimensions: what the request says of each output's dimensions; empty where it says nothing.
        input_dimensions: the request says the dimensions of inputs.
        buffers: driver-managed buffers: (is an output, its number, slot of the buffer). One that was released is named
            by the token that it had.
        tight: no byte of a pool stands before its first value and none behind its last.
        together: one pool for all inputs and outputs.
        input_shapes: what the request says of each input's dimensions in place of those of its value; empty where it
            says nothing.
    """

    kind: str = "ashmem"
    separate: bool = False
    shift: int = 0
    padding: int = 0
    overlap: bool = False
    output_bytes: tuple[int, ...] = ()
    output_dimensions: tuple[tuple[int, ...], ...] = ()
    input_dimensions: bool = True
    buffers: tuple[tuple[bool, int, int], ...] = ()
    tight: bool = False
    together: bool = False
    input_shapes: tuple[tuple[int, ...], ...] = ()


KINDS = (
    "ashmem",
    "mmap_fd",
    "mmap_fd_part",  # from the middle of a file on, not at a page's start
    "mmap_fd_read_only",  # inputs and constants alone cannot be written
    "hardware_buffer",
    "opaque",  # a hardware buffer that is no blob: each value has one of its own, whole
)


@dataclass(frozen=True)
class Running:
    """What goes with an execution.

    Attributes:
        measure: timing is asked for.
        deadline: nanoseconds from the call on; 0 or below is past.
        loop_timeout: nanoseconds.
        duration: nanoseconds, fenced executions only.
        absolute: deadline, duration and loop time-out are sent as they are: for values that are wrong.
        waits: slots of the fences that come first.
        uses: slot of the burst or reusable execution; None makes one for this step alone.
        tokens: of a burst's memory, one a pool; None says "do not keep" of each.
        layout: of the memory; None for the guarded one that the run gives.
        edits: what is wrong with the request.
    """

    measure: bool = True
    deadline: int | None = None
    loop_timeout: int | None = None
    duration: int | None = None
    absolute: bool = False
    waits: tuple[int, ...] = ()
    uses: int | None = None
    tokens: tuple[int, ...] | None = None
    layout: Layout | None = None
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True)
class Role:
    """A use that a driver-managed buffer is for.

    Attributes:
        model: number in the allocation's list of prepared models.
        place: number of the input or output.
        output: it is an output.
        frequency: how probable, above 0 and up to 1.
    """

    model: int = 0
    place: int = 0
    output: bool = False
    frequency: float = 1.0


@dataclass(frozen=True)
class Allocation:
    """What a driver-managed buffer is asked for.

    Attributes:
        prepared: slots of the prepared models; -1 stands for one of another driver.
        roles: what it is for.
        dimensions: of the buffer; empty leaves them to the roles.
    """

    prepared: tuple[int, ...] = (0,)
    roles: tuple[Role, ...] = ()
    dimensions: tuple[int, ...] = ()


@dataclass(frozen=True)
class Copying:
    """A copy into a driver-managed buffer (its values are the step's input) or out of it.

    Attributes:
        dimensions: of what is copied in; empty means those of the buffer.
        size: bytes of the other memory; None for as many as the value has.
        kind: of the other memory, one of `KINDS`.
    """

    dimensions: tuple[int, ...] = ()
    size: int | None = None
    kind: str = "ashmem"


@dataclass(frozen=True)
class Signalling:
    """How the suite ends a fence of its own."""

    status: ErrorStatus = ErrorStatus.NONE


@dataclass(frozen=True)
class Releasing:
    """What is let go, or forgotten in a burst.

    Attributes:
        thing: kind of the object in the step's slot.
        token: of the memory that a burst is to forget.
    """

    thing: Thing = Thing.PREPARED
    token: int = 0


@dataclass(frozen=True)
class Restarting:
    """How a fresh process starts.

    Attributes:
        fill: byte that memory holds which nobody has written: what the process gets from its allocator (glibc's), and
            outputs and all around values until the next restart; None for what they hold otherwise.
    """

    fill: int | None = None


How = Preparation | Tampering | Running | Allocation | Copying | Signalling | Releasing | Restarting
HOWS: dict[str, type[How]] = {
    c.__name__: c for c in (Preparation, Tampering, Running, Allocation, Copying, Signalling, Releasing, Restarting)
}
