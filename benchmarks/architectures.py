"""Watch a tiny random model of every architecture of transformers, and compare it with eager attention.

    make architectures

Each type of transformers' CONFIG_MAPPING runs in a process of its own, with at most 60 s and 4 GB, without GPU and
network. The oracle is PyTorch's dispatcher: in a run with eager attention, the results of softmax that reach a matrix
product are the weights. Results are kept in benchmarks/results/architectures.json after each type, so that a run that
was stopped resumes; docs/architectures.md is made from them.
"""

import argparse
import importlib
import inspect
import itertools
import json
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "architectures.json", ROOT / "docs" / "architectures.md"
SECONDS, BYTES = 60, 4 * 2**30
TOLERANCE = 2e-5
WARM = (
    "regard.interpret.watch", "regard.observe.kept_tiles", "transformers.modeling_utils",
    "transformers.generation", "transformers.models.auto.modeling_auto", "transformers.models.llama.modeling_llama",
    "transformers.models.bert.modeling_bert", "transformers.models.mixtral.modeling_mixtral",
    "transformers.models.clip.modeling_clip", "transformers.models.vit.modeling_vit",
    "transformers.models.bart.modeling_bart", "transformers.models.wav2vec2.modeling_wav2vec2",
    "transformers.models.resnet.modeling_resnet", "transformers.models.qwen2_vl.modeling_qwen2_vl",
)  # fmt: skip
STATES = ("seen", "refused", "without attention", "not buildable", "wrong")


def main() -> None:
    """Run what is missing, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="model types; by default all")
    parser.add_argument("--again", action="append", default=[], choices=STATES, help="run again what has this state")
    parser.add_argument("--count", type=int, help="at most so many types in this call")
    parser.add_argument("--table", action="store_true", help="write docs/architectures.md")
    asked = parser.parse_args()
    if not asked.table:
        run(asked.names, asked.again, asked.count)
    results = load()
    print(Counter(one["state"] for one in results["types"].values()))
    if asked.table:
        PAGE.write_text(page(results), encoding="utf-8")


def load() -> dict[str, Any]:
    """Return the results so far."""
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {"types": {}}


def run(names: list[str], again: list[str], count: int | None) -> None:
    """Run each type in a process that begins as a copy of this one, which has imported the libraries."""
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "critical"}
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    import regard

    for one in WARM:  # before the copies are made: each would take its seconds
        importlib.import_module(one)

    torch.set_num_threads(1)
    results = load()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "regard": regard.__version__}
    results |= {"versions": versions, "known": len(CONFIG_MAPPING_NAMES)}
    todo = [
        name for name in (names or CONFIG_MAPPING_NAMES)
        if names or name not in results["types"] or results["types"][name]["state"] in again
    ]  # fmt: skip
    for name in todo[:count]:
        results["types"][name] = found = alone(name)
        print(f"{name:32} {found['state']:18} {found['seconds']:5.1f} s  {found.get('reason', '')[:150]}", flush=True)
        results["types"] = dict(sorted(results["types"].items()))
        draft = RESULTS.with_suffix(".part")
        draft.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        draft.replace(RESULTS)


def alone(name: str) -> dict[str, Any]:
    """Return the result of one type, from a process of its own."""
    began = time.monotonic()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setsid()
        _in_child(name, writer)
    os.close(writer)
    reason, largest = "", 0
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        largest = max(largest, _resident(child))
        if time.monotonic() - began > SECONDS:
            reason = f"more than {SECONDS} s"
        elif largest > BYTES:
            reason = "more than 4 GB"
        if reason:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.05)
    with os.fdopen(reader) as file:
        text = file.read()
    lines = [json.loads(line) for line in text.splitlines()]
    found = {} if reason or not lines or "state" not in lines[-1] else lines.pop()
    problems = [one["problem"] for one in lines][:40]
    if not found:
        found = {"state": "not buildable", "reason": reason or "it crashed"}
    if found["state"] == "not buildable":
        found["problems"] = problems
        if problems and found["reason"] == "no call of it ran":
            found["reason"] += f": {problems[0]}"
    return {**found, "seconds": round(time.monotonic() - began, 1), "megabytes": largest >> 20}


def _resident(process: int) -> int:
    try:
        fields = Path(f"/proc/{process}/statm").read_text().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def _in_child(name: str, writer: int) -> None:
    """Examine one type, send the result, and end the process."""
    import socket

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("no network here")

    socket.socket.connect = refuse  # type: ignore[method-assign]
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    warnings.simplefilter("ignore")

    def tell(problem: str) -> None:
        os.write(writer, (json.dumps({"problem": problem}) + "\n").encode())

    try:
        found = examine(name, tell)
    except BaseException as problem:
        found = {"state": "not buildable", "reason": _said(problem)}
    os.write(writer, json.dumps(found).encode())
    os._exit(0)


def _said(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:240]}"


def examine(name: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """Build, run, watch and compare one type: a model of its own, or else the part it is of another type's model."""
    sys.path.insert(0, str(Path(__file__).parent))
    stages = ((calls(name, tell), 0.3), (parts(name, tell), 0.45), (calls(name, tell, bare=True), 0.6))
    began = time.monotonic()
    plainest, without = None, None  # the first class; the result of another that has no attention
    for stage, share in stages:
        for model, given, about in stage:
            if time.monotonic() - began > share * SECONDS:
                break
            plainest = plainest or about["class"]
            trace = runs(model, given, tell)
            if trace is None:
                continue
            result = about | {"inputs": list(given)} | compare(model, given, trace)
            if about["class"].startswith("module ") and result["state"] == "without attention":
                continue  # a mere module does not speak for the type
            if result["state"] != "without attention" or about["class"] == plainest.removesuffix("Model") + "Model":
                return result
            without = without or result
    return without or {"state": "not buildable", "reason": "no call of it ran"}


def calls(name: str, tell: Callable[[str], None], *, bare: bool = False) -> Iterator[tuple[Any, dict[str, Any], Any]]:
    """Yield the models of a type, at each scale, with arguments; with `bare`, modules that are no models."""
    from tiny_models import SCALES, candidates

    for scale in SCALES[:1] if bare else SCALES:
        count, each = (3, 8) if scale == "tiny" else (1, 4)  # the larger take their time
        for model in itertools.islice(models(name, scale, tell, bare=bare), count):
            made = list(itertools.islice(candidates(model), each))
            if not made:
                tell(f"{type(model).__name__}: no arguments could be made for {inspect.signature(model.forward)}")
            for given in made:
                about = f"module {type(model).__name__}" if bare else type(model).__name__
                yield model, given, {"class": about, "scale": scale}


def parts(name: str, tell: Callable[[str], None]) -> Iterator[tuple[Any, dict[str, Any], Any]]:
    """Yield the parts of owners' models that have a type's configuration, with the arguments they are called with."""
    from tiny_models import Called, owners

    for owner in owners(name):
        complete = None
        for model, given, about in calls(owner, tell):
            if model is complete:
                continue
            with Called(model, name) as called:
                runs(model, given, tell)
            for part, arguments, whole in called.first():
                complete = model if whole else complete
                kind = type(part).__name__ if whole else f"module {type(part).__name__}"
                yield part, arguments, about | {"class": f"{kind} of {about['class']}"}


def models(name: str, scale: str, tell: Callable[[str], None], *, bare: bool) -> Iterator[Any]:
    """Yield the models that can be built of a type, the plainest first; with `bare`, modules that are no models."""
    import torch
    from transformers import PreTrainedModel

    from tiny_models import model_classes, randomized, tiny_config, too_large

    try:
        config = tiny_config(name, scale)
        classes = model_classes(name, config)
    except Exception as problem:
        tell(f"{scale}: {_said(problem)}")
        return
    if not classes:
        tell("no class of models has this configuration")
    for kind in classes:
        if issubclass(kind, PreTrainedModel) == bare:
            continue
        if kind.forward is torch.nn.Module.forward:
            tell(f"{kind.__name__} has no forward")
            continue
        try:
            if scale != "tiny" and too_large(kind, config):
                tell(f"{scale} {kind.__name__}: too large")
                continue
            model = randomized(built(kind, config))
            model.config = getattr(model, "config", config)  # a part may have none
        except Exception as problem:
            if isinstance(problem, ImportError) and kind is classes[0]:
                raise  # at no other scale would the library be there
            tell(f"{scale} {kind.__name__}: {_said(problem)}")
            continue
        yield model


def built(kind: Any, config: Any) -> Any:
    """Return a model, with keys of its configuration set that are None and that it needs."""
    from tiny_models import mend_configuration

    for _ in range(6):
        try:
            return kind(config)
        except Exception as problem:
            if not mend_configuration(problem):
                raise
    return kind(config)


def runs(model: Any, given: dict[str, Any], tell: Callable[[str], None]) -> Any:
    """Return the trace of a run, with the arguments in `given` mended as the errors say; None if none runs."""
    from dispatch_trace import Trace
    from tiny_models import mend

    for _ in range(6):
        trace = Trace()
        try:
            with trace:
                run_once(model, given)
        except Exception as problem:
            tell(f"{type(model).__name__}({', '.join(given)}): {_said(problem)}")
            if not mend(model, given, problem):
                return None
        else:
            return trace
    return None


def run_once(model: Any, given: dict[str, Any]) -> list[Any]:
    """Run a model and return the tensors of its output."""
    import torch

    torch.manual_seed(5)
    with torch.no_grad():
        return tensors(model(**given))


def tensors(value: Any) -> list[Any]:
    """Return all tensors in nested outputs."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [one for inner in value.values() for one in tensors(inner)]
    if isinstance(value, list | tuple):
        return [one for inner in value for one in tensors(inner)]
    return []


def compare(model: Any, given: dict[str, Any], trace: Any) -> dict[str, Any]:
    """Return the state of a model that runs: what was seen, and its distance from eager attention."""
    import torch

    import regard

    plain = run_once(model, given)
    attends = bool(trace.fused or trace.weights())
    try:
        with regard.watch(model, keep="weights") as seen:
            watched = run_once(model, given)
    except regard.ObservationError as problem:
        state = "refused" if attends else "without attention"
        return {"state": state, "reason": " ".join(str(problem).split())[:400]}
    except Exception as problem:
        return {"state": "wrong", "reason": f"watching raised {_said(problem)}"}
    same = len(plain) == len(watched) and all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) if a.is_floating_point() else torch.equal(a, b)
        for a, b in zip(plain, watched, strict=True)
    )
    again = run_once(model, given)
    deterministic = all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(plain, again, strict=True))
    if not same and deterministic:
        return {"state": "wrong", "reason": "the output differs from the plain run's"}
    layers = [torch.from_numpy(one.weights.copy()) for record in seen.records for one in record.layers]
    references = {"eager attention": eager_trace(model, given), "the run itself": trace}
    found = {name: matched(layers, one.weights()) for name, one in references.items() if one is not None}
    best = min(found, key=lambda name: (found[name]["unmatched"] + found[name]["unseen"], name != "eager attention"))
    one = {"layers": len(layers), "reference": best, "largest difference": found[best]["largest difference"]}
    if found[best]["unmatched"]:
        return {
            "state": "wrong",
            "reason": f"{found[best]['unmatched']} of {len(layers)} layers are none of {best}'s",
            **one,
        }
    if found[best]["unseen"]:
        shapes = ", ".join(map(str, found[best]["shapes"]))
        return {"state": "wrong", "reason": f"not seen and not refused, of {best}: {shapes}", **one}
    return {"state": "seen", **one}


def eager_trace(model: Any, given: dict[str, Any]) -> Any:
    """Return the trace of a run with eager attention, or None where the model has none."""
    import torch

    from dispatch_trace import Trace

    trace = Trace()
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # nn.MultiheadAttention's kernel shows no softmax
    try:
        model.set_attn_implementation("eager")
        with trace:
            run_once(model, given)
    except Exception:
        return None
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    return trace


def matched(layers: list[Any], expected: list[Any]) -> dict[str, Any]:
    """Match each recorded layer with one of the weights that are expected."""
    left, worst, unmatched = list(expected), 0.0, 0
    for ours in layers:
        if ours.shape[-1] == 1:  # one key has all weight, and its softmax says nothing: a trace leaves it out
            unmatched += not bool(((ours == 1) | (ours == 0)).all())
            continue
        distances = [(distance(ours, theirs), at) for at, theirs in enumerate(left)]
        best, at = min(distances, default=(float("inf"), -1))
        if best <= TOLERANCE:
            left.pop(at)
            worst = max(worst, best)
        else:
            unmatched += 1
    shapes = [tuple(one.shape) for one in left[:4]]
    return {"unmatched": unmatched, "unseen": len(left), "largest difference": worst, "shapes": shapes}


def distance(ours: Any, theirs: Any) -> float:
    """Return the largest difference of two layers' weights, infinite for other shapes; blind rows do not count."""

    if theirs.ndim == 3 and ours.ndim == 4 and theirs.shape[0] == ours.shape[0] * ours.shape[1]:
        theirs = theirs.unflatten(0, ours.shape[:2])
    if theirs.ndim == 5 and ours.ndim == 4:  # windows beside or behind the heads
        forms = (theirs.transpose(1, 2).flatten(0, 1), theirs.flatten(0, 1), theirs.flatten(1, 2))
        return min(distance(ours, one) for one in forms)
    if theirs.shape[:-1] == ours.shape[:-1] and theirs.shape[-1] == ours.shape[-1] + 1:
        theirs = theirs[..., :-1]  # the last column is a sink
    if theirs.shape != ours.shape:
        return float("inf")
    seen = ours.sum(-1) != 0
    difference = (ours - theirs.to(ours.dtype))[seen].abs()
    found = float(difference.max()) if difference.numel() else 0.0
    return found if found == found else float("inf")


def page(results: dict[str, Any]) -> str:
    """Return docs/architectures.md."""
    types = results["types"]
    counts = Counter(one["state"] for one in types.values())
    attending = len(types) - counts["without attention"]
    share = counts["seen"] / max(attending, 1)
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    lines = [
        "# Architectures of transformers", "",
        "Each type of transformers' `CONFIG_MAPPING` as a tiny random model, watched by `regard.watch`. `make",
        "architectures` makes this page (`benchmarks/architectures.py`, resumable, one process for each type with at",
        "most 60 s and 4 GB, without GPU and network).", "",
        "- **seen**: every layer was recorded, its weights differ from eager attention's by at most 2e-5, and the",
        "  output is the plain run's, bit for bit. The oracle is PyTorch's dispatcher: in a run with eager attention,",
        "  each result of softmax that reaches a matrix product is a layer's weights, and each must be recorded once;",
        "  weights of fused calls are a dense softmax over their q and k. Where a model's own eager attention computes",
        "  something else than its fused one (another mask), the run itself is the reference; the table says so.",
        "  A type that is no model of its own is a part of another type's model (`A of B`), called with what it is",
        "  called with there; `module A` is a module of its code that could be called alone.",
        "- **refused**: `regard.watch` raises an error that names the module and the reason.",
        "- **without attention**: a trace of the run has neither a fused attention call nor such a softmax.",
        "- **not buildable**: the type could not be built or called here, with the reason.",
        "- **wrong**: what was recorded is not what the oracle expects.", "",
        *([] if len(types) >= results.get("known", 0) else [
            f"The run is not finished: {len(types)} of {results['known']} types, in alphabetical order, so far.", "",
        ]),
        f"{len(types)} types ({versions}): " + ", ".join(f"{counts[one]} {one}" for one in STATES if counts[one])
        + f". Of the {attending} that attend or could not be built, {share:.1%} are seen in full.", "",
    ]  # fmt: skip
    for state in STATES:
        chosen = {name: one for name, one in types.items() if one["state"] == state}
        if not chosen:
            continue
        lines += [f"## {state.capitalize()}", ""]
        if state == "seen":
            lines += ["| type | class | layers | largest difference | from | seconds |", "|---|---|---:|---:|---|---:|"]
            lines += [
                f"| {name} | {one['class']} | {one['layers']} | {one['largest difference']:.0e} | "
                f"{one.get('reference', 'eager attention')} | {one['seconds']} |"
                for name, one in chosen.items()
            ]
        else:
            lines += ["| type | reason |", "|---|---|"]
            lines += [f"| {name} | {_cell(one)} |" for name, one in chosen.items()]
        lines.append("")
    return "\n".join(lines)


def _cell(one: dict[str, Any]) -> str:
    if one["state"] == "without attention":
        return str(one["class"])
    return str(one.get("reason", ""))[:200].replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
