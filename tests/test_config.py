"""The config: what is legal, the sentences about what is not, and whether the generated documentation is up to date."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from metapt.config import Config, experiments, validate
from metapt.config_docs import LONGEST_ROW, generated, schema_for_editors
from metapt.errors import ConfigError
from metapt.sections import RENAMED, plain

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "config").glob("*.yaml"))
OVERLAYS = sorted((ROOT / "config" / "ablations").glob("*.yaml"))


def read(text: str) -> Config:
    return validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "mnits: {}",
            "mnits is not a key of the config (did you mean 'mnist'?); legal there: results, data, require_gpu, mnist",
        ),
        (
            "ppi: {pretrain_seeds: x}",
            "pretrain_seeds is 'x', but must be a whole number of at least 1 or a list that is not empty",
        ),
        ("ppi: {pretrain_seeds: []}", "or a list that is not empty (of each: a whole number from 0 to 999999999)"),
        ("ppi: {pretrain_seeds: [3, 3]}", "ppi.pretrain_seeds: 3 stands there twice; name it once"),
        ("ppi: {pretrain_seeds: [-1]}", "ppi.pretrain_seeds.0 is -1, but must be a whole number from 0 to 999999999"),
        ("mnist:", "mnist is empty: give it keys, write {} for its defaults, or leave it out"),
        ("mnist: {rotation_mean: }", "mnist.rotation_mean is empty: "),
        ("mnist: {bptt: {arms: }}", "mnist.bptt.arms is empty: "),
        ("mnist: {bptt: {arms: {meta: }}}", "mnist.bptt.arms.meta is empty: "),
        ("mnist: 3", "mnist is 3, but must be a section (keys with values)"),
        (
            "mnist: {bptt: {arms: {mta: false}}}",
            "mnist.bptt.arms.mta is false, but no default arm has that name (did you mean",
        ),
        (
            "mnist: {bptt: {arms: {meta: {pretrain_steps: 300}}}}",
            "mnist: bptt.arms.meta.pretrain_steps is 300, which does not divide the 500 PT steps that all arms of bptt",
        ),
        ("mnist: {headroom: {mean: [180, 0]}}", "mnist.headroom.mean: 180 is not below 0; a range begins with its"),
        (
            "mnist: {bptt: {arms: {meta: {pretrain_steps: 1000}}}}",
            "bptt.arms.meta.pretrain_steps is 1000, which does not divide the 500 PT steps that all arms of bptt take",
        ),
        ("mnist: {fidelity: {pretrain_steps: [10, 10]}}", "mnist.fidelity.pretrain_steps: 10 stands there twice"),
        ("mnist: {bptt: {arms: [meta]}}", "mnist.bptt.arms is ['meta'], but must be a section"),
        (
            "mnist: {bptt: {target: 60}}",
            "mnist: bptt.arms.optimal_augmentation.mean is 90, and target is 60; legal: 60",
        ),
        (
            "mnist: {bptt: {initial: 10}}",
            "mnist: bptt.arms.initial_augmentation.mean is 45, and initial is 10; legal: 10",
        ),
        (
            "mnist: {example_weighting: {arms: {meta: {curvature: gauss_newton}}}}",
            "mnist: example_weighting.arms.meta.curvature is 'gauss_newton', which is for rotations; legal: hessian",
        ),
        (
            "mnist: {bptt: {arms: {meta: {meta_optimizer: LBFGS}}}}",
            "mnist.bptt.arms.meta.meta_optimizer is 'LBFGS', but must be 'ASGD' or 'Adadelta' or",
        ),
        ("results: ", "results is empty, but must be a text"),
        ("require_gpu: maybe", "require_gpu is 'maybe', but must be true or false"),
        ("data: {mirrors: here}", "data.mirrors is 'here', but must be a list (of each: a text)"),
        ("mnist: {source: digit}", "mnist.source is 'digit', but must be 'digits' or 'mnist' (did you mean 'digits'?)"),
        ("mnist: {rotation_mean: {target: ninety}}", "mnist.rotation_mean.target is 'ninety', but must be a number"),
        (
            "ecg: {pretrain: {precision: tf23}}",
            "ecg.pretrain.precision is 'tf23', but must be 'float32' or 'tf32' or 'bfloat16' (did you mean 'tf32'?)",
        ),
        (
            "ppi: {pretrain: {precision: tf32}}",
            "ppi.pretrain.precision is 'tf32', but must be 'float32' or 'bfloat16'",
        ),
        (
            "mnist: {rotation_mean: {initial_range: [1, x]}}",
            "mnist.rotation_mean.initial_range.1 is 'x', but must be a number",
        ),
        (
            "mnist: {example_weighting: {pretrain_examples: some}}",
            "mnist.example_weighting.pretrain_examples is 'some', but must be a whole number of at least 1 or 'all'",
        ),
        (
            "mnist: {bptt: {arms: {meta: {unroll_stps: 2}}}}",
            (
                "mnist.bptt.arms.meta.unroll_stps is not a key of the config (did you mean 'unroll_steps'?); "
                "legal there: method, "
            ),
        ),
        ("mnist: {bptt: {arms: {new: {mean: 3}}}}", "mnist.bptt.arms.new.method is missing; legal: meta, bptt, fixed"),
        (
            "mnist: {bptt: {arms: {new: {method: fixd}}}}",
            "method is 'fixd' (did you mean 'fixed'?); legal: meta, bptt, fixed",
        ),
        ("mnist: {bptt: {arms: {new: {method: fixed}}}}", "mnist.bptt.arms.new.mean is missing; it must be a number"),
        (
            "mnist: {rotation_mean: {arms: {meta: {inverse: {kind: conjugate_gradient, terms: 3}}}}}",
            (
                "mnist.rotation_mean.arms.meta.inverse.terms is not a key of the config; "
                "legal there: kind, max_steps, rtol, damping"
            ),
        ),
        (
            "mnist: {bptt: {arms: {bptt: {budget_of: mta}}}}",
            "bptt.arms.bptt.budget_of is 'mta', which is no arm; legal: bptt, meta",
        ),
        (
            "mnist: {rotation_mean: {arms: {k5: {extends: mata}}}}",
            (
                "mnist.rotation_mean.arms.k5.extends is 'mata', which is no arm there (did you mean 'meta'?); "
                "legal: meta, "
            ),
        ),
        ("mnist: {rotation_mean: {arms: {meta: {extends: meta}}}}", "runs in a circle: meta -> meta"),
        (
            "mnist: {rotation_mean: {arms: {a b: {extends: meta}}}}",
            "has an arm 'a b'; the name of an arm is made of letters",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(text)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_several_errors_are_a_sentence_each() -> None:
    with pytest.raises(ConfigError) as error:
        read("{require_gpu: maybe, mnist: {bptt: {targt: 3}}}")
    assert [line.split(" is ")[0] for line in str(error.value).splitlines()] == ["require_gpu", "mnist.bptt.targt"]


def test_an_arm_that_is_false_is_left_out_and_can_be_extended() -> None:
    arms = read(
        "mnist: {rotation_mean: {arms: {meta: false, k5: {extends: meta, unroll_steps: 5}}}}"
    ).mnist.rotation_mean.arms
    assert list(arms) == ["meta-shared", "k5"]
    assert arms["k5"].unroll_steps == 5


def test_an_arm_says_only_what_differs() -> None:
    arms = read(
        """
        mnist:
          rotation_mean:
            arms:
              k5: {extends: meta, unroll_steps: 5}
              k5-slow: {extends: k5, meta_lr: 0.1}
              terms: {extends: k5, inverse: {terms: 20}}
              gradient: {extends: terms, inverse: {kind: conjugate_gradient}}
        """
    ).mnist.rotation_mean.arms
    assert list(arms)[-4:] == ["k5", "k5-slow", "terms", "gradient"]
    assert plain(arms["k5"]) == plain(arms["meta"]) | {"unroll_steps": 5}
    assert plain(arms["k5-slow"]) == plain(arms["k5"]) | {"meta_lr": 0.1}
    assert plain(arms["terms"])["inverse"] == plain(arms["meta"])["inverse"] | {"terms": 20}
    assert plain(arms["gradient"])["inverse"]["kind"] == "conjugate_gradient"
    assert arms["gradient"].unroll_steps == 5


def test_a_default_arm_keeps_what_is_not_said() -> None:
    changed = read("mnist: {bptt: {arms: {bptt: {outer_steps: 3}}}}").mnist.bptt
    default = read("mnist: {bptt: {}}").mnist.bptt
    assert plain(changed.arms["bptt"]) == plain(default.arms["bptt"]) | {"outer_steps": 3}
    assert list(changed.arms) == list(default.arms)


def test_an_arm_of_another_kind_takes_nothing_over() -> None:
    arms = read("mnist: {bptt: {arms: {still: {extends: meta, method: fixed, mean: 10}}}}").mnist.bptt.arms
    assert plain(arms["still"]) == {"method": "fixed", "heads": "separate", "mean": 10.0}


def test_plain_knows_no_order_and_no_way_to_write_a_number() -> None:
    one = read("{require_gpu: false, mnist: {rotation_mean: {target: 90, epochs: 2}, source: digits}}")
    other = read("{mnist: {source: digits, rotation_mean: {epochs: 2, target: 9.0e+1}}, require_gpu: no}")
    assert json.dumps(plain(one)) == json.dumps(plain(other))


def test_experiments_are_those_of_the_config() -> None:
    assert list(experiments(read("mnist: {bptt: {}, rotation_mean: {}}"))) == ["mnist_rotation_mean", "mnist_bptt"]
    with pytest.raises(ConfigError, match="the config has no experiment"):
        experiments(read("{results: here}"))


def test_the_papers_config_is_every_experiment_of_its_own_with_its_defaults() -> None:
    mnist = validate(yaml.safe_load((ROOT / "config" / "paper.yaml").read_text())).mnist
    assert mnist is not None
    for name in set(type(mnist).model_fields) - {"source", "headroom"}:
        assert getattr(mnist, name) == getattr(read(f"mnist: {{{name}: {{}}}}").mnist, name)


def test_headrooms_have_the_data_and_sizes_of_the_small_real_config() -> None:
    real, large, small = (
        yaml.safe_load((ROOT / "config" / f"{name}.yaml").read_text())
        for name in ("real-small", "headroom", "headroom-small")
    )
    assert all(large["ecg"][key] == real["ecg"][key] for key in ("source", "width"))
    for key in ("pretrain", "finetune"):
        assert large["ecg"][key] == real["ecg"][key] | {"precision": "bfloat16"}
    assert large["ecg"]["arms"]["simclr"] == real["ecg"]["arms"]["simclr"]
    for key in ("source", "string", "test_species", "network", "finetune_seeds", "pretrain"):
        assert large["ppi"][key] == real["ppi"][key]
    assert large["ppi"]["finetune"]["linear_lrs"] == real["ppi"]["finetune"]["linear_lrs"]
    assert small["ppi"] == large["ppi"] | {"network": {"layers": 3, "width": 16}}


@pytest.mark.parametrize("path", CONFIGS + OVERLAYS, ids=lambda path: path.name)
def test_configs_are_legal_and_fit_the_schema(path: Path) -> None:
    raw: dict[str, Any] = yaml.safe_load(path.read_text())
    validate(raw)
    jsonschema.validate(raw, schema_for_editors())


def test_the_schema_forbids_unknown_keys() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"mnist": {"rotation_mean": {"targt": 3}}}, schema_for_editors())


@pytest.mark.parametrize("path", CONFIGS + OVERLAYS, ids=lambda path: path.name)
def test_configs_name_the_schema_for_editors(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    assert (path.parent / first.partition("=")[2]).resolve() == ROOT / "workflow/schemas/config.schema.json"


def test_an_old_key_is_told_its_new_name() -> None:
    assert list(RENAMED) == sorted(RENAMED)
    with pytest.raises(
        ConfigError, match=r"^mnist\.example_weighting\.arms\.meta\.warmup is now called warmup_epochs\.$"
    ):
        read("mnist: {example_weighting: {arms: {meta: {warmup: 3}}}}")
    with pytest.raises(ConfigError, match=r"ecg\.arms\.meta\.scale_lr is now called meta_lr\."):
        read("ecg: {arms: {meta: {scale_lr: 3}}}")


def test_the_tables_of_keys_can_be_read() -> None:
    text = (ROOT / "config/README.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert max(map(len, rows)) <= LONGEST_ROW
    assert not [row for row in rows if row.endswith("|  |")], "a meaning is empty"
    for section in text.split("\n### ")[1:]:
        assert section.split("\n")[2].strip(), f"{section[:40]} has no description"


def test_every_config_file_is_described() -> None:
    text = (ROOT / "config/README.md").read_text()
    for path in CONFIGS + OVERLAYS:
        assert f"| `{path.relative_to(ROOT / 'config')}` |" in text


@pytest.mark.parametrize("path", generated(ROOT), ids=lambda path: path.name)
def test_generated_documentation_is_up_to_date(path: Path) -> None:
    assert path.read_text() == generated(ROOT)[path], "run `metapt docs`"
