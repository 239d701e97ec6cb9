"""A setting has one default, wherever it is named: in the job file and in the part that uses it.

Found by reading the sources, so that a second default cannot hide in a signature.
"""

import ast
from typing import Any

import msgspec

from holdfast.runtime.config.job_file import SECTIONS
from tidy.source_tree import modules

OTHER_MEANINGS = {
    ("cli", "*"): "the planner's commands plan for clusters, not for this machine",
    ("sim", "*"): "simulated clusters have their own sizes",
    ("detect", "warmup_steps"): "steps before a detector judges",
    ("engine", "backend"): "the engine is told which, the job may leave it open",
    ("engine", "timeout_s"): "of a wait for messages",
    ("snapshot", "timeout_s"): "of a wait for a thread",
    ("snapshot", "verify"): "of the bytes of a checkpoint",
    ("snapshot", "every"): "a loop that asks for snapshots has them; in a job they are asked for",
    ("snapshot", "redundancy"): "of the memory of a loop; in a job file it is of the plan",
    ("snapshot", "keep_latest_k"): "a writer used alone removes nothing",
    ("plan", "tensor"): "an axis",
    ("planner", "rendezvous"): "the seconds it takes",
    ("planner", "stages"): "a list",
    ("plan", "split"): "of a tensor",
}
GENERIC = {
    *("name", "kind", "mode", "path", "plan", "rows", "dtype", "seed", "micro_batches", "recompute")
}
"""Words that mean something else in most places; what the engine gets of them is compared below."""


def job_defaults() -> dict[str, Any]:
    found = {}
    for section in SECTIONS.values():
        for field in msgspec.structs.fields(section):
            if field.default is not msgspec.NODEFAULT and field.default is not None:
                found[field.name] = field.default
                if field.name.endswith("_s") and field.default:
                    found[f"{field.name[:-2]}_ms"] = 1000 * field.default
    return {name: value for name, value in found.items() if name not in GENERIC}


def literal_defaults(tree: ast.AST) -> list[tuple[int, str, object]]:
    """(line, name, value) of fields and arguments whose default is written out."""
    pairs: list[tuple[str, ast.expr | None]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            pairs.append((node.target.id, node.value))
        elif isinstance(node, ast.FunctionDef):
            given, values = [*node.args.posonlyargs, *node.args.args], node.args.defaults
            pairs += [(a.arg, v) for a, v in zip(given[-len(values) :], values, strict=False)]
            keywords = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            pairs += [(argument.arg, value) for argument, value in keywords]
    return [
        (value.lineno, name, value.value)
        for name, value in pairs
        if isinstance(value, ast.Constant) and value.value is not None
    ]


def contradictions(package: str, tree: ast.AST) -> list[str]:
    known = job_defaults()
    return [
        f"line {line}: {name} = {value!r}, in the job file {known[name]!r}"
        for line, name, value in literal_defaults(tree)
        if name in known
        and not {(package, name), (package, "*")} & OTHER_MEANINGS.keys()
        and value != known[name]
    ]


def test_no_setting_has_two_defaults():
    assert {m.name: found for m in modules() if (found := contradictions(m.package, m.tree))} == {}


def test_a_second_default_is_found():
    tree = ast.parse("class A:\n    max_restarts: int = 6\ndef f(*, hang_floor_ms=1): ...")
    assert len(contradictions("control", tree)) == 2


def test_what_the_engine_does_by_itself_is_what_a_job_does():
    from holdfast.engine.epoch import TrainerConfig
    from holdfast.models.llama import LlamaOptions
    from holdfast.runtime.config.job_sections import JobSection
    from holdfast.runtime.config.model_sections import ModelSection

    job, engine = JobSection(steps=1), TrainerConfig(num_steps=1)
    for name in ("seed", "dtype", "device", "compile", "host", "verify", "resume"):
        assert getattr(job, name) == getattr(engine, name)
    assert 1000 * job.timeout_s == engine.timeout_ms
    assert ModelSection().options() == LlamaOptions()
