"""The guide shows the example, all blocks of guide and recipes run, and the example finds the planted answer."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from metapt import LoaderBatches, Pretrainer

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "noise_levels.py"
GUIDE = (ROOT / "docs" / "your-own-problem.md").read_text(encoding="utf-8")
RECIPES = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")


def blocks(language: str, page: str = GUIDE) -> list[str]:
    return [block.split("```")[0] for block in page.split(f"```{language}\n")[1:]]


CODE = blocks("python")
ATTENTION, COMPILED, CHECKPOINTED, CLIPPED, OWN_LOOP = blocks("python", RECIPES)
EXAMPLE_BLOCK, COMPARISON, HEADROOM, CHECK, OPTIONS, DICTIONARIES = range(6)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the example and the comparison, as they are, and return what they define and print."""
    found: dict[str, Any] = {"__name__": "guide"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(CODE[EXAMPLE_BLOCK], found)
        exec(CODE[COMPARISON], found)
    return found | {"printed": printed.getvalue()}


def run(block: int, names: dict[str, Any], *shorter: tuple[str, str]) -> dict[str, Any]:
    """Run a block after the first two ones, with texts replaced, and return what is defined then."""
    found, code = dict(names), CODE[block]
    for old, new in shorter:
        assert old in code
        code = code.replace(old, new)
    exec(code, found)
    return found


def test_the_guide_shows_the_example() -> None:
    assert CODE[EXAMPLE_BLOCK] == EXAMPLE.read_text(encoding="utf-8")


def test_the_example_puts_the_noise_on_the_useless_features(names: dict[str, Any]) -> None:
    noise = torch.sigmoid(names["loop"].meta["noise"])
    assert noise[:4].max() < 0.25
    assert noise[4:].min() > 0.75
    assert names["loop"].trace.diagnosis({}).verdict.value == "all well"


def test_the_controls_take_the_same_steps_and_gain_less(names: dict[str, Any]) -> None:
    lines = [line.split() for line in names["printed"].splitlines() if line.startswith("FT accuracy")]
    accuracy = {line[3]: float(line[-2]) for line in lines}
    assert accuracy["learned"] > accuracy["half"] + 10
    seen = []
    for batches in (names["batches"], names["loop"].batches):
        number, given = batches.state_dict()["pretrain"]
        seen.append(number * len(names["loader"]) + given)
    assert seen == [1000, 1000]


def test_the_headroom_says_what_can_be_gained(names: dict[str, Any]) -> None:
    found = run(HEADROOM, names, ("steps=1000", "steps=30, settings=3, seeds=2"))["found"]
    assert str(found).startswith("settings explain ")
    assert len(found.rows) == 4 * 2


def test_the_check_prints_what_the_guide_shows(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    run(CHECK, names)
    assert [line.split(", ")[0] for line in capsys.readouterr().out.splitlines()] == [
        line.split(", ")[0] for line in blocks("text")[2].splitlines()
    ]


def test_the_options_work_together(
    names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    changed = {**names, "settings": replace(names["settings"], iterations=40, warmup=30)}
    found = run(OPTIONS, changed)
    assert [int(line.split()[0]) for line in capsys.readouterr().out.splitlines()] == [20, 40]
    assert len(found["recorder"].rows()) == 2 * (1 + 8)
    assert not list(tmp_path.iterdir())


def test_the_dictionary_form_gives_a_gradient_per_target(names: dict[str, Any]) -> None:
    found = run(DICTIONARIES, names)
    gradient = found["result"].gradient["weight"]
    assert gradient.shape == (4,)
    assert gradient.all()
    assert torch.isfinite(gradient).all()


def recipe(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a recipe of 6 iterations from the first minibatch on, and return what is defined then."""
    batches = LoaderBatches(pretrain=names["loader"], train=names["train"], validation=names["validation"])
    found = names | {"batches": batches, "settings": replace(names["settings"], iterations=6, warmup=3)}
    exec(code, found)
    assert (found["loop"].meta["noise"] != 0).all()
    return found


def test_attention_is_differentiated_twice_inside_the_context_only(names: dict[str, Any]) -> None:
    recipe(ATTENTION, names)
    context = "sdpa_kernel(SDPBackend.MATH)"
    assert context in ATTENTION
    with pytest.raises(RuntimeError, match=r"SDPBackend\.MATH"):
        recipe(ATTENTION.replace(context, "torch.enable_grad()"), names)


@pytest.mark.parametrize(
    "code",
    [
        COMPILED.replace("(pretrain_loss)", '(pretrain_loss, backend="aot_eager")'),  # needs no C++ compiler
        CHECKPOINTED,
        CLIPPED.replace("1.0 /", "100 /"),
    ],
    ids=["compiled", "checkpointed", "clipped at a norm that is not reached"],
)
def test_the_recipe_learns_what_a_run_without_it_learns(code: str, names: dict[str, Any]) -> None:
    assert code not in (COMPILED, CLIPPED)
    with_recipe, without = (recipe(each, names)["loop"].meta for each in (code, OWN_LOOP))
    torch.testing.assert_close(dict(with_recipe), dict(without))


def test_a_clipped_gradient_has_the_given_norm_and_the_same_direction(names: dict[str, Any]) -> None:
    found, gradients = recipe(CLIPPED.replace("1.0 /", "0.01 /"), names), []
    batch = found["batches"].pretrain()
    for problem in (found["problem"], found["clipped"]):
        pretrained = Pretrainer(problem, found["batches"], found["start"], found["adam"]).pretrained
        problem.pretrain_loss(pretrained, found["meta"], batch).backward()
        gradients.append(torch.cat([value.grad.flatten() for value in pretrained.vector() if value.grad is not None]))
    plain, clipped = gradients
    torch.testing.assert_close(clipped, 0.01 * plain / plain.norm())
