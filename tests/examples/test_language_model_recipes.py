"""The commands on the language model's page, manifests included: torchrun and the script can parse them."""

import re
import shlex
from pathlib import Path
from string import Template
from typing import Any

import pytest

from examples.language_model.__main__ import main
from examples.language_model.layout import Layout
from examples.language_model.settings import Settings

yaml = pytest.importorskip("yaml")
run = pytest.importorskip("torch.distributed.run")

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "language-model.md").read_text(encoding="utf-8")
MODULE = "examples.language_model"
SLURM = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "7", "MASTER_ADDR": "first", "MASTER_PORT": "29500"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def in_shell() -> list[list[str]]:
    """The words of every command line that starts the script; those of a shell in a shell are its own."""
    found = []
    for line in "\n".join(blocks("sh")).replace("\\\n", "").splitlines():
        words = shlex.split(Template(line).safe_substitute(SLURM), comments=True)
        if words[:3] == ["srun", "bash", "-c"]:
            words = shlex.split(words[3])
        if MODULE in words:
            found.append([word for word in words if word != "&"])
    return found


def pods() -> list[tuple[int, dict[str, Any]]]:
    """Of each manifest the number of pods, and their specification."""
    found = []
    for manifest in map(yaml.safe_load, blocks("yaml")):
        if manifest["kind"] == "PyTorchJob":
            (job,) = manifest["spec"]["pytorchReplicaSpecs"].values()
            found.append((job["replicas"], job["template"]["spec"]))
        else:
            (job,) = manifest["spec"]["replicatedJobs"]
            job = job["template"]["spec"]
            assert job["completionMode"] == "Indexed" and job["parallelism"] == job["completions"]
            found.append((job["completions"], job["template"]["spec"]))
    return found


def check(words: list[str], machines: int = 1, per_machine: int | None = None) -> None:
    """Parse a command, and check its settings and its layout on the devices that it runs on, where they are known."""
    at = words.index(MODULE)
    assert words[at - 1] == "-m" and words[at - 2] != "-m"
    if "torchrun" in words:
        launched = run.get_args_parser().parse_args([*words[words.index("torchrun") + 1 : at + 1]])
        assert launched.module and launched.training_script == MODULE
        machines, per_machine = max(machines, int(launched.nnodes.split(":")[-1])), int(launched.nproc_per_node)
    else:
        assert words[at - 2] == "python"
    name, *arguments = words[at + 1 :]
    with main.commands[name].make_context(name, arguments) as context:
        given = dict(context.params)
    layout = Layout(**{field: given.pop(field) for field in vars(Layout()) if field in given})
    if name == "train":
        wanted = Settings(**{field: value for field, value in given.items() if field not in ("run", "sampled")})
        if per_machine is not None:
            layout.check(wanted, machines * per_machine)


def test_the_page_has_commands_of_every_kind() -> None:
    commands = [words[words.index(MODULE) + 1] for words in in_shell()]
    assert {"train", "resume", "sample"} == set(commands) and len(commands) >= 12
    assert sum("torchrun" in words for words in in_shell()) >= 4 and len(pods()) == 2


@pytest.mark.parametrize("words", in_shell(), ids=" ".join)
def test_a_command_is_one_that_the_script_takes(words: list[str]) -> None:
    check(words)


@pytest.mark.parametrize(("count", "pod"), pods())
def test_a_pods_command_is_one_that_the_script_takes(count: int, pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    check(container["command"] + container["args"], count, int(container["resources"]["limits"]["nvidia.com/gpu"]))
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    assert mount["name"] == volume["name"] and container["args"][1].startswith(f"{mount['mountPath']}/")


def test_the_jobset_names_its_first_pod() -> None:
    manifest = next(each for each in map(yaml.safe_load, blocks("yaml")) if each["kind"] == "JobSet")
    spec, name = manifest["spec"], manifest["metadata"]["name"]
    (job,) = spec["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment.pop("RANK", "") is None
    assert environment == {
        "WORLD_SIZE": str(job["template"]["spec"]["completions"]),
        "MASTER_ADDR": f"{name}-{job['name']}-0-0.{spec['network']['subdomain']}",
        "MASTER_PORT": "29500",
    }


def test_what_the_script_does_not_take_is_noticed() -> None:
    for wrong in ("--rows 3", "--sequence-parallel 16 --rows 1 --row-tokens 24", "--machines 2"):
        words = f"torchrun --nnodes 2 --nproc-per-node 8 -m {MODULE} train runs/first {wrong}".split()
        with pytest.raises(Exception, match=r"rows|row_tokens|No such option"):
            check(words)
