"""The network calls of several paused calls, answered together where they fit together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from .paused_call import NotDriven
from .rows import Fingerprints, Rows, agreeing, signature
from .stand_ins import NetworkCall

Mode = Literal["wide", "copies", "single"]
Key = tuple[str, tuple[str, ...]]  # a network, and the names of the arguments that are present


@dataclass(frozen=True)
class Form:
    """One kind of network call of a pipeline, as it was captured for one sample."""

    call: NetworkCall
    output: Any
    call_rows: Rows  # of (args, kwargs)
    output_rows: Rows


@dataclass
class Learned:
    """What was found by trying about the network calls of a pipeline, with guidance or without."""

    # A paused call made for one sample takes any number (`wide`), must be made for as many (`copies`), or takes one.
    mode: Mode = "single"
    forms: dict[Key, Form] = field(default_factory=dict)
    pads: tuple[str, ...] = ()  # arguments that may be padded, so that prompts of different lengths share a call
    mask: tuple[str, str] | None = None  # the argument that says what is padded, and the one whose tokens it is about
    fingerprints: Fingerprints = field(default_factory=Fingerprints)

    def form(self, call: NetworkCall) -> Form:
        """Returns the form of a call. Raises NotDriven for arguments that were not tried."""
        found = self.forms.get((call.network, call.names))
        if found is None:  # another network of the same kind, such as the second one of Wan 2.2
            found = next((form for (_, names), form in self.forms.items() if names == call.names), None)
        if found is None:
            raise NotDriven(f"it calls its {call.network} with other arguments than at first: {', '.join(call.names)}")
        return found

    def blank(self, call: NetworkCall) -> Any:
        """Returns the output of the captured call for as many rows, for calls whose outputs lead nowhere."""
        form = self.form(call)
        return form.output_rows.spread(form.output, form.call_rows.count((call.args, call.kwargs)))

    def masked(self, call: NetworkCall) -> NetworkCall:
        """Returns the call with the mask that its pipeline left out, all of it true."""
        if self.mask is None or call.kwargs.get(self.mask[0]) is not None:
            return call
        text = call.kwargs[self.mask[1]]
        mask = torch.ones(text.shape[:2], dtype=torch.bool, device=text.device)
        return replace(call, kwargs={**call.kwargs, self.mask[0]: mask})

    def rows(self, call: NetworkCall) -> tuple[Rows, Rows]:
        """Returns the rows of the arguments and of the output of a call, which may be `masked`."""
        if self.mask is None:
            form = self.form(call)
            return form.call_rows, form.output_rows
        name = self.mask[0]
        absent = replace(call, kwargs={key: value for key, value in call.kwargs.items() if key != name})
        empty = replace(call, kwargs={**call.kwargs, name: None})
        known = [like for like in (call, empty, absent) if (like.network, like.names) in self.forms]
        form = self.form(known[0] if known else absent)
        return form.call_rows.with_argument((1, name), 0), form.output_rows


@dataclass(frozen=True)
class Batch:
    """Calls that are answered together."""

    network: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    members: tuple[int, ...]  # places of the calls
    counts: tuple[int, ...]  # rows of each
    output_rows: Rows

    def parted(self, output: Any) -> list[Any]:
        """Returns the output of each member."""
        return self.output_rows.parted(output, self.counts)


def batches(learned: Learned, calls: Sequence[NetworkCall]) -> list[Batch]:
    """Returns the calls joined into as few as possible, in order."""
    masked = [learned.masked(call) for call in calls]
    given = [(learned.rows(call)[0], (call.args, call.kwargs)) for call in masked]
    alike: dict[Any, list[int]] = {}
    if len(calls) > 1:
        learned.fingerprints.meet(leaf for one in given for leaf in agreeing(*one, learned.pads))
    for n, (call, one) in enumerate(zip(masked, given, strict=True)):
        seen = signature(*one, learned.pads, learned.fingerprints) if len(calls) > 1 else None
        alike.setdefault((call.network, call.names, seen), []).append(n)
    made = []
    for members in alike.values():
        first = masked[members[0]]
        call_rows, output_rows = learned.rows(first)
        (args, kwargs), counts = call_rows.joined([(masked[n].args, masked[n].kwargs) for n in members])
        made.append(Batch(first.network, args, kwargs, tuple(members), tuple(counts), output_rows))
    return made
