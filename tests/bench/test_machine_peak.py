"""The machine's limits: that the loops do what is counted, and what is said where they cannot run."""

import dataclasses

import numpy as np
import pytest
import torch

from regard.backends.native import library
from regard_bench import machine_peak
from regard_bench.machine_peak import PeakLoop, PeakMeter, last_cache_bytes, refuses_peak
from regard_bench.shares import Resource
from sweeps import sweep

ARITHMETIC = (Resource.FLOAT32, Resource.BFLOAT16)


@pytest.fixture
def little(monkeypatch):
    """Loops of few steps and little memory, on two threads, as on this processor without AMX.

    The products that are tested are those of AVX-512, which a processor with AMX has as well.
    """
    if library.refuses() is None:
        without_amx = library.instruction_sets() - {"amx"}
        monkeypatch.setattr(library, "instruction_sets", lambda: without_amx)
    monkeypatch.setattr(machine_peak, "_TIMES", 7)
    monkeypatch.setattr(machine_peak, "_LEAST_BYTES", 1 << 12)
    monkeypatch.setattr(machine_peak, "last_cache_bytes", lambda: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def loop_of(resource):
    if (reason := refuses_peak(resource)) is not None:
        pytest.skip(reason)
    return PeakLoop(resource)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("resource", ARITHMETIC)
def test_each_thread_adds_the_products_as_often_as_is_counted(resource):
    loop = loop_of(resource)
    generator = np.random.default_rng(0)
    loop.factors[:] = generator.integers(-9, 10, loop.factors.shape)
    tensor = torch.from_numpy(loop.factors)
    stored = tensor.bfloat16().view(torch.int16) if resource is Resource.BFLOAT16 else tensor.float().view(torch.int32)
    loop.stored.view(stored.numpy().dtype)[:] = stored.numpy()
    loop()
    expected, operations = [], 0
    for start in range(len(loop.start)):
        sums = np.full(16, float(start))
        for _ in range(7):
            for at, (one, other) in enumerate(loop.factors.T):
                sums[at * 16 // loop.factors.shape[1]] += one * other
                operations += 2
        expected.append(sums)
    assert (loop.sums.reshape(-1, 16) == np.array(expected)).all()
    assert loop.flops == operations
    assert loop.is_right()
    loop.sums[-1, -1, -1] += 1
    assert not loop.is_right()


@pytest.mark.slow
@pytest.mark.usefixtures("little")
def test_limits_are_medians_of_all_samples_and_a_loop_with_wrong_sums_is_none(monkeypatch):
    loop_of(Resource.FLOAT32)
    meter = PeakMeter()
    assert meter.peaks().rates == {}
    meter.sample()
    once = meter.peaks()
    meter.sample()
    twice = meter.peaks()
    assert {Resource.FLOAT32, Resource.MEMORY} <= set(once.rates) == set(twice.rates)
    assert {rate.rounds for rate in (*once.rates.values(), *once.products.values())} == {5}
    assert {rate.rounds for rate in (*twice.rates.values(), *twice.products.values())} == {10}
    assert Resource.FLOAT32 in twice.products
    assert set(twice.missing) == set(ARITHMETIC) - set(twice.rates)
    monkeypatch.setattr(PeakLoop, "is_right", lambda self: self.resource is not Resource.FLOAT32)
    meter.sample()
    meter.sample()
    assert Resource.FLOAT32 not in meter.peaks().rates
    assert meter.peaks().missing[Resource.FLOAT32] == "its loop gives other sums than numpy"
    assert meter.peaks().rates[Resource.MEMORY].rounds == 20


@pytest.mark.usefixtures("little")
def test_without_kernels_memory_and_matrix_products_are_measured(monkeypatch):
    monkeypatch.setattr(library, "_loaded", lambda: library._Loaded(None, "none here"))
    meter = PeakMeter()
    meter.sample()
    peaks = meter.peaks()
    assert (set(peaks.rates), set(peaks.products)) == ({Resource.MEMORY}, {Resource.FLOAT32})
    assert peaks.missing == dict.fromkeys(ARITHMETIC, "none here")


PROCESSORS = [  # whether kernels multiply pairs of bfloat16, instruction sets, what is said of float32 and bfloat16
    (True, {"v3", "v4", "bf16"}, (None, None)),
    (False, {"v3"}, (None, "no AVX-512 BF16")),
    (True, {"v3", "v4", "bf16", "amx"}, (None, "products of AMX")),
]


def test_what_the_processor_lacks_is_said(monkeypatch):
    loop_of(Resource.FLOAT32)
    best = library.library()
    for case in sweep(PROCESSORS):
        with case as (has_bf16, sets, reasons):
            loaded = library._Loaded(dataclasses.replace(best, has_bf16=has_bf16), None)
            monkeypatch.setattr(library, "_loaded", lambda loaded=loaded: loaded)
            monkeypatch.setattr(library, "instruction_sets", lambda sets=sets: frozenset(sets))
            for resource, reason in zip(ARITHMETIC, reasons, strict=True):
                found = refuses_peak(resource)
                assert found is None if reason is None else reason in found


@pytest.mark.usefixtures("little")
def test_beside_amx_the_product_of_bfloat16_is_measured_and_no_peak(monkeypatch):
    loop_of(Resource.BFLOAT16)
    with_amx = library.instruction_sets() | {"amx"}
    monkeypatch.setattr(library, "instruction_sets", lambda: with_amx)
    meter = PeakMeter()
    meter.sample()
    assert set(meter.peaks().products) == set(ARITHMETIC)
    assert Resource.BFLOAT16 not in meter.peaks().rates


def test_the_last_caches_of_all_cores_are_added(monkeypatch, tmp_path):
    caches = [("cpu0", 2, "0", "1024K"), ("cpu0", 3, "0-1", "32768K"), ("cpu1", 3, "0-1", "32768K")]
    caches += [("cpu2", 3, "2-3", "16384K"), ("cpufreq", 9, "0", "1K")]
    for cpu, level, cores, size in caches:
        folder = tmp_path / cpu / "cache" / f"index{level}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("shared_cpu_list", cores), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(machine_peak, "_CACHES", tmp_path)
    assert last_cache_bytes() == (32 + 16) << 20
    (tmp_path / "cpu2" / "cache" / "index3" / "size").write_text("many")
    assert last_cache_bytes() is None
    monkeypatch.setattr(machine_peak, "_CACHES", tmp_path / "none")
    assert last_cache_bytes() is None
