"""The config: what is legal, the sentence about each thing that is not, and the documentation made from it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from metapt.cli import main
from metapt.engine.config import Config, experiments, load, validate
from metapt.engine.config_docs import generated, schema_for_editors
from metapt.engine.config_files import check_command_line, read_one
from metapt.errors import ConfigError
from metapt.sections import plain

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "config").glob("*.yaml"))
OVERLAYS = sorted((ROOT / "config" / "ablations").glob("*.yaml"))
GENERATED = generated(ROOT)

# Text of the file, line (0: the file alone; None: no place), beginning of the sentence.
WRONG: list[tuple[str, int | None, str]] = [
    # Not YAML, or not as a config is written.
    ("", 0, " must be a section (keys with values), as config/README.md shows."),
    ("- mnist", 0, " must be a section (keys with values)"),
    ("mnist: {", 0, " is not YAML: while parsing a flow node"),
    ("mnist:\n\tsource: digits", 0, " is not YAML: while scanning for the next token found character '\\t'"),
    ("mnist: \x80", 0, " is not YAML: "),
    ("mnist: !!python/object/apply:os.system ['false']", 0, " is not YAML: could not determine a constructor"),
    ("[" * 600, 0, " is not YAML: nested too deeply, or an alias ref"),
    ("mnist: &a {rotation_mean: *a}", 0, " is not YAML: nested too deeply, or an alias ref"),
    ("mnist:\n  source: digits\n  source: mnist", 3, "the key mnist.source is there twice (line 2 has it too)."),
    ("[1, 2]: 3", 0, " is not YAML: while constructing a mapping found unhashable key in"),
    # Keys.
    ("data: {}\nmnits: {}", 2, "mnits is not a key of the config (did you mean 'mnist'?); legal there: results, data"),
    ("1: 2", 1, "1 is not a key of the config; legal there: results"),
    (
        "mnist: {bptt: {arms: {meta: {unroll_stps: 2}}}}", 1,
        "mnist.bptt.arms.meta.unroll_stps is not a key of the config (did you mean 'unroll_steps'?); legal there: exte",
    ),
    (
        "mnist: {rotation_mean: {arms: {meta: {inverse: {kind: conjugate_gradient, terms: 3}}}}}", 1,
        "mnist.rotation_mean.arms.meta.inverse.terms is not a key of the config; legal there: kind, max_steps, rtol, ",
    ),
    (
        "ecg: {arms: {meta: {pretrain: {jiter: uniform}}}}", 1,
        "ecg.arms.meta.pretrain.jiter is not a key of the config (did you mean 'jitter'?)",
    ),
    (
        "mnist: {arms: {k5: {extends: meta}}}", 1,
        "mnist.arms is not a key of the config (it belongs further in: mnist.rotation_mean.arms or mnist.",
    ),
    ("mnist: {bptt: {arms: {new: {method: fixed}}}}", 1, "mnist.bptt.arms.new.mean is missing; it must be a number."),
    # Sections without keys, and other things in their place.
    ("mnist:", 1, "mnist is empty: give it keys, write {} for its defaults, or leave it out."),
    ("mnist: {bptt: {arms: }}", 1, "mnist.bptt.arms is empty: give it keys"),
    ("mnist: {bptt: {arms: {meta: }}}", 1, "mnist.bptt.arms.meta is empty, but must be a section (keys with values)."),
    ("ecg: {arms: {meta: }}", 1, "ecg.arms.meta is no section (keys with values), and another arm"),
    ("mnist: 3", 1, "mnist is 3, but must be a section (keys with values)."),
    ("mnist: {bptt: {arms: [meta]}}", 1, "mnist.bptt.arms is ['meta'], but must be a section"),
    # Values.
    ("results: ", 1, "results is empty, but must be a text"),
    ("require_gpu: maybe", 1, "require_gpu is 'maybe', but must be true or false."),
    ("mnist:\n  source: digit", 2, "mnist.source is 'digit', but must be 'digits' or 'mnist' (did you mean 'digits'?)"),
    ("mnist: {headroom: {pretrain_steps: one}}", 1, "mnist.headroom.pretrain_steps is 'one', but must be a whole numb"),
    ("mnist: {headroom: {pretrain_steps: 0}}", 1, "mnist.headroom.pretrain_steps is 0, but must be a whole number ≥ "),
    ("mnist: {headroom: {pretrain_steps: 1.5}}", 1, "mnist.headroom.pretrain_steps is 1.5, but must be a whole number"),
    ("mnist: {headroom: {pretrain_steps: true}}", 1, "mnist.headroom.pretrain_steps is true, but must be a whole numb"),
    ("mnist: {headroom: {pretrain_steps: 010}}", 1, "mnist.headroom.pretrain_steps is '010', but must be a whole numb"),
    ("mnist: {headroom: {pretrain_steps: {a: 1}}}", 1, "mnist.headroom.pretrain_steps is {'a': 1}, but must be a whol"),
    ("mnist: {rotation_mean: {target: 350}}", 1, "mnist: rotation_mean.target is 350, over half a turn from an ini"),
    ("mnist: {rotation_mean_std: {target: [-91, 9]}}", 1, "mnist: rotation_mean_std.target is -91, over half a turn"),
    ("mnist: {headroom: {target: .nan}}", 1, "mnist.headroom.target is nan, but must be a number."),
    ("mnist: {headroom: {target: 1:30}}", 1, "mnist.headroom.target is '1:30', but must be a number."),
    ("mnist: {headroom: {target: 2020-01-01}}", 1, "mnist.headroom.target is '2020-01-01', but must be a number."),
    ("mnist: {headroom: {mean: [1, x]}}", 1, "mnist.headroom.mean.1 is 'x', but must be a number."),
    ("ecg: {arms: {meta: {clip_norm: yes}}}", 1, "ecg.arms.meta.clip_norm is true, but must be a number > 0 or empty."),
    ("ecg: {finetune: {batch_norm: 'off'}}", 1, "ecg.finetune.batch_norm is 'off', but must be 'train' or 'eval'."),
    ("ppi: {string: {version: ..}}", 1, "ppi.string.version is '..', but must be a text of the form"),
    ("ppi: {string: {ego: {seed: 18446744073709551616}}}", 1, "ppi.string.ego.seed is 18446744073709551616, but must"),
    ("data: {mirrors: here}", 1, "data.mirrors is 'here', but must be a list [a text, …]."),
    # Values that are a number or a list of them, or a number or a word.
    ("ppi: {pretrain_seeds: x}", 1, "ppi.pretrain_seeds is 'x', but must be a whole number ≥ 1 or a non-empty list ["),
    ("ppi: {pretrain_seeds: []}", 1, "ppi.pretrain_seeds is [], but must be a whole number ≥ 1 or a non-empty list ["),
    ("ppi: {pretrain_seeds: [3, 3]}", 1, "ppi.pretrain_seeds: 3 stands there twice; name it once."),
    ("ppi: {pretrain_seeds: [-1]}", 1, "ppi.pretrain_seeds.0 is -1, but must be a whole number from 0 to 999999999."),
    (
        "mnist: {example_weighting: {pretrain_examples: some}}", 1,
        "mnist.example_weighting.pretrain_examples is 'some', but must be a whole number ≥ 1 or 'all'.",
    ),
    # Folders and addresses.
    ("results: /", 1, "results: '/' is /, which holds the project, a home or the whole disk, and the workflow fills i"),
    ("data: {folder: ~/}", 1, "data.folder: '~/' is "),
    ("results: '  '", 1, "results: '  ' is no folder's name"),
    ("results: results/{arm}", 1, "results: 'results/{arm}' is no folder's name"),
    ("results: data/raw", None, "results and data.folder are one folder"),
    ("data: {mirrors: ['http://host:port/x']}", 1, "data.mirrors.0: "),
    ("data: {mirrors: ['ftp://host/x']}", 1, "data.mirrors.0: legal are a folder, file:///folder, http"),
    # Arms.
    ("mnist: {bptt: {arms: {new: {mean: 3}}}}", 1, "mnist.bptt.arms.new.method is missing; legal: meta, bptt, fixed."),
    ("mnist: {bptt: {arms: {new: {method: fixd}}}}", 1, "mnist.bptt.arms.new.method is 'fixd' (did you mean 'fixed'?"),
    (
        "mnist:\n  bptt:\n    arms:\n      k5: {extends: mata}", 4,
        "mnist.bptt.arms.k5.extends is 'mata', which is no arm there (did you mean 'meta'?); legal: bptt, meta, bptt_l",
    ),
    ("ecg: {arms: {a: {extends: b}, b: {extends: a}}}", 1, "ecg.arms.a.extends runs in a circle: a -> b -> a."),
    (
        "ecg: {arms: {a: {extends: simclr, method: meta}}}", 1,
        "ecg.arms.a.method is 'meta', and simclr, which the arm extends, has the method 'simclr'; legal: the same one",
    ),
    ("mnist: {rotation_mean: {arms: {meta: false, meta-shared: false}}}", 1, "mnist: rotation_mean.arms has none left"),
    ("ecg: {arms: {mta: false}}", 1, "ecg.arms.mta is false, but no default arm has that name (did you mean 'meta'?)."),
    ("ecg: {arms: {a b: {extends: meta}}}", 1, "ecg.arms has an arm 'a b'; a name is made of letters, digits, - an"),
    # Keys that are legal one by one.
    ("mnist: {headroom: {mean: [180, 0]}}", 1, "mnist.headroom.mean: 180 is not below 0; a range begins with its"),
    ("mnist:\n  bptt: {target: 60}", 1, "mnist: bptt.arms.optimal_augmentation.mean is 90, and target is 60; legal"),
    ("mnist: {bptt: {arms: {bptt: {budget_of: mta}}}}", 1, "mnist: bptt.arms.bptt.budget_of is 'mta', which is no ar"),
    (
        "ecg: {full_access: {arms: [meta, simclr]}, arms: {meta: {controls: {simlr: []}}}}", 1,
        "ecg: arms.meta.controls.simlr is no other arm; legal: no_pt, simclr, ",
    ),
    (
        "ecg: {full_access: {arms: [meta, simclr]}, arms: {meta: {pretrain: {temperature: 0.2}}}}", 1,
        "ecg: arms.meta.controls.simclr: the two differ in pretrain; legal: arms that are equal in it",
    ),
    (
        "ppi: {full_access: {}, arms: {meta: {pretrain_lr: 0.1}}}", 1,
        "ppi: arms.meta.controls.graph_supervised-slow: the two differ in pretrain_lr; legal: arms that are equal in",
    ),
    (
        "ppi: {full_access: {}, arms: {graph_supervised: {group_weights: [0.5, 1.5]}}}", 1,
        "ppi: arms.meta.controls.graph_supervised: the two differ in group_weights; legal: ",
    ),
    (
        "ppi: {full_access: {}, arms: {cotrain: {pretrain: {epochs: 1}}}}", 1,
        "ppi: arms.graph_supervised.controls.cotrain: the two differ in pretrain; legal: ",
    ),
    ("ecg: {cost: {arms: [mata]}}", 1, "ecg: cost names the arm 'mata', which is not in arms; legal: no_pt, simclr"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "sentence"), WRONG)
def test_what_is_wrong_is_said_in_one_sentence_with_its_place(
    text: str, line: int | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, path = tmp_path / "base.yaml", tmp_path / "config.yaml"
    base.write_text("results: somewhere\n")
    path.write_bytes(text.encode("latin-1"))
    assert main(["check", "--configfile", str(base), str(path)]) == 1
    place = f"{path}, line {line}: " if line else "" if line is None else str(path)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"error: {place}{sentence}")


def read(text: str) -> Config:
    return validate(yaml.safe_load(text))


def test_several_errors_are_a_sentence_each() -> None:
    with pytest.raises(ConfigError) as error:
        read("{require_gpu: maybe, mnist: {bptt: {targt: 3}}}")
    assert [line.split(" is ")[0] for line in str(error.value).splitlines()] == ["require_gpu", "mnist.bptt.targt"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e1", 10.0), ("1e-3", 0.001), ("+1E+3", 1000.0), (".5e3", 500.0), ("5.e-1", 0.5), ("0e0", 0.0), ("0.5", 0.5),
        ("0", 0), ("-0", 0), ("10", 10), ("1_000", 1000), ("0x1f", 31), ("1e", "1e"), ("0-1", "0-1"),
        ("'010'", "010"), ('"1:30"', "1:30"), ("|-\n  010", "010"), ("10:00:x", "10:00:x"),
        ("2020-01-01", "2020-01-01"), ("2020-01-01T10:00:00Z", "2020-01-01T10:00:00Z"),
    ],
)  # fmt: skip
def test_a_value_is_what_is_written(text: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"a: {text}\nb: [1]\n")
    found = read_one(tmp_path / "config.yaml")["a"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("key", ["on", "no", "010", "1:30", "1.50", "1e3", "2020-01-01", "~", "'on'"])
def test_a_key_is_a_text_as_it_is_written(key: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"arms: {{{key}: 1}}\n")
    assert read_one(tmp_path / "config.yaml") == {"arms": {key.strip("'"): 1}}


def test_powers_of_ten_are_whole_numbers_where_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("results: r\nmnist: {rotation_mean: {epochs: 1e1, target: 9e1}}\n")
    found = load([tmp_path / "config.yaml"]).mnist.rotation_mean
    assert (found.epochs, found.target) == (10, 90.0)


def test_merge_keys_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: &a {epochs: 3, replicates: 2}\nb: {<<: *a, epochs: 4}\n")
    assert read_one(tmp_path / "config.yaml")["b"] == {"epochs": 4, "replicates": 2}


@pytest.mark.parametrize(("path", "sentence"), [("none.yaml", "No such file or directory"), (".", "Is a directory")])
def test_the_workflow_says_which_file_cannot_be_read(
    path: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["snakemake", "--config", "a=1", f"--configfile={tmp_path / path}", "-n"])
    with pytest.raises(SystemExit, match=f"can't be read: {sentence}"):
        check_command_line()


def test_an_arm_says_only_what_differs() -> None:
    arms = read(
        """
        mnist:
          rotation_mean:
            arms:
              meta: false
              meta-shared: {meta_lr: 0.2}
              k5: {extends: meta, unroll_steps: 5}
              terms: {extends: k5, inverse: {terms: 20}}
              gradient: {extends: terms, inverse: {kind: conjugate_gradient}}
        """
    ).mnist.rotation_mean.arms
    default = read("mnist: {rotation_mean: {}}").mnist.rotation_mean.arms
    k5, terms, gradient = (plain(arms[name].to_run()) for name in ("k5", "terms", "gradient"))
    assert list(arms) == ["meta-shared", "k5", "terms", "gradient"]
    assert plain(arms["meta-shared"]) == plain(default["meta-shared"]) | {"meta_lr": 0.2}
    assert [arms[name].extends for name in ("k5", "terms", "gradient")] == ["meta", "k5", "terms"]
    assert k5 == plain(default["meta"].to_run()) | {"unroll_steps": 5}
    assert terms == k5 | {"inverse": k5["inverse"] | {"terms": 20}}
    assert gradient["inverse"]["kind"] == "conjugate_gradient"
    assert gradient == k5 | {"inverse": gradient["inverse"]}


@pytest.mark.parametrize(
    ("given", "kept"), [("{step_size: 0.1}", 0.1), ("{kind: conjugate_gradient, max_steps: 3}", None), ("{}", None)]
)
def test_a_default_arm_follows_a_section_of_the_arm_that_it_extends(given: str, kept: float | None) -> None:
    for domain in ("ecg", "ppi"):
        arms = getattr(read(f"{domain}: {{arms: {{meta: {{inverse: {given}}}}}}}"), domain).arms
        assert plain(arms["meta-identity"].inverse) == {"kind": "neumann", "terms": 0, "step_size": kept}


def test_the_settings_of_an_optimiser_are_not_joined() -> None:
    text = "ecg: {arms: {one: {extends: meta-stable, meta_optimizer: SGD, meta_settings: {momentum: 0.5}}, "
    text += "two: {extends: one, meta_settings: {}}, same: {extends: one, meta_optimizer: SGD}, "
    text += "other: {extends: one, meta_optimizer: Adam}, adam: {extends: meta-stable, meta_optimizer: Adam}}}"
    found = {name: arm.meta_settings for name, arm in read(text).ecg.arms.items() if hasattr(arm, "meta_settings")}
    assert (found["one"], found["two"], found["same"], found["other"]) == ({"momentum": 0.5}, {}, found["one"], {})
    assert found["adam"] == found["meta-stable"] == {"betas": [0.8, 0.9]}


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("{meta_settings: {momentum: 0.9}}", "{meta_optimizer: SGD}", {"momentum": 0.9}),  # the arm's own optimiser
        ("{meta_settings: {momentum: 0.9}}", "{meta_lr: 5}", {"momentum": 0.9}),
        ("{meta_optimizer: Adam, meta_settings: {amsgrad: true}}", "{meta_optimizer: SGD}", {}),
        ("{meta_optimizer: Adam}", "{meta_settings: {amsgrad: true}}", {"amsgrad": True}),
    ],
)
def test_a_later_file_changes_the_optimiser(first: str, second: str, kept: dict[str, Any], tmp_path: Path) -> None:
    files = [tmp_path / "first.yaml", tmp_path / "second.yaml"]
    for file, arm in zip(files, (first, second), strict=True):
        file.write_text(f"results: here\nppi: {{arms: {{meta-stable: {arm}}}}}\n")
    assert load(files).ppi.arms["meta-stable"].meta_settings == kept


def test_plain_knows_no_order_and_no_way_to_write_a_number() -> None:
    one = read("{require_gpu: false, mnist: {rotation_mean: {target: 90, epochs: 2}, source: digits}}")
    other = read("{mnist: {source: digits, rotation_mean: {epochs: 2, target: 9.0e+1}}, require_gpu: no}")
    assert json.dumps(plain(one)) == json.dumps(plain(other))


def test_experiments_are_those_of_the_config() -> None:
    assert list(experiments(read("mnist: {bptt: {}, rotation_mean: {}}"))) == ["mnist_rotation_mean", "mnist_bptt"]
    with pytest.raises(ConfigError, match="the config has no experiment"):
        experiments(read("{results: here}"))


def test_the_papers_config_is_every_experiment_of_its_own_with_its_defaults() -> None:
    mnist = load([ROOT / "config/paper.yaml"]).mnist
    assert mnist is not None
    for name in set(type(mnist).model_fields) - {"source", "headroom"}:
        assert getattr(mnist, name) == getattr(read(f"mnist: {{{name}: {{}}}}").mnist, name)


def test_headrooms_have_the_data_and_sizes_of_the_small_real_config() -> None:
    real, large, small = (
        read_one(ROOT / f"config/{name}.yaml") for name in ("real-small", "headroom", "headroom-small")
    )
    assert all(large["ecg"][key] == real["ecg"][key] for key in ("source", "width"))
    for key in ("pretrain", "finetune"):
        assert large["ecg"][key] == real["ecg"][key] | {"precision": "bfloat16"}
    assert large["ecg"]["arms"]["simclr"] == real["ecg"]["arms"]["simclr"]
    for key in ("source", "string", "test_species", "network", "finetune_seeds", "pretrain"):
        assert large["ppi"][key] == real["ppi"][key]
    assert large["ppi"]["finetune"]["linear_lrs"] == real["ppi"]["finetune"]["linear_lrs"]
    assert small["ppi"] == large["ppi"] | {"network": {"layers": 3, "width": 16}}


@pytest.fixture(scope="module")
def schema() -> Any:
    """Return what checks a config by the schema for editors, which is a schema itself."""
    found = schema_for_editors()
    kind = jsonschema.validators.validator_for(found)
    kind.check_schema(found)
    return kind(found)


@pytest.mark.parametrize("path", CONFIGS + OVERLAYS, ids=lambda path: path.name)
def test_configs_are_legal_described_and_fit_the_schema_that_they_name(path: Path, schema: Any) -> None:
    raw: dict[str, Any] = read_one(path)
    validate(raw)
    schema.validate(raw)
    first = path.read_text().splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    assert (path.parent / first.partition("=")[2]).resolve() == ROOT / "workflow/schemas/config.schema.json"
    assert f"| `{path.relative_to(ROOT / 'config')}` |" in (ROOT / "config/README.md").read_text()


def test_the_schema_forbids_unknown_keys(schema: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        schema.validate({"mnist": {"rotation_mean": {"targt": 3}}})


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_generated_documentation_is_up_to_date(path: Path) -> None:
    assert path.read_text() == GENERATED[path], "run `metapt docs`"
