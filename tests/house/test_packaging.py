"""The shipped files: the wheel, the public names and their arguments, and documentation whose code runs."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = {"reference", "jax_impl", "torch_impl", "conformance"}
FRAMEWORK = {"reference": "numpy", "jax_impl": "jax", "torch_impl": "torch"}

# The public names and their arguments, in order; those after `*` are keywords.
SIGNATURES = {
    "rev_cumsum": "x",
    "rev_cumsum_off": "x",
    "causal_forget_matrix": "forget_gates",
    "dtilde_matrix": "igate fgate",
    "mlstm": "q k v i f * initial_state return_state cu_seqlens max_seqlen chunk_size eps kernel_backend",
    "mlstm_step": "q k v i f state * eps kernel_backend",
    "fwbw_forward": "q k v i f config initial_C initial_n initial_m",
    "fwbw_backward": "ctx dh config dc_last dn_last dm_last",
    "mlstm_fwbw_custom_grad": "config",
    "slstm": (
        "z i f o weight_z weight_i weight_f weight_o * initial_state return_state forget_gate gradient_clipping "
        "cu_seqlens max_seqlen kernel_backend"
    ),
    "slstm_step": "z i f o weight_z weight_i weight_f weight_o state * forget_gate kernel_backend",
    "gru": (
        "input weight forget_input forget_weight reset_input reset_weight input_state gradient_clipping "
        "cu_seqlens max_seqlen * reset_after recurrent_bias kernel_backend"
    ),
    "accumulate_gradients": "state batch rng num_minibatches loss_fn use_scan * weights total_weight",
    "accumulate_gradients_loop": "state batch rng num_minibatches loss_fn * weights total_weight",
    "accumulate_gradients_scan": "state batch rng num_minibatches loss_fn * weights total_weight",
    "fold_rng_over_axis": "rng axis_name",
    "split_array_over_mesh": "x axis_name split_axis",
    "stack_params": "params axis_name axis mask_except",
    "unstack_params": "params axis_name",
}
DEFAULTS = {
    "mlstm": {"initial_state": None, "return_state": False, "cu_seqlens": None, "max_seqlen": None, "chunk_size": None}
    | {"eps": 0.0, "kernel_backend": None},
    "mlstm_step": {"eps": 0.0, "kernel_backend": None},
    "fwbw_forward": {"initial_C": None, "initial_n": None, "initial_m": None},
    "fwbw_backward": {"dc_last": None, "dn_last": None, "dm_last": None},
    "slstm": {"initial_state": None, "return_state": False, "forget_gate": "sigmoid", "gradient_clipping": None}
    | {"cu_seqlens": None, "max_seqlen": None, "kernel_backend": None},
    "slstm_step": {"forget_gate": "sigmoid", "kernel_backend": None},
    "gru": {"input_state": None, "gradient_clipping": None, "cu_seqlens": None, "max_seqlen": None}
    | {"reset_after": False, "recurrent_bias": None, "kernel_backend": None},
    "accumulate_gradients": {"use_scan": False, "weights": None, "total_weight": None},
    "accumulate_gradients_loop": {"weights": None, "total_weight": None},
    "accumulate_gradients_scan": {"weights": None, "total_weight": None},
    "stack_params": {"axis": 0, "mask_except": None},
}
# What the framework does not know, the caller says by keyword: the axis, or (NumPy has no autodiff) the derivative.
# Steps are sharded over what each framework has for that.
SHARDING = ("fold_rng_over_axis", "split_array_over_mesh", "stack_params", "unstack_params")
ACCUMULATION = ("accumulate_gradients", "accumulate_gradients_loop", "accumulate_gradients_scan")
SEQUENCE_PARALLEL = ("mlstm", "fwbw_forward", "mlstm_fwbw_custom_grad", "slstm", "gru")
EXTRA_KEYWORDS: dict[str, dict[str, tuple[str, ...]]] = {
    "reference": dict.fromkeys(SHARDING, ("axis_index", "axis_size"))
    | dict.fromkeys(ACCUMULATION, ("value_and_grad",)),
    "jax_impl": dict.fromkeys(SEQUENCE_PARALLEL, ("sequence_axis",)),
    "torch_impl": dict.fromkeys(SHARDING, ("mesh",)) | dict.fromkeys(SEQUENCE_PARALLEL, ("sequence_group",)),
}

FWBW_CONFIG = {
    "chunk_size": 512,
    "return_state": False,
    "use_initial_state": False,
    "keep_G": False,
    "keep_gates": True,
    "keep_M": False,
    "keep_c": False,
    "stabilize_correctly": False,
}
GRU_FIELDS = (
    "input_size state_head_dim output_size num_input_heads num_forget_input_heads num_reset_input_heads "
    "num_weight_heads num_forget_weight_heads num_reset_weight_heads add_bias gradient_clipping"
).split()
OTHER_NAMES = {"MLSTMState", "mLSTMBackendFwbwConfig", "mLSTMBackendFwbw", "GRU", "mLSTM", "sLSTM"}
OTHER_NAMES |= {"KernelBackend", "explain_backend"}
FORMS = ["mlstm_recurrent", "mlstm_parallel", "mlstm_chunkwise"]
DIFFERENTIABLE = ["rev_cumsum", "rev_cumsum_off", "causal_forget_matrix", "dtilde_matrix", "mlstm", "gru"]
BACKENDS = {"reference": {"numpy"}, "torch_impl": {"torch", "triton"}, "jax_impl": {"xla", "pallas"}}


@pytest.fixture(params=FRAMEWORK)
def implementation(request: pytest.FixtureRequest) -> ModuleType:
    pytest.importorskip(FRAMEWORK[request.param])
    return importlib.import_module(request.param)


def test_wheel_ships_the_four_packages_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("gatespec-0.1.0-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = archive.namelist()
    roots = {name.partition("/")[0] for name in shipped}
    assert roots == PACKAGES | {"_gatespec_clash.py", "gatespec-0.1.0.dist-info"}
    assert "gatespec-0.1.0.dist-info/licenses/LICENSE" in shipped
    templates = ("failures/templates/call.jinja", "report/page.html")
    assert {f"conformance/{name}" for name in templates} <= set(shipped)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(shipped)
    sources = {str(f.relative_to(ROOT)) for package in PACKAGES for f in ROOT.joinpath(package).rglob("*.py")}
    assert {name for name in shipped if name.endswith(".py")} == sources | {"_gatespec_clash.py"}


_DECLARED = {"__all__", "__conformance__", "__version__"}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_init_defines_nothing(package: str) -> None:
    tree = ast.parse((ROOT / package / "__init__.py").read_text())
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    others = [
        ast.unparse(node)
        for node in body
        if not isinstance(node, ast.Import | ast.ImportFrom)
        and not (isinstance(node, ast.Assign) and {ast.unparse(target) for target in node.targets} <= _DECLARED)
    ]
    assert others == [], f"{package}/__init__.py holds imports and {sorted(_DECLARED)}"


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_the_version_is_the_distributions(package: str) -> None:
    source = (ROOT / package / "__init__.py").read_text()
    assert re.findall(r"^__version__ = (.*)$", source, re.MULTILINE) == [f'"{PROJECT["version"]}"']


def test_public_names(implementation: ModuleType) -> None:
    missing = (SIGNATURES.keys() | OTHER_NAMES) - set(implementation.__all__)
    assert not missing
    assert [name for name in implementation.__all__ if not hasattr(implementation, name)] == []


@pytest.mark.parametrize("name", FORMS)
def test_reference_offers_every_form_of_mlstm(name: str) -> None:
    reference = importlib.import_module("reference")
    assert name in reference.__all__
    assert [*inspect.signature(getattr(reference, name)).parameters][:5] == ["q", "k", "v", "i", "f"]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_reference_writes_every_backward_out(name: str) -> None:
    reference = importlib.import_module("reference")
    assert f"{name}_backward" in reference.__all__
    forward, backward = (inspect.signature(getattr(reference, full)).parameters for full in (name, f"{name}_backward"))
    primals = [p.name for p in forward.values() if p.kind is not p.KEYWORD_ONLY and p.default is p.empty]
    assert [p.name for p in backward.values() if p.kind is not p.KEYWORD_ONLY][: len(primals)] == primals
    assert [p for p in backward.values() if p.kind is p.KEYWORD_ONLY], "cotangents are keywords"


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_the_same_everywhere(implementation: ModuleType, name: str) -> None:
    parameters = inspect.signature(getattr(implementation, name)).parameters.values()
    positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    extra = EXTRA_KEYWORDS[implementation.__name__].get(name, ())
    wanted, _, wanted_keywords = SIGNATURES[name].partition("*")
    assert positional == wanted.split()
    assert [keyword for keyword in keywords if keyword not in extra] == wanted_keywords.split()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in extra}
    assert defaults == DEFAULTS.get(name, {})


def test_state_is_C_n_m(implementation: ModuleType) -> None:
    C, n, m = state = implementation.MLSTMState(1, 2, 3)
    assert (state.C, state.n, state.m) == (C, n, m) == (1, 2, 3)


def test_fwbw_config_fields_and_defaults(implementation: ModuleType) -> None:
    config = implementation.mLSTMBackendFwbwConfig()
    assert {field: getattr(config, field) for field in FWBW_CONFIG} == FWBW_CONFIG
    assert list(inspect.signature(implementation.mLSTMBackendFwbwConfig).parameters)[: len(FWBW_CONFIG)] == [
        *FWBW_CONFIG
    ]
    assert callable(config.assign_model_config_params)


def test_fwbw_module(implementation: ModuleType) -> None:
    module = implementation.mLSTMBackendFwbw(implementation.mLSTMBackendFwbwConfig())
    assert module.config_class is implementation.mLSTMBackendFwbwConfig
    assert module.can_vmap_over_heads is True
    call = getattr(module, "forward", module.__call__)
    names = "q k v i f c_initial n_initial m_initial return_last_states".split()
    extra = EXTRA_KEYWORDS[implementation.__name__].get("mlstm_fwbw_custom_grad", ())
    assert [*inspect.signature(call).parameters] == [*names, *extra]


def test_gru_module_arguments(implementation: ModuleType) -> None:
    parameters = [*inspect.signature(implementation.GRU).parameters]
    assert parameters[: len(GRU_FIELDS)] == GRU_FIELDS and "reset_after" in parameters


def test_kernel_backends(implementation: ModuleType) -> None:
    assert {member.value for member in implementation.KernelBackend} == BACKENDS[implementation.__name__]
    first, args, kwargs = inspect.signature(implementation.explain_backend).parameters.values()
    assert (first.name, args.kind, kwargs.kind) == ("name", args.VAR_POSITIONAL, kwargs.VAR_KEYWORD)


def python_blocks(document: Path) -> str:
    """A document's ```python blocks as one script; every line keeps its number, so that a traceback points to it."""
    lines = document.read_text().split("\n")
    script, inside = [], False
    for line in lines:
        fence = re.match(r"\s*```(\w*)", line)
        if fence:
            inside = not inside and fence[1] == "python"
            script.append("")
        else:
            script.append(line if inside else "")
    return "\n".join(script)


def lacking(script: str) -> set[str]:
    """The frameworks that a script imports, itself or through an implementation, and that are not installed here."""
    nodes = [node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    roots = {name.partition(".")[0] for name in names}
    needed = {FRAMEWORK.get(root, root) for root in roots}
    optional = {"torch", "jax", "flax", "matplotlib", "onnxruntime"}
    return {root for root in needed & optional if find_spec(root) is None}


# `make docs` runs the blocks of these, with the commands of the shell between them.
EXECUTED = ("docs/tutorials/", "docs/adapters.md", "docs/refusals-and-known-failures.md")
DOCUMENTS = ["README.md", *sorted(str(f.relative_to(ROOT)) for f in ROOT.glob("docs/**/*.md"))]


# Blocks that open with ```py need several processes or other packages: the tests that run them.
ELSEWHERE = {
    "docs/interop.md": "tests/interop/test_documents.py",
    "docs/sequence-parallel.md": "tests/both/test_sequence_parallel_page.py",
}
SILENT = ("sh", "text", "toml", "yaml", "math")
"""Languages of blocks that are not Python."""


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_of_python_is_run_by_a_test(document: str) -> None:
    openings = re.findall(r"^ *```+(\S+)", (ROOT / document).read_text(encoding="utf-8"), re.MULTILINE)
    run = ("python", "py") if document in ELSEWHERE else ("python",)
    assert set(openings) <= {*run, *SILENT}, f"a block of {document} is in a language that no test runs"
    if document in ELSEWHERE:
        assert f'"{Path(document).name}"' in (ROOT / ELSEWHERE[document]).read_text(encoding="utf-8")


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if not name.startswith(EXECUTED)])
def test_code_in_documents_runs(document: str, tmp_path: Path) -> None:
    script = python_blocks(ROOT / document)
    if not script.strip():
        assert document != "README.md", "README shows code"
        return
    if missing := lacking(script):
        pytest.skip(f"{document} uses {', '.join(sorted(missing))}, not installed here")
    # Under the document's name, for the traceback; in another directory, so that what it writes is swept away.
    runner = "import sys; exec(compile(sys.stdin.read(), sys.argv[1], 'exec'), {'__name__': '__main__'})"
    command = [sys.executable, "-c", runner, document]
    done = subprocess.run(command, input=script, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
