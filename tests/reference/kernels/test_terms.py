"""The probe of terms computes the documented sums, so that its time is the time of those."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from tests.reference.kernels.cubins import cards, stack
from tests.support.needs import unmet
from tools.measure.bench.terms import LOADED_SHAPES, MINIMA, SHAPES, Probe, probes

#: Terms with a minimum have all that the others have.
KINDS = [*MINIMA]


@pytest.mark.parametrize("minimum", KINDS)
@pytest.mark.parametrize("arrangement", SHAPES)
def test_it_multiplies_and_adds_terms(host: CpuHost, arrangement: str, minimum: str) -> None:
    """With NumPy's bits, in the order of the slices, and if products are done as late as the waits allow."""
    probe = Probe(arrangement, minimum, 64, 2)
    for on in (host, host.scheduled(Schedule("descending"))):
        launch = probe.launch(on, 2, 2)
        launch()
        assert np.isfinite(launch.outputs).all()
        assert launch.outputs.tobytes() == probe.expected(2).tobytes()


@pytest.mark.parametrize("minimum", KINDS)
@pytest.mark.parametrize("arrangement", LOADED_SHAPES)
def test_scales_are_loaded(host: CpuHost, arrangement: str, minimum: str) -> None:
    """Of all tokens, also by two tiles of rows."""
    tiles = LOADED_SHAPES[arrangement][-1][-1]
    probe = Probe(arrangement, minimum, 64, 2, tiles, True)
    launch = probe.launch(host, 1, 2)
    launch()
    assert launch.outputs.tobytes() == probe.expected(2).tobytes()
    held = Probe(arrangement, minimum, 64, 2, tiles).expected(2)
    assert (minimum == "NONE") == (launch.outputs.tobytes() == held.tobytes())


@pytest.mark.parametrize(("tokens", "warpgroups"), [(64, 3), (128, 2)])
def test_sizes(host: CpuHost, tokens: int, warpgroups: int) -> None:
    probe = Probe("APART", "MEETS_S", tokens, warpgroups)
    launch = probe.launch(host, 1, 2)
    launch()
    assert launch.outputs.tobytes() == probe.expected(2).tobytes()


@pytest.mark.parametrize("minimum", KINDS)
def test_it_compiles_without_spills(minimum: str) -> None:
    """Terms with a minimum take the most registers."""
    if 90 not in cards():
        unmet("nvrtc", "this version does not compile for sm_90")
    for probe in probes():
        if probe.minimum == minimum:
            of = probe.source
            assert not stack(of.file, "90a", of.defines, of.root), probe
