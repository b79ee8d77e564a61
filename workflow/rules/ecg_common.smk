"""The functions that rules of the ECG domain ask for their files, parameters and resources."""

from metapt.domains.ecg import needs
from metapt.domains.ecg.config import NoPretraining, arms_of, uses_labels

ECG = CONFIG.ecg
ECG_ARMS = {} if ECG is None else arms_of(ECG)


def ecg_section():
    if ECG is None:
        raise WorkflowError("ecg is not in the config: add a section `ecg` with an experiment, or name a config that has it.")
    return ECG


def ecg_arm(wildcards):
    """The settings of a run's arm, whose access to labels has been checked."""
    ecg_section()
    if wildcards.arm not in ECG_ARMS:
        raise WorkflowError(f"ecg has no arm {wildcards.arm!r} in the config; it has {', '.join(ECG_ARMS)}.")
    arm = ECG_ARMS[wildcards.arm]
    if uses_labels(arm) == (wildcards.access == "none"):
        legal = "n followed by their number" if uses_labels(arm) else "none"
        raise WorkflowError(f"the arm {wildcards.arm!r} has no run with the labels {wildcards.access!r}; legal: {legal}.")
    return arm


def ecg_data():
    """The prepared files."""
    folder = f"{RESULTS}/ecg/data/{ecg_section().source}"
    return {"signals": f"{folder}/signals.npy", "records": f"{folder}/records.csv"}


def ecg_input(wildcards):
    return ecg_data()


def ecg_pretrained(arm, access, seed):
    return f"{RESULTS}/ecg/pretrain/{arm}/{access}/seed{seed}/pretrained.pt"


def ecg_pretrain_config(wildcards):
    arm = ecg_arm(wildcards)
    return plain(
        {
            "domain": "ecg",
            "arm": wildcards.arm,
            "arm_settings": plain(arm),
            "seed": int(wildcards.seed),
            "meta_size": needs.meta_size(wildcards.access),
            "split": ECG.split if uses_labels(arm) else None,
            "width": ECG.width,
            "samples": ECG.samples,
            "pretrain": {} if isinstance(arm, NoPretraining) else plain(ECG.pretrain),
            "checkpoint": f"{RESULTS}/.resume/ecg/pretrain/{wildcards.arm}-{wildcards.access}-seed{wildcards.seed}.pt",
        }
    )


def ecg_finetune_input(wildcards):
    ecg_arm(wildcards)
    seeds = range(ECG.pretrain_seeds)
    return ecg_data() | {f"seed{seed}": ecg_pretrained(wildcards.arm, wildcards.access, seed) for seed in seeds}


def ecg_finetune_config(wildcards):
    ecg_arm(wildcards)
    return plain(
        {
            "domain": "ecg",
            "arm": wildcards.arm,
            "meta_size": needs.meta_size(wildcards.access),
            "size": int(wildcards.size),
            "split": ECG.split,
            "pretrain_seeds": ECG.pretrain_seeds,
            "finetune_seeds": ECG.finetune_seeds,
            "evaluations": ECG.evaluations,
            "width": ECG.width,
            "samples": ECG.samples,
            "finetune": plain(ECG.finetune),
            "checkpoint": f"{RESULTS}/.resume/ecg/finetune/{wildcards.arm}-{wildcards.access}-n{wildcards.size}.pt",
        }
    )


def ecg_warp_study_arm(wildcards):
    """The settings of the arm, and the study's arms of fixed strength beside it."""
    study = section("ecg_warp_study")
    if wildcards.arm not in study.starts:
        raise WorkflowError(f"ecg.warp_study.starts has no arm {wildcards.arm!r}; it has {', '.join(study.starts)}.")
    try:
        return ECG.arms[wildcards.arm], needs.fixed_arms(ECG, wildcards.arm)
    except ConfigError as error:
        raise WorkflowError(str(error)) from None


def ecg_warp_study_input(wildcards):
    _, fixed = ecg_warp_study_arm(wildcards)
    return ecg_data() | {f"fixed/{initial:g}": ecg_pretrained(arm, "none", wildcards.seed) for initial, arm in fixed.items()}


def ecg_warp_study_config(wildcards):
    arm, fixed = ecg_warp_study_arm(wildcards)
    study = section("ecg_warp_study")
    return plain(
        {
            "domain": "ecg",
            "experiment": "warp_study",
            "arm": wildcards.arm,
            "arm_settings": plain(arm),
            "seed": int(wildcards.seed),
            "meta_size": study.finetune_size,
            "split": ECG.split,
            "width": ECG.width,
            "samples": ECG.samples,
            "pretrain": plain(ECG.pretrain),
            "study": {"draws": study.draws, "horizon": study.horizon, "strengths": sorted(fixed)},
        }
    )


def ecg_views_input(wildcards):
    section("ecg_augmentations")
    runs = needs.needs(ECG, "augmentations").pretrain
    return ecg_data() | {f"pretrained/{run.arm}/{run.seed}": ecg_pretrained(*run) for run in runs}


def ecg_views_config(wildcards):
    study = section("ecg_augmentations")
    return plain(
        {
            "domain": "ecg",
            "experiment": "augmentations",
            "arms": {name: plain(ECG.arms[name]) for name in study.arms},
            "seeds": list(range(ECG.pretrain_seeds)),
            "meta_size": study.finetune_size,
            "split": ECG.split,
            "width": ECG.width,
            "samples": ECG.samples,
            "pretrain": plain(ECG.pretrain),
        }
    )


def ecg_summarise_input(wildcards):
    section(f"ecg_{wildcards.experiment}")
    try:
        needed = needs.needs(ECG, wildcards.experiment)
    except ConfigError as error:
        raise WorkflowError(str(error)) from None
    files = {}
    for run in needed.pretrain:
        folder = f"{RESULTS}/ecg/pretrain/{run.arm}/{run.access}/seed{run.seed}"
        files |= {f"{run.name}/metrics": f"{folder}/metrics.csv", f"{run.name}/series": f"{folder}/series.csv"}
        files[f"{run.name}/run"] = f"{folder}/run.json"
    for run in needed.finetune:
        files[f"{run.name}/metrics"] = f"{RESULTS}/ecg/finetune/{run.arm}/{run.access}/n{run.size}/metrics.csv"
    for run in needed.study:
        folder = f"{RESULTS}/ecg/warp_study/{run.arm}/seed{run.seed}"
        files |= {f"{run.name}/metrics": f"{folder}/metrics.csv", f"{run.name}/series": f"{folder}/series.csv"}
    if wildcards.experiment == "augmentations":
        files["views"] = f"{RESULTS}/ecg/augmentations/views.npz"
        files["views/metrics"] = f"{RESULTS}/ecg/augmentations/views.metrics.csv"
    return files


def ecg_summarise_config(wildcards):
    """The domain's section without other experiments and without arms that this one doesn't name."""
    study = section(f"ecg_{wildcards.experiment}")
    others = [experiment for experiment in needs.EXPERIMENTS if experiment != wildcards.experiment]
    named = [*getattr(study, "arms", []), *getattr(study, "starts", []), getattr(study, "baseline", None)]
    settings = {key: value for key, value in plain(ECG).items() if key not in others}
    return plain(
        {
            "domain": "ecg",
            "experiment": wildcards.experiment,
            "settings": settings | {"arms": {name: arm for name, arm in settings["arms"].items() if name in named}},
        }
    )


def ecg_mem_mb(wildcards, attempt):
    """The imports take 500 MB, the prepared ECGs as many; activations grow with width and minibatch."""
    batch = max(ecg_section().pretrain.batch_size, ECG.finetune.batch_size)
    return attempt * (1500 + ECG.width * batch)


def ecg_minutes(views, attempt):
    """For a job that takes so many ECGs through the encoder and back: 500 of width 1 in a second of a core."""
    if CONFIG.require_gpu:
        return attempt * 240
    return attempt * (60 + views * ECG.width // (60 * 500))


def ecg_pretrain_runtime(wildcards, attempt):
    """Minutes; meta-updates take as long as PT steps."""
    signals = ecg_section().pretrain.signals or 20000
    return ecg_minutes(2 * 2 * ECG.pretrain.epochs * signals, attempt)


def ecg_finetune_runtime(wildcards, attempt):
    """Minutes."""
    runs = ecg_section().pretrain_seeds * ECG.finetune_seeds
    return ecg_minutes(runs * ECG.finetune.epochs * int(wildcards.size), attempt)
